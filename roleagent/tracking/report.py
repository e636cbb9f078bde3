"""A Markdown report of a run, from the numbers that it committed.

Labels and texts of diagnoses are the model's own words: they are untrusted and are escaped, so that they can neither
break a table nor bring in links, images or HTML.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from roleagent.tracking.advice import suggestions
from roleagent.tracking.history import MEASURES, History, Row, column, number, to_history, totals
from roleagent.tracking.redaction import flatten
from roleagent.types import Diagnosis, DiagnosisStatus

_CAPTIONS = {
    "success": "Success rate on training batches and on held-out tasks (95 % interval)",
    "match": "Match of predicted with real next states",
    "failure_types": "Diagnosed failures by type",
    "bank": "Growth of the failure bank",
    "curriculum": "The task distribution",
    "signal": "Groups that teach nothing, state groups of one, and the gradient noise scale",
    "mismatch": "Training-inference mismatch: the same tokens scored by trainer and sampler",
    "behaviour": "Does the policy make its next state easy to foretell?",
    "phases": "Seconds of each phase",
}
_SPECIAL = re.compile(r"([\\`*_\[\]<>|~$&])")
_TYPES_SHOWN = 12
_ENDS = (
    "Held-out success and bank: the first and the last value. Memory: the most. All others: means of up to five "
    "iterations at either end."
)
_PHASES = (
    "Evaluations are in it. Diagnosis and reshaping run beside the update and are counted whole, so the sum is more "
    "than the time on the clock; what the orchestration takes is not in it."
)


def write_report(
    folder: Path,
    history: History,
    *,
    run_id: str,
    config: Mapping[str, Any],
    diagnoses: Sequence[Diagnosis] = (),
    links: Mapping[str, str] | None = None,
    costs: Mapping[str, Any] | None = None,
) -> Path:
    """Write `report.md` and `figures/*.png` into a folder; return the report's path.

    Args:
        folder: made when it is not there.
        history: one row an iteration (see `roleagent.tracking.history`).
        run_id: shown in the title.
        config: nested settings; credentials are masked.
        diagnoses: an example of each failure type is taken from them, the newest valid one.
        links: name -> address, shown under the title.
        costs: the cost table of a mean iteration (`roleagent.loop.costs`).
    """
    from roleagent.tracking.figures import draw_figures

    pictures = folder / "figures"
    pictures.mkdir(parents=True, exist_ok=True)
    figures = draw_figures(history)
    for name, figure in figures.items():
        figure.savefig(pictures / f"{name}.png")
    path = folder / "report.md"
    text = render_report(
        history, run_id=run_id, config=config, diagnoses=diagnoses, links=links, figures=tuple(figures), costs=costs
    )
    path.write_text(text, encoding="utf-8")
    return path


def render_report(
    history: History,
    *,
    run_id: str,
    config: Mapping[str, Any],
    diagnoses: Sequence[Diagnosis] = (),
    links: Mapping[str, str] | None = None,
    figures: Sequence[str] = (),
    costs: Mapping[str, Any] | None = None,
) -> str:
    """Return the report's text; arguments as in :func:`write_report`, `figures` names those to embed."""
    rows = to_history(history)
    parts = [f"# Run {escape(run_id)}", _headline(rows)]
    if links:
        parts.append("\n".join(f"- {escape(name)}: {_address(address)}" for name, address in links.items()))
    parts += ["## Summary", _table(("measure", "first", "last", "change"), _summary(rows)), _ENDS]
    if figures:
        parts.append("## Figures")
        parts += [f"![{_CAPTIONS.get(name, name)}](figures/{name}.png)" for name in figures]
    if kinds := totals(rows, "failure_types"):
        parts += ["## Failure types", *_failures(kinds, diagnoses)]
    if seconds := totals(rows, "phase_seconds"):
        whole = sum(seconds.values()) or 1.0
        cells = [(escape(name), f"{value:,.1f}", f"{value / whole:.1%}") for name, value in seconds.items()]
        parts += ["## Time", _table(("phase", "seconds", "share"), cells), _PHASES]
    if costs:
        parts += ["## Cost", *_costs(costs)]
    parts += ["## What to try next", "\n".join(f"- {line}" for line in suggestions(rows))]
    settings = [(f"`{key}`", escape(value)) for key, value in flatten(config).items()]
    parts += ["## Configuration", _table(("key", "value"), settings)]
    return "\n\n".join(part for part in parts if part) + "\n"


def escape(text: str, limit: int = 400) -> str:
    """Make untrusted text one line of plain Markdown, at most `limit` characters of it."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    line = line if len(line) <= limit else line[: limit - 1] + "…"
    return _SPECIAL.sub(r"\\\1", line.replace("://", ":\u200b//").replace("@", "@\u200b").replace("www.", "www\u200b."))


def _headline(rows: Sequence[Row]) -> str:
    done = max((int(row["iteration"]) for row in rows), default=0)
    held = [row for row in rows if number(row, "success/heldout") is not None]
    if len(held) < 2:
        return f"{done} iterations." + (f" Held-out success {_rate(held[0])}." if held else "")
    first, last = held[0], held[-1]
    gain = float(last["success/heldout"]) - float(first["success/heldout"])
    return (
        f"After {done} iterations the policy solves **{_rate(last)}** of the held-out tasks; "
        f"before, it was {_rate(first)}: {100 * gain:+.1f} points."
    )


def _rate(row: Row) -> str:
    low, high = number(row, "heldout/low"), number(row, "heldout/high")
    interval = f" ({low:.1%} to {high:.1%})" if low is not None and high is not None else ""
    return f"{float(row['success/heldout']):.1%}{interval}"


def _summary(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    shown = [
        ("held-out success", "success/heldout", "share"),
        ("training success", "success/train", "share"),
        ("mean reward", "reward/mean", "number"),
        ("prediction match", "match/mean", "number"),
        (MEASURES["groups/degenerate"], "groups/degenerate", "share"),
        ("actions not possible", "rollout/invalid_action_share", "share"),
        ("entropy (nats a token)", "update/entropy", "number"),
        ("KL to the initial policy", "update/kl", "number"),
        ("failure bank (records)", "bank/size", "count"),
        ("largest task probability", "curriculum/max_probability", "number"),
        ("tokens a second (rollout)", "rollout/tokens_per_second", "count"),
        ("peak memory (MiB)", "memory/peak_mb", "most"),
    ]
    lines: list[tuple[str, ...]] = []
    for name, key, kind in shown:
        _, values = column(rows, key)
        if not values:
            continue
        # Batches are small and noisy: their ends are means of up to five.
        size = 1 if key in {"success/heldout", "bank/size"} else max(1, min(5, len(values) // 4))
        first, last = sum(values[:size]) / size, sum(values[-size:]) / size
        if kind == "most":
            lines.append((name, "", f"{max(values):,.0f}", ""))
        elif kind == "share":
            lines.append((name, f"{first:.1%}", f"{last:.1%}", f"{100 * (last - first):+.1f} points"))
        elif kind == "count":
            lines.append((name, f"{first:,.0f}", f"{last:,.0f}", f"{last - first:+,.0f}"))
        else:
            lines.append((name, f"{first:.4g}", f"{last:.4g}", f"{last - first:+.3g}"))
    return lines


def _costs(costs: Mapping[str, Any]) -> list[str]:
    """The cost table and what it says: the mean iteration, beside the shares that the paper gives."""
    rows = [
        (
            name.replace("_", " "),
            f"{part['seconds']:,.3f}",
            f"{part['share']:.2%}",
            f"{part['wall_seconds']:,.3f}",
            "" if part["paper_share"] is None else f"{part['paper_share']:.2%}",
        )
        for name, part in costs["parts"].items()
    ]
    low, high = costs["prediction_bounds"]
    return [
        _table(("part", "seconds", "share of the step", "of them on the clock", "paper's share"), rows),
        f"Mean of {costs['iterations']} iterations of {costs['step_seconds']:,.2f} s, evaluations "
        f"({costs['evaluation_seconds']:,.2f} s) left out. What Role-Agent adds (prediction, prediction reward, "
        f"diagnosis, reshaping) takes {costs['added_seconds']:,.3f} s, {costs['added_share']:.1%} of the step. "
        f"Of all sampled tokens {costs['prediction_token_share']:.1%} are predictions. "
        f"Decoding in which every episode was predicting took {low:,.3f} s, in which any was {high:,.3f} s: the "
        "prediction's seconds are apportioned between these. The paper's shares are of its hardware and environment.",
    ]


def _failures(kinds: Mapping[str, float], diagnoses: Sequence[Diagnosis]) -> list[str]:
    examples = {d.failure_type: d for d in diagnoses if d.status is DiagnosisStatus.VALID}
    whole = sum(kinds.values())
    cells, told = [], []
    for kind, count in list(kinds.items())[:_TYPES_SHOWN]:
        cells.append((escape(kind, 60), f"{count:,.0f}", f"{count / whole:.1%}"))
        if (example := examples.get(kind)) is not None:
            where = f"task `{_code(example.task_id)}`, iteration {example.iteration}, step {example.critical_step}"
            told.append(
                f"- **{escape(kind, 60)}**, for example {where}: {escape(example.root_cause)} "
                f"Lesson: {escape(example.lesson)}"
            )
    rest = list(kinds.values())[_TYPES_SHOWN:]
    if rest:
        cells.append((f"{len(rest)} more", f"{sum(rest):,.0f}", f"{sum(rest) / whole:.1%}"))
    return [_table(("type", "failures", "share"), cells), "\n".join(told)]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    lines = (
        [head, [":--", *["--:"] * (len(head) - 1)], *rows] if head[0] != "key" else [head, [":--"] * len(head), *rows]
    )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _code(text: str) -> str:
    return "".join(c for c in text if c.isprintable() and c not in "`|")[:120]


def _address(address: str) -> str:
    # Web pages take a link to any other scheme out, text and all.
    text = "".join(c for c in flatten({"address": address})["address"] if c.isprintable() and c not in "<>`| \\")
    return f"<{text}>" if text.startswith(("http://", "https://")) else f"`{text}`"
