"""The cost table, by hand."""

from __future__ import annotations

import pytest

from roleagent.loop.costs import PAPER_SECONDS, PAPER_STEP_SECONDS, cost_table
from roleagent.loop.timing import Timing


def row(n: int, phases: dict[str, float], **metrics: float) -> dict[str, object]:
    return {
        "iteration": n,
        "phase_seconds": phases,
        **{key.replace("__", "/"): value for key, value in metrics.items()},
    }


PHASES = {
    "rollout": 6.0,
    "validation": 0.5,
    "scoring": 0.4,
    "update": 3.0,
    "diagnosis": 2.0,
    "diagnosis_validation": 0.5,
    "reshaping": 0.5,
    "storage": 0.25,
}
ROWS = [
    row(0, {"loading": 50.0, "evaluation": 9.0}),
    row(
        1,
        PHASES,
        rollout_time__prediction_seconds=1.0,
        rollout_time__prediction_only_seconds=0.25,
        rollout_time__prediction_any_seconds=2.0,
        rollout_time__prediction_token_share=0.2,
        scoring__match_seconds=0.1,
    ),
    row(
        2,
        PHASES | {"rollout": 4.0, "evaluation": 4.0},
        rollout_time__prediction_seconds=2.0,
        rollout_time__prediction_only_seconds=0.75,
        rollout_time__prediction_any_seconds=3.0,
        rollout_time__prediction_token_share=0.4,
        scoring__match_seconds=0.3,
    ),
    row(3, PHASES),  # killed between commit and note: it has no wall time
]
WALLS = {0: Timing(60.0), 1: Timing(12.0, publishing=0.25, waiting=0.6), 2: Timing(16.0, publishing=0.75)}


def test_by_hand() -> None:
    # Iterations 1 and 2: wall 14 in the mean, evaluation 2, so the step is 12.
    table = cost_table(ROWS, WALLS)
    assert table["iterations"] == 2
    assert (table["step_seconds"], table["evaluation_seconds"]) == (pytest.approx(12.0), pytest.approx(2.0))
    parts = table["parts"]
    seconds = {name: part["seconds"] for name, part in parts.items()}
    assert seconds == pytest.approx(
        {
            "rollout": 5.0 - 1.5,
            "prediction": 1.5,
            "prediction_reward": 0.2,
            "diagnosis": 2.5,
            "reshaping": 0.5,
            "update": 3.0,
            "scoring": 0.2,
            "validation": 0.5,
            "storage": 0.25,
            "publishing": 0.5,
            # 12 less 3.5 + 1.5 + 0.2 + 3 + 0.2 + 0.5 + 0.25 + 0.5 and the 0.3 that were waited for the branch
            "other": 2.05,
        }
    )
    # Of the 0.3 s that the loop waited five sixths are the diagnosis', as of the branch.
    assert parts["diagnosis"]["wall_seconds"] == pytest.approx(0.25)
    assert parts["reshaping"]["wall_seconds"] == pytest.approx(0.05)
    assert sum(part["wall_seconds"] for part in parts.values()) == pytest.approx(table["step_seconds"])
    assert parts["update"]["share"] == pytest.approx(0.25)
    assert table["added_seconds"] == pytest.approx(1.5 + 0.2 + 2.5 + 0.5)
    assert table["added_share"] == pytest.approx(4.7 / 12)
    assert table["prediction_bounds"] == pytest.approx([0.5, 2.5])
    assert table["prediction_token_share"] == pytest.approx(0.3)


def test_the_papers_shares_stand_beside_ours() -> None:
    parts = cost_table(ROWS, WALLS)["parts"]
    assert parts["rollout"]["paper_share"] == pytest.approx(0.339, abs=1e-3)
    assert parts["update"]["paper_seconds"] is None
    assert parts["update"]["paper_share"] is None
    # Its three parts are 5.3 % of its step; it says about 5.2 %.
    added = sum(PAPER_SECONDS[name] for name in ("prediction", "prediction_reward", "diagnosis"))
    assert added / PAPER_STEP_SECONDS == pytest.approx(0.0533, abs=1e-4)


def test_a_run_that_has_not_trained_costs_nothing_yet() -> None:
    assert cost_table(ROWS[:1], WALLS) == {}
    assert cost_table(ROWS, {}) == {}
    assert cost_table([], {}) == {}


def test_without_predictions_and_diagnoses_nothing_is_added() -> None:
    table = cost_table([row(1, {"rollout": 2.0, "scoring": 0.1, "update": 1.0})], {1: Timing(4.0)})
    assert table["added_seconds"] == table["added_share"] == 0.0
    assert table["parts"]["rollout"]["seconds"] == 2.0
    assert table["parts"]["other"]["wall_seconds"] == pytest.approx(0.9)
