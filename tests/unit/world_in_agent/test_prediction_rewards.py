"""r~, R_pre, G_t, R_t, R(tau): hand-computed values and the invariants of the method's section 1."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from roleagent.types import Step, StopReason, Task, Trajectory
from roleagent.world_in_agent.reward import (
    Form,
    mean_match,
    modulated_returns,
    prediction_bonus,
    prediction_matrices,
    prediction_matrix,
    r_pre,
    step_penalties,
    step_returns,
    trajectory_reward,
)

TASK = Task("task-1", "household", "pick", "train")


def step(
    index: int,
    state: str,
    predictions: tuple[str, ...] = (),
    *,
    reward: float = 0.0,
    valid: bool = True,
    malformed: bool = False,
    truncated: bool = False,
) -> Step:
    return Step(index, state, "", "look", predictions, reward, valid, malformed, truncated, (1,), (2,), (-0.5,), True)


def trajectory(steps: list[Step], final_state: str, *, score: float = 0.0) -> Trajectory:
    return Trajectory("t-0", TASK, "goal", 0, 0, 0, tuple(steps), final_state, score > 0, score, StopReason.MAX_STEPS)


def test_matrix_by_hand() -> None:
    run = trajectory(
        [
            step(1, "a", ("b", "c x", "d")),  # states to come: b, c, d
            step(2, "b", ("c", "", "z")),  # c, d, none
            step(3, "c", ("q", "d", "d")),  # d, none, none
        ],
        "d",
    )
    nan = np.nan
    expected = [[1.0, 2 / 3, 1.0], [1.0, 0.0, nan], [0.0, nan, nan]]
    np.testing.assert_array_equal(prediction_matrix(run), expected)
    np.testing.assert_allclose(r_pre(prediction_matrix(run)), [(1 + 2 / 3 + 1) / 3, 0.5, 0.0])


def test_missing_predictions_score_zero_and_not_nan() -> None:
    run = trajectory([step(1, "a", ("b",)), step(2, "b", ()), step(3, "c", ("",), malformed=True)], "d")
    nan = np.nan
    np.testing.assert_array_equal(prediction_matrix(run, horizon=2), [[1.0, 0.0], [0.0, 0.0], [0.0, nan]])
    np.testing.assert_array_equal(r_pre(prediction_matrix(run, horizon=2)), [0.5, 0.0, 0.0])


def test_predictions_beyond_the_horizon_do_not_count() -> None:
    run = trajectory([step(1, "a", ("b", "wrong", "wrong"))], "b")
    np.testing.assert_array_equal(prediction_matrix(run, horizon=1), [[1.0]])
    assert prediction_matrix(run).shape == (1, 3)


def test_unit_is_passed_on() -> None:
    run = trajectory([step(1, "a", ("ab",))], "ac")
    assert prediction_matrix(run, "words")[0, 0] == 0.0
    assert prediction_matrix(run, "characters")[0, 0] == 0.5


def test_no_horizon_and_no_steps() -> None:
    run = trajectory([step(1, "a", ("b",))], "b")
    matrix = prediction_matrix(run, horizon=0)
    assert matrix.shape == (1, 0)
    np.testing.assert_array_equal(r_pre(matrix), [0.0])
    assert prediction_matrix(trajectory([], "a"), horizon=2).shape == (0, 2)
    assert prediction_matrices([]) == []


def test_the_mean_match_weighs_every_step_alike() -> None:
    long = trajectory([step(1, "a", ("b",)), step(2, "b", ("x",)), step(3, "c", ("d",))], "d")  # right, wrong, right
    short = trajectory([step(1, "a", ("q",))], "b")
    assert mean_match([long, short]) == pytest.approx((1.0 + 0.0 + 1.0 + 0.0) / 4)
    assert mean_match([]) == 0.0


def test_many_is_one_by_one() -> None:
    first = trajectory([step(1, "a", ("b", "c")), step(2, "b", ("c", "d"))], "c")
    second = trajectory([step(1, "a", ("a b", "c"))], "b")
    together = prediction_matrices([first, trajectory([], "x"), second])
    assert [matrix.shape for matrix in together] == [(2, 2), (0, 2), (1, 2)]
    np.testing.assert_array_equal(together[0], prediction_matrix(first))
    np.testing.assert_array_equal(together[2], prediction_matrix(second))


@given(st.integers(0, 6), st.integers(0, 4), st.booleans())
def test_cells_are_undefined_only_past_the_last_state(steps: int, horizon: int, silent: bool) -> None:
    predictions = () if silent else tuple("s" for _ in range(horizon))
    matrix = prediction_matrix(
        trajectory([step(t, "s", predictions) for t in range(1, steps + 1)], "s"), horizon=horizon
    )
    for t in range(1, steps + 1):
        for h in range(1, horizon + 1):
            cell = matrix[t - 1, h - 1]
            assert np.isnan(cell) == (t + h > steps + 1)
            assert np.isnan(cell) or cell == (0.0 if silent else 1.0)


def test_returns_by_hand() -> None:
    np.testing.assert_allclose(step_returns([0.0, 1.0, 0.0, 2.0], 0.5), [0.75, 1.5, 1.0, 2.0])
    np.testing.assert_allclose(step_returns([0.0, 0.0, 1.0]), [0.95**2, 0.95, 1.0])
    assert step_returns([]).shape == (0,)


def test_modulation_by_hand() -> None:
    np.testing.assert_allclose(modulated_returns(np.array([0.5, 1.0]), np.array([1.0, 0.25]), weight=0.2), [0.6, 1.05])
    assert trajectory_reward(1.0, np.array([1.0, 0.0]), weight=1.0) == 1.5
    assert trajectory_reward(0.5, np.array([1.0, 0.0]), weight=0.2) == pytest.approx(0.55)
    assert trajectory_reward(1.0, np.zeros(0)) == 1.0


def test_the_additive_form_by_hand_pays_losers_too() -> None:
    # R_t = G_t + w R_pre, R(tau) = R_E + w mean R_pre; the bonus is the difference from what the task paid.
    returns, foreseen = np.array([0.5, 1.0, 0.0]), np.array([1.0, 0.25, 0.5])
    np.testing.assert_allclose(modulated_returns(returns, foreseen, 0.2, "additive"), [0.7, 1.05, 0.1])
    np.testing.assert_allclose(prediction_bonus(returns, foreseen, 0.2, "additive"), [0.2, 0.05, 0.1])
    np.testing.assert_allclose(prediction_bonus(returns, foreseen, 0.2), [0.1, 0.05, 0.0])
    assert trajectory_reward(0.0, np.array([1.0, 0.0]), 0.2, "additive") == pytest.approx(0.1)
    assert trajectory_reward(1.0, np.array([1.0, 0.0]), 0.2, "additive") == pytest.approx(1.1)
    assert trajectory_reward(0.0, np.zeros(0), 1.0, "additive") == 0.0


@pytest.mark.parametrize("form", ["multiplicative", "additive"])
def test_the_bonus_is_what_the_form_adds_to_the_return(form: Form) -> None:
    returns, foreseen = np.array([0.3, -1.0, 0.0, 0.9]), np.array([0.5, 1.0, 1.0, 0.0])
    bonus = prediction_bonus(returns, foreseen, 0.7, form)
    np.testing.assert_allclose(modulated_returns(returns, foreseen, 0.7, form), returns + bonus)


def test_every_step_of_a_winner_is_modulated_not_only_the_last() -> None:
    # The method, section 6, fault 2: r_t is zero everywhere but in the winning step, so a factor on r_t alone would
    # be no process reward at all.
    returns = step_returns([0.0, 0.0, 0.0, 1.0])
    for t in range(4):
        foreseen = np.zeros(4)
        foreseen[t] = 0.8
        gain = modulated_returns(returns, foreseen) - returns
        assert gain[t] == pytest.approx(0.8 * 0.95 ** (3 - t))
        assert np.count_nonzero(gain) == 1


@given(hnp.arrays(np.float64, st.integers(1, 8), elements=st.floats(0, 1)), st.floats(0, 10))
def test_without_task_reward_predictions_pay_nothing(foreseen: np.ndarray, weight: float) -> None:
    returns = step_returns([0.0] * len(foreseen))
    assert not modulated_returns(returns, foreseen, weight).any()
    assert trajectory_reward(0.0, foreseen, weight) == 0.0


@given(hnp.arrays(np.float64, st.integers(1, 8), elements=st.floats(-5, 5)), st.floats(0, 10))
def test_without_match_nothing_changes(returns: np.ndarray, weight: float) -> None:
    zeros = np.zeros(len(returns))
    np.testing.assert_array_equal(modulated_returns(returns, zeros, weight), returns)
    assert trajectory_reward(float(returns[0]), zeros, weight) == returns[0]


@given(hnp.arrays(np.float64, st.integers(1, 8), elements=st.floats(0, 1)), st.floats(0.1, 5))
def test_a_better_match_never_pays_less(foreseen: np.ndarray, outcome: float) -> None:
    better = np.minimum(foreseen + 0.1, 1.0)
    assert trajectory_reward(outcome, better) >= trajectory_reward(outcome, foreseen)
    assert outcome <= trajectory_reward(outcome, foreseen) <= 2 * outcome + 1e-12


def test_penalties_by_hand() -> None:
    run = trajectory(
        [
            step(1, "a"),
            step(2, "b", valid=False),
            step(3, "c", valid=False, malformed=True),  # charged once
            step(4, "d", valid=True, malformed=True),
            step(5, "e", truncated=True),
            step(6, "f", valid=False, truncated=True),
        ],
        "g",
    )
    np.testing.assert_allclose(step_penalties(run, 0.1, 0.5), [0.0, 0.1, 0.1, 0.1, 0.5, 0.6])
    np.testing.assert_allclose(step_penalties(run), [0.0, 0.1, 0.1, 0.1, 0.0, 0.1])
