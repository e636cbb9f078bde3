"""One row an iteration: the numbers that figures and report are drawn from.

Rows may be what an iteration commits (`{"metrics": {...}, "failure_types": {...}}`), or those numbers already in one
mapping; both become the same flat row.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
History = Sequence[Row]
#: Names under which the phases of the loop report what a figure calls by a shorter one.
_ALIASES = {"success/train": "rollout/success_rate", "success/heldout": "heldout/success"}
#: Mappings of a row, and the prefix of their keys where they lie flat among the metrics.
_MAPPINGS = (
    ("phase_seconds", "seconds/"),
    ("failure_types", "failure_types/"),
    ("engine_types", "engine_types/"),
)
#: What a run and an ablation show over the iterations beside success: docs/accounting.md and docs/reward-hacking.md.
MEASURES: Mapping[str, str] = {
    "match/mean": "prediction match",
    "advantage/prediction_share": "prediction's share of the advantages",
    "rollout/no_op_share": "no-op steps",
    "rollout/toggle_share": "toggle steps",
    "rollout/action_repeat_share": "repeated actions",
    "match/no_op_mass": "no-ops' share of all matches",
    "bonus/no_op_mass": "no-ops' share of the paid match",
    "bonus/toggle_mass": "toggles' share of the paid match",
    "mismatch/logprob_gap_mean": "sampler-trainer log-prob gap (nats)",
    "mismatch/capped_share": "tokens above the importance cap",
    "groups/degenerate": "groups with equal rewards",
    "groups/silent": "groups with zero gradient",
    "state_groups/single_share": "state groups of one step",
}


def to_history(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Flatten rows and order them by iteration; a later row of an iteration replaces an earlier one."""
    found = {int(row["iteration"]): row for row in map(to_row, rows)}
    return [found[iteration] for iteration in sorted(found)]


def to_row(row: Row) -> dict[str, Any]:
    """Return a flat row with `failure_types`, `engine_types` and `phase_seconds` as mappings of numbers."""
    inner = row.get("metrics")
    flat: dict[str, Any] = (
        {**inner, **{k: v for k, v in row.items() if k != "metrics"}} if isinstance(inner, Mapping) else {**row}
    )
    for name, source in _ALIASES.items():
        if name not in flat and source in flat:
            flat[name] = flat[source]
    for name, prefix in _MAPPINGS:
        if not isinstance(flat.get(name), Mapping):
            flat[name] = {key.removeprefix(prefix): value for key, value in flat.items() if key.startswith(prefix)}
    return flat


def number(row: Row, key: str) -> float | None:
    """A finite number of a row, or None."""
    value = row.get(key)
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def column(history: History, key: str) -> tuple[list[float], list[float]]:
    """Iterations and values of a metric where it is a finite number."""
    pairs = [(float(row["iteration"]), value) for row in history if (value := number(row, key)) is not None]
    return [x for x, _ in pairs], [y for _, y in pairs]


def totals(history: History, key: str) -> dict[str, float]:
    """Sum a mapping of numbers (`failure_types`, for example) over the rows, largest first."""
    summed: dict[str, float] = {}
    for row in history:
        for name, value in (row.get(key) or {}).items():
            summed[str(name)] = summed.get(str(name), 0.0) + float(value)
    return dict(sorted(summed.items(), key=lambda item: (-item[1], item[0])))
