"""From what was played to the names under which a run's metrics are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from roleagent.types import DrawnTask, Trajectory


def played_tasks(drawn: Sequence[DrawnTask], trajectories: Sequence[Trajectory]) -> list[DrawnTask]:
    """The drawn tasks without those in reserve that were not needed."""
    known = {trajectory.task.task_id for trajectory in trajectories}
    return [item for item in drawn if item.task.task_id in known]


def success_by_source(played: Sequence[DrawnTask], trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Success of the tasks drawn uniformly and of those drawn for their relevance.

    Their mean alone misleads: a curriculum that looks for what the policy can't do keeps it low.
    """
    source = {item.task.task_id: item.source for item in played}
    wins: dict[str, list[bool]] = {}
    for trajectory in trajectories:
        wins.setdefault(source[trajectory.task.task_id], []).append(trajectory.success)
    return {f"success/{name}": sum(results) / len(results) for name, results in wins.items()}


def named(metrics: Mapping[str, float], split: str, prefix: str) -> dict[str, float]:
    """Success goes under `success/<split>`, by task type below it; everything else under `prefix/`."""
    found = {}
    for name, value in metrics.items():
        if name == "success_rate" or name.startswith("success_rate/"):
            found[f"success/{split}{name.removeprefix('success_rate')}"] = value
        else:
            found[f"{prefix}/{name}"] = value
    return found
