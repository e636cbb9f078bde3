"""Curves from committed rows, and reading them off."""

from __future__ import annotations

import pytest

from roleagent.ablation.curves import Point, budget, common_places, make_curve, read_off
from roleagent.loop.timing import Timing


def row(n: int, seconds: dict[str, float], **metrics: float) -> dict[str, object]:
    return {"iteration": n, "phase_seconds": seconds, **metrics}


def test_a_curve_counts_training_only() -> None:
    held = {"success/heldout": 0.5, "heldout/n": 8.0}
    rows = [
        row(0, {"evaluation": 9.0, "loading": 5.0}, **held),
        row(1, {"rollout": 3.0, "update": 1.0}, **{"rollout/episodes": 16.0}),
        row(2, {"rollout": 3.0, "evaluation": 7.0}, **{"rollout/episodes": 24.0}, **held | {"success/heldout": 0.75}),
    ]
    # Iteration 1: its phases, as nothing was noted. Iteration 2: 12 s of wall time less 7 s of evaluation.
    curve = make_curve(rows, {0: Timing(20.0), 2: Timing(12.0)})
    assert curve == [Point(0, 0.0, 0.0, 0.5, 8), Point(2, 40.0, 4.0 + 5.0, 0.75, 8)]


CURVE = [Point(0, 0, 0, 0.2, 9), Point(2, 10, 4, 0.4, 9), Point(4, 20, 12, 0.9, 9)]


@pytest.mark.parametrize(
    ("axis", "place", "success"),
    [
        ("episodes", 0, 0.2),
        ("episodes", 5, 0.3),
        ("episodes", 10, 0.4),
        ("episodes", 20, 0.9),
        ("seconds", 8, 0.65),
        ("seconds", 12.5, None),
        ("episodes", -1, None),
    ],
)
def test_reading_off_between_evaluations(axis: str, place: float, success: float | None) -> None:
    found = read_off(CURVE, axis, place)  # type: ignore[arg-type]
    assert found == (None if success is None else pytest.approx(success))


def test_the_budget_is_what_all_reach() -> None:
    other = [Point(0, 0, 0, 0.1, 9), Point(3, 15, 30, 0.1, 9)]
    assert budget([CURVE, other], "episodes") == 15
    assert budget([CURVE, other], "seconds") == 12
    assert budget([], "seconds") == 0
    assert common_places([CURVE, other], "episodes") == [0, 10, 15]
    assert common_places([], "episodes") == []
