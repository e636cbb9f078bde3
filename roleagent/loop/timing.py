"""Where the wall time of a run went: what each iteration took, noted beside its commit, and the share of each phase."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from roleagent.json_text import read_json_text
from roleagent.loop.worker import Worker
from roleagent.storage import MissingObjectError

_BESIDE_UPDATE = ("diagnosis", "diagnosis_validation", "reshaping")


@dataclass(frozen=True, slots=True)
class Timing:
    """Wall seconds of an iteration that its commit, which comes before their end, cannot hold."""

    wall: float  #: from its first to its last moment
    publishing: float = 0.0
    waiting: float = 0.0  #: for the branch beside the update, after the update was done


def record_timing(worker: Worker, n: int, timing: Timing) -> None:
    """Note what an iteration took."""
    worker.store.write(worker.run_id, f"timing/{n:06d}.json", json.dumps(asdict(timing)).encode())


def timings(worker: Worker) -> dict[int, Timing]:
    """Return what was noted by `record_timing`, by iteration; a note that is missing or damaged is left out."""
    found: dict[int, Timing] = {}
    for n in worker.store.committed(worker.run_id):
        try:
            noted = read_json_text(worker.store.read_run(worker.run_id, f"timing/{n:06d}.json"))
            timing = Timing(**{name: float(value) for name, value in noted.items()})
        except (MissingObjectError, ValueError, TypeError, AttributeError):
            continue
        if all(math.isfinite(value) and value >= 0 for value in asdict(timing).values()):
            found[n] = timing
    return found


def phase_shares(
    seconds: Sequence[Mapping[str, float]], walls: Sequence[Timing]
) -> tuple[dict[str, float], dict[str, float]]:
    """Share of the wall time of each phase, and of those that run beside the update.

    The first mapping adds up to 1. Of the branch beside the update it counts, as `diagnosis`, only the time that the
    loop waited for it once the update was done. `orchestration` is what no phase accounts for: the orchestrator, the
    draw of the tasks, the commit. The second mapping has the whole time of the branch's parts, hidden or not.

    Args:
        seconds: of each phase, one mapping an iteration.
        walls: the timing of the same iterations.
    """
    wall = sum(timing.wall for timing in walls)
    if wall <= 0:
        return {}, {}
    total: dict[str, float] = {}
    for item in seconds:
        for name, value in item.items():
            total[name] = total.get(name, 0.0) + value
    beside = {name: total.pop(name) / wall for name in _BESIDE_UPDATE if name in total}
    total["diagnosis"] = sum(timing.waiting for timing in walls)
    total["publishing"] = sum(timing.publishing for timing in walls)
    total["orchestration"] = max(0.0, wall - sum(total.values()))
    return {name: value / wall for name, value in sorted(total.items())}, beside
