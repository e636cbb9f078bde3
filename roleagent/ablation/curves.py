"""Learning curves of runs, and reading them off at an equal budget.

A point is one evaluation on held-out tasks. Two axes are comparable between variants: episodes played for training,
and seconds of training, without evaluations, loading and what is done once at the end. Between two evaluations a curve
is read off on the straight line: evaluations are far apart, and taking the last one before the budget would punish
whoever has just not reached the next.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from roleagent.loop.timing import Timing

Axis = Literal["episodes", "seconds"]
#: What the loop spends on measuring, not on training.
_MEASURING = ("evaluation",)


@dataclass(frozen=True, slots=True)
class Point:
    """Held-out success after some training."""

    iteration: int
    episodes: float  #: played for training so far
    seconds: float  #: wall seconds of training so far
    success: float  #: in [0, 1]
    tasks: int  #: held-out tasks of this evaluation

    def at(self, axis: Axis) -> float:
        """Return the place on an axis."""
        return self.episodes if axis == "episodes" else self.seconds


Curve = Sequence[Point]


def make_curve(rows: Sequence[Mapping[str, Any]], timings: Mapping[int, Timing]) -> list[Point]:
    """Return the evaluations of a run, in order.

    Args:
        rows: one flat row of metrics a committed iteration (`roleagent.loop.publishing.history`).
        timings: wall seconds by iteration. Where one is missing (the run was killed between commit and note), the sum
            of the iteration's phases is taken.
    """
    points, episodes, seconds = [], 0.0, 0.0
    for row in sorted(rows, key=lambda row: int(row["iteration"])):
        n = int(row["iteration"])
        if n > 0:
            episodes += float(row.get("rollout/episodes", 0.0))
            phases = row.get("phase_seconds", {})
            wall = timings[n].wall if n in timings else sum(phases.values())
            seconds += max(0.0, wall - sum(phases.get(name, 0.0) for name in _MEASURING))
        if "success/heldout" in row:
            points.append(Point(n, episodes, seconds, float(row["success/heldout"]), int(row.get("heldout/n", 0))))
    return points


def budget(curves: Sequence[Curve], axis: Axis) -> float:
    """Return how far all curves reach: the smallest of their ends, 0 without curves."""
    return min((curve[-1].at(axis) for curve in curves if curve), default=0.0)


def read_off(curve: Curve, axis: Axis, place: float) -> float | None:
    """Return the success at a place of an axis, on the straight line between two evaluations.

    Returns None where the curve does not reach, or has no point.
    """
    xs = [point.at(axis) for point in curve]
    if not xs or not xs[0] - 1e-9 <= place <= xs[-1] + 1e-9:
        return None
    after = min(bisect_left(xs, place), len(xs) - 1)
    before = max(0, after - 1)
    if xs[after] <= xs[before]:
        return curve[after].success
    share = min(1.0, max(0.0, (place - xs[before]) / (xs[after] - xs[before])))
    return curve[before].success + share * (curve[after].success - curve[before].success)


def common_places(curves: Sequence[Curve], axis: Axis) -> list[float]:
    """Return the places of all points within the range that all curves cover, sorted: where a mean can be drawn."""
    curves = [curve for curve in curves if curve]
    if not curves:
        return []
    low, high = max(curve[0].at(axis) for curve in curves), min(curve[-1].at(axis) for curve in curves)
    return sorted({x for curve in curves for point in curve if low <= (x := point.at(axis)) <= high} | {low, high})
