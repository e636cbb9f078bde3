"""The cost table: what each part of an iteration takes, beside the paper's.

    prediction          part of the rollout's decoding that is spent on predictions, step by step in proportion to the
                        lanes whose action was complete
    rollout             the phase without it
    prediction_reward   matching predictions with states: the part of scoring that exists for World-In-Agent alone
    scoring             the rest of it: returns, state groups, advantages
    diagnosis           with its validation
    reshaping           retrieval and the task distribution; like the diagnosis it runs beside the update
    other               draws, orchestration, commit: what no phase accounts for

    step      = sum of wall_seconds = wall time of an iteration without evaluation
    added     = (prediction + prediction_reward + diagnosis + reshaping) / step     what Role-Agent adds, hidden or not

`seconds` is the whole time of a part, `wall_seconds` what it added to the iteration: they differ for what runs beside
the update, of which only the time that the loop waited for it counts. Means are over the trained iterations.

The paper's numbers are those of its ALFWorld run on its own hardware (arXiv 2606.10917; the method, section 4): shares
may be compared, seconds not. It gives no time of the update.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roleagent.loop.timing import Timing

PAPER_STEP_SECONDS = 519.0
PAPER_SECONDS: Mapping[str, float] = {
    "rollout": 176.0,
    "prediction": 18.63,
    "prediction_reward": 0.14,
    "diagnosis": 8.92,
}
ADDED = ("prediction", "prediction_reward", "diagnosis", "reshaping")
_BESIDE = ("diagnosis", "reshaping")
_PHASES: Mapping[str, tuple[str, ...]] = {
    "rollout": ("rollout",),
    "validation": ("validation",),
    "scoring": ("scoring",),
    "update": ("update",),
    "diagnosis": ("diagnosis", "diagnosis_validation"),
    "reshaping": ("reshaping",),
    "storage": ("storage",),
}
_ORDER = (
    *("rollout", "prediction", "prediction_reward", "diagnosis", "reshaping"),
    *("update", "scoring", "validation", "storage", "publishing", "other"),
)


def cost_table(rows: Sequence[Mapping[str, Any]], timings: Mapping[int, Timing]) -> dict[str, Any]:
    """Return the cost of a run's mean iteration; empty before the first one that was timed.

    Args:
        rows: one flat row of metrics an iteration, with `phase_seconds` (`roleagent.loop.publishing.history`).
        timings: wall seconds by iteration; iterations without any are left out, and so is iteration 0.

    Returns:
        `iterations`; `step_seconds`; `evaluation_seconds`, a mean over all and not in the step; `added_seconds`,
        `added_share`; `prediction_token_share` of the sampled tokens; `prediction_bounds`, seconds of decoding in which
        every lane, and in which any lane, was past its action; and `parts`: by name `seconds`, `wall_seconds`, `share`
        (seconds / step_seconds), `paper_seconds` and `paper_share`, None where the paper gives none.
    """
    timed = [row for row in rows if row["iteration"] > 0 and row["iteration"] in timings]
    if not timed:
        return {}
    walls = [timings[row["iteration"]] for row in timed]
    count = len(timed)

    def mean(key: str) -> float:
        return sum(float(row.get(key, 0.0)) for row in timed) / count

    def phase(name: str) -> float:
        return sum(float(row["phase_seconds"].get(name, 0.0)) for row in timed) / count

    work = {name: sum(map(phase, phases)) for name, phases in _PHASES.items()}
    work["prediction"] = min(mean("rollout_time/prediction_seconds"), work["rollout"])
    work["rollout"] -= work["prediction"]
    work["prediction_reward"] = min(mean("scoring/match_seconds"), work["scoring"])
    work["scoring"] -= work["prediction_reward"]
    work["publishing"] = sum(timing.publishing for timing in walls) / count
    evaluation = phase("evaluation")
    step = max(sum(timing.wall for timing in walls) / count - evaluation, 0.0)
    wall = {name: seconds for name, seconds in work.items() if name not in _BESIDE}
    waiting = sum(timing.waiting for timing in walls) / count
    beside = sum(work[name] for name in _BESIDE)
    # The loop waits for the branch as a whole; its parts share that time as they share the branch.
    wall |= {name: waiting * work[name] / beside if beside else 0.0 for name in _BESIDE}
    work["other"] = wall["other"] = max(step - sum(wall.values()), 0.0)
    added = sum(work[name] for name in ADDED)
    return {
        "iterations": count,
        "step_seconds": step,
        "evaluation_seconds": evaluation,
        "added_seconds": added,
        "added_share": _share(added, step),
        "prediction_token_share": mean("rollout_time/prediction_token_share"),
        "prediction_bounds": [mean(f"rollout_time/prediction_{kind}_seconds") for kind in ("only", "any")],
        "parts": {
            name: {
                "seconds": work[name],
                "wall_seconds": wall[name],
                "share": _share(work[name], step),
                "paper_seconds": PAPER_SECONDS.get(name),
                "paper_share": PAPER_SECONDS[name] / PAPER_STEP_SECONDS if name in PAPER_SECONDS else None,
            }
            for name in _ORDER
        },
    }


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
