"""Advantage estimators: values by hand, the identities between them, and groups that must stay silent."""

import math
import statistics
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roleagent.errors import ConfigError
from roleagent.learning.advantages import base
from roleagent.learning.advantages.base import (
    Array,
    Normalisation,
    ScoredGroup,
    get_estimator,
    list_estimators,
    normalise,
    normalise_within,
    register,
)
from roleagent.learning.advantages.gigpo import Gigpo
from roleagent.learning.advantages.grpo import Grpo
from roleagent.learning.advantages.role_agent import RoleAgent

normalisations = st.sampled_from(["mean_std", "mean"])
values = st.floats(-3, 3).map(lambda x: round(x, 3))


@st.composite
def groups(draw: st.DrawFn) -> ScoredGroup:
    """Any scored group: trajectories without steps, dead groups and state groups of one among them."""
    lengths = draw(st.lists(st.integers(0, 5), min_size=1, max_size=6))
    steps = sum(lengths)

    def array(elements: st.SearchStrategy[float], size: int) -> Array:
        return np.asarray(draw(st.lists(elements, min_size=size, max_size=size)), dtype=np.float64)

    ids = draw(st.lists(st.integers(0, 3), min_size=steps, max_size=steps))
    ranks = {group: rank for rank, group in enumerate(dict.fromkeys(ids))}
    return ScoredGroup(
        task_id="task",
        outcomes=array(st.sampled_from([0.0, 1.0, 0.25]), len(lengths)),
        lengths=np.asarray(lengths, dtype=np.int64),
        returns=array(values, steps),
        r_pre=array(st.floats(0, 1), steps),
        penalties=array(st.sampled_from([0.0, 0.1]), steps),
        state_groups=np.asarray([ranks[group] for group in ids], dtype=np.int64),
        rewards=array(values, steps),
        values=array(values, steps),
    )


def make(
    outcomes: list[float],
    lengths: list[int],
    *,
    returns: list[float] | None = None,
    r_pre: list[float] | None = None,
    penalties: list[float] | None = None,
    states: list[int] | None = None,
) -> ScoredGroup:
    steps = sum(lengths)
    return ScoredGroup(
        task_id="task",
        outcomes=np.asarray(outcomes, dtype=np.float64),
        lengths=np.asarray(lengths, dtype=np.int64),
        returns=np.asarray(returns if returns is not None else [0.0] * steps, dtype=np.float64),
        r_pre=np.asarray(r_pre if r_pre is not None else [0.0] * steps, dtype=np.float64),
        penalties=np.asarray(penalties if penalties is not None else [0.0] * steps, dtype=np.float64),
        state_groups=np.asarray(states if states is not None else range(steps), dtype=np.int64),
        rewards=np.zeros(steps),
    )


def plain_normalise(numbers: list[float], normalisation: Normalisation) -> list[float]:
    if len(numbers) < 2 or max(numbers) - min(numbers) <= 1e-8:
        return [0.0] * len(numbers)
    mean = statistics.fmean(numbers)
    scale = statistics.stdev(numbers) + 1e-6 if normalisation == "mean_std" else 1.0
    return [(x - mean) / scale for x in numbers]


def plain_role_agent(
    group: ScoredGroup, alpha: float, weight: float, normalisation: Normalisation
) -> list[list[float]]:
    """The formulas of the method's section 1, one number at a time."""
    foreseen = [part.tolist() for part in group.split(group.r_pre)]
    trajectory_rewards = [
        outcome * (1 + weight * (statistics.fmean(row) if row else 0.0))
        for outcome, row in zip(group.outcomes.tolist(), foreseen, strict=True)
    ]
    by_trajectory = plain_normalise(trajectory_rewards, normalisation)
    step_rewards = [
        g * (1 + weight * p) - penalty
        for g, p, penalty in zip(group.returns, group.r_pre, group.penalties, strict=True)
    ]
    members = defaultdict(list)
    for step, state in enumerate(group.state_groups.tolist()):
        members[state].append(step)
    by_state = [0.0] * len(step_rewards)
    for steps in members.values():
        for step, value in zip(steps, plain_normalise([step_rewards[s] for s in steps], normalisation), strict=True):
            by_state[step] = value
    out, start = [], 0
    for row, length in enumerate(group.lengths.tolist()):
        out.append([by_trajectory[row] + alpha * by_state[start + t] for t in range(length)])
        start += length
    return out


def assert_same(left: list[Array], right: list[Array]) -> None:
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        np.testing.assert_array_equal(a, b)


# --- normalisation -------------------------------------------------------------------------------------------------


def test_normalise_by_hand_with_the_sample_deviation() -> None:
    # mean 0.25; squares sum to 0.75; sample variance 0.25, std 0.5 (the population's would be 0.433).
    expected = [0.75 / (0.5 + 1e-6), *[-0.25 / (0.5 + 1e-6)] * 3]
    np.testing.assert_allclose(normalise(np.array([1.0, 0.0, 0.0, 0.0])), expected, rtol=1e-12)
    np.testing.assert_allclose(normalise(np.array([1.0, 0.0, 0.0, 0.0]), "mean"), [0.75, -0.25, -0.25, -0.25])


@pytest.mark.parametrize("normalisation", ["mean_std", "mean"])
def test_equal_rewards_give_exactly_zero_although_their_std_is_not_zero(normalisation: Normalisation) -> None:
    # The method, section 6, fault 7. The computed std of equal numbers is not always 0, and dividing by it would
    # blow rounding up to advantages of about 1.
    rewards = np.full(10, 0.1 + 0.2)
    rewards[::2] = 0.3
    assert rewards.std(ddof=1) != 0.0
    assert not normalise(rewards, normalisation).any()
    assert not normalise(np.full(7, 0.1), normalisation).any()
    assert not normalise_within(rewards, np.zeros(10, dtype=np.int64), normalisation).any()


def test_the_span_decides() -> None:
    assert not normalise(np.array([0.0, 0.9e-8])).any()
    assert normalise(np.array([0.0, 1.1e-8])).all()
    together = normalise_within(np.array([0.0, 0.9e-8, 0.0, 1.1e-8]), np.array([0, 0, 1, 1]))
    assert not together[:2].any()
    assert together[2:].all()


def test_one_alone_is_zero() -> None:
    assert normalise(np.array([5.0])).tolist() == [0.0]
    assert normalise(np.zeros(0)).shape == (0,)
    assert normalise_within(np.array([5.0, 7.0]), np.array([0, 1])).tolist() == [0.0, 0.0]
    assert normalise_within(np.zeros(0), np.zeros(0, dtype=np.int64)).shape == (0,)


@given(st.lists(st.tuples(values, st.integers(0, 3)), min_size=1, max_size=20), normalisations)
def test_within_is_group_by_group(pairs: list[tuple[float, int]], normalisation: Normalisation) -> None:
    numbers = np.asarray([number for number, _ in pairs])
    ranks = {group: rank for rank, group in enumerate(dict.fromkeys(group for _, group in pairs))}
    ids = np.asarray([ranks[group] for _, group in pairs])
    result = normalise_within(numbers, ids, normalisation)
    for group in ranks.values():
        chosen = ids == group
        np.testing.assert_allclose(
            result[chosen], plain_normalise(numbers[chosen].tolist(), normalisation), rtol=1e-9, atol=1e-9
        )


@given(st.lists(values, min_size=2, max_size=12))
def test_normalised_values_have_mean_zero_and_keep_their_order(numbers: list[float]) -> None:
    result = normalise(np.asarray(numbers))
    assert abs(result.sum()) < 1e-6
    assert all(
        (a < b) == (x < y) for a, x in zip(numbers, result, strict=True) for b, y in zip(numbers, result, strict=True)
    )


# --- estimators ----------------------------------------------------------------------------------------------------


def test_grpo_by_hand() -> None:
    # mean 0.5, std sqrt(1/3).
    scale = math.sqrt(1 / 3) + 1e-6
    result = Grpo()(make([1, 0, 0, 1], [2, 1, 3, 1]))
    assert [part.tolist() for part in result] == [
        pytest.approx([0.5 / scale] * 2),
        pytest.approx([-0.5 / scale]),
        pytest.approx([-0.5 / scale] * 3),
        pytest.approx([0.5 / scale]),
    ]


def test_statistics_weigh_trajectories_and_not_steps() -> None:
    short, long = Grpo("mean")(make([1, 0], [1, 9]))
    assert short.tolist() == [0.5]  # over steps the mean would be 0.1
    assert long.tolist() == [-0.5] * 9


def test_gigpo_by_hand() -> None:
    # Two trajectories of two steps; the first steps share a state (0), the second steps are alone (1 and 2).
    group = make([1, 0], [2, 2], returns=[0.95, 1.0, 0.0, 0.0], states=[0, 1, 0, 2])
    winner, loser = Gigpo(normalisation="mean")(group)
    np.testing.assert_allclose(winner, [0.5 + 0.475, 0.5])
    np.testing.assert_allclose(loser, [-0.5 - 0.475, -0.5])
    winner, loser = Gigpo(alpha=2.0, normalisation="mean")(group)
    np.testing.assert_allclose(winner, [0.5 + 0.95, 0.5])
    episode, state = math.sqrt(0.5) + 1e-6, 0.95 * math.sqrt(0.5) + 1e-6
    winner, _ = Gigpo()(group)
    np.testing.assert_allclose(winner, [0.5 / episode + 0.475 / state, 0.5 / episode])


def test_role_agent_by_hand() -> None:
    # Both win; the first foresaw more. Step rewards of the shared state: 0.95 * 2 and 0.95 * 1.
    group = make([1, 1], [2, 2], returns=[0.95, 1.0, 0.95, 1.0], r_pre=[1.0, 0.5, 0.0, 0.5], states=[0, 1, 0, 2])
    estimator = RoleAgent(normalisation="mean")
    np.testing.assert_allclose(estimator.trajectory_rewards(group), [1.75, 1.25])
    np.testing.assert_allclose(estimator.step_rewards(group), [1.9, 1.5, 0.95, 1.5])
    first, second = estimator(group)
    np.testing.assert_allclose(first, [0.25 + 0.475, 0.25])
    np.testing.assert_allclose(second, [-0.25 - 0.475, -0.25])
    half = RoleAgent(normalisation="mean", weight=0.2)
    np.testing.assert_allclose(half.trajectory_rewards(group), [1.15, 1.05])


def test_class_defaults_are_the_recipe() -> None:
    assert RoleAgent() == RoleAgent(alpha=1.0, normalisation="mean_std", weight=1.0)
    assert Gigpo() == Gigpo(alpha=1.0, normalisation="mean_std")
    assert Grpo() == Grpo(normalisation="mean_std")


@given(groups(), st.floats(0, 3), st.floats(0, 3), normalisations)
def test_role_agent_equals_the_plain_formulas(
    group: ScoredGroup, alpha: float, weight: float, normalisation: Normalisation
) -> None:
    result = RoleAgent(alpha, normalisation, weight)(group)
    for part, expected in zip(result, plain_role_agent(group, alpha, weight, normalisation), strict=True):
        np.testing.assert_allclose(part, expected, rtol=1e-6, atol=1e-6)


@given(groups(), st.floats(0, 3), st.floats(0, 3), normalisations)
def test_without_match_role_agent_is_gigpo_exactly(
    group: ScoredGroup, alpha: float, weight: float, normalisation: Normalisation
) -> None:
    blind = replace(group, r_pre=np.zeros_like(group.r_pre))
    assert_same(RoleAgent(alpha, normalisation, weight)(blind), Gigpo(alpha, normalisation)(group))


@given(groups(), st.floats(0, 3), normalisations)
def test_with_alpha_zero_too_it_is_grpo_exactly(
    group: ScoredGroup, weight: float, normalisation: Normalisation
) -> None:
    blind = replace(group, r_pre=np.zeros_like(group.r_pre))
    assert_same(RoleAgent(0.0, normalisation, weight)(blind), Grpo(normalisation)(group))
    assert_same(Gigpo(0.0, normalisation)(group), Grpo(normalisation)(group))


@given(groups())
def test_a_batch_without_task_reward_teaches_nothing_whatever_was_predicted(group: ScoredGroup) -> None:
    failed = replace(
        group,
        outcomes=np.zeros_like(group.outcomes),
        returns=np.zeros_like(group.returns),
        penalties=np.zeros_like(group.penalties),
        rewards=np.zeros_like(group.rewards),
        values=np.zeros_like(group.rewards),
    )
    for name in list_estimators():
        assert not any(part.any() for part in get_estimator(name)(failed))


def test_penalties_are_subtracted_after_modulation_from_the_step_alone() -> None:
    # The same action at the same state, once refused: only its own step pays, and pays the plain amount.
    free = make([1, 1], [2, 2], returns=[0.5, 1, 0.5, 1], r_pre=[1, 1, 1, 1], states=[0, 1, 0, 1])
    fined = replace(free, penalties=np.array([0.1, 0.0, 0.0, 0.0]))
    estimator = RoleAgent(normalisation="mean")
    np.testing.assert_allclose(estimator.step_rewards(fined) - estimator.step_rewards(free), [-0.1, 0, 0, 0])
    np.testing.assert_array_equal(estimator.trajectory_rewards(fined), estimator.trajectory_rewards(free))
    first, second = estimator(fined)
    np.testing.assert_allclose(first, [-0.05, 0.0], atol=1e-12)
    np.testing.assert_allclose(second, [0.05, 0.0], atol=1e-12)


@given(groups(), st.floats(0, 3), normalisations)
def test_outputs_are_finite_and_have_the_trajectories_lengths(
    group: ScoredGroup, alpha: float, normalisation: Normalisation
) -> None:
    for name in list_estimators():
        result = get_estimator(name, {"alpha": alpha, "normalisation": normalisation})(group)
        assert [len(part) for part in result] == group.lengths.tolist()
        assert all(np.isfinite(part).all() for part in result)


# --- registry ------------------------------------------------------------------------------------------------------


def test_every_file_of_the_folder_is_found() -> None:
    files = {path.stem for path in Path(base.__file__).parent.glob("*.py")} - {"__init__", "base"}
    assert {type(get_estimator(name)).__module__.rpartition(".")[2] for name in list_estimators()} == files


def test_options_fill_the_knobs_that_an_estimator_has() -> None:
    options = {"alpha": 0.5, "normalisation": "mean", "weight": 0.2}
    assert get_estimator("role_agent", options) == RoleAgent(alpha=0.5, normalisation="mean", weight=0.2)
    assert get_estimator("gigpo", options) == Gigpo(alpha=0.5, normalisation="mean")
    assert get_estimator("grpo", options) == Grpo(normalisation="mean")
    assert get_estimator("role_agent") == RoleAgent()


def test_unknown_estimator_says_which_there_are() -> None:
    with pytest.raises(ConfigError, match="'gigpoo' is unknown: did you mean 'gigpo'"):
        get_estimator("gigpoo")
    with pytest.raises(ConfigError, match="choose one of dapo, dr_grpo, gigpo, "):
        get_estimator("xyz")


def test_one_dataclass_adds_an_estimator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_ESTIMATORS", dict(base._ESTIMATORS))

    @register("outcome")
    @dataclass(frozen=True)
    class Outcome:
        alpha: float = 2.0

        def trajectory_rewards(self, group: ScoredGroup) -> Array:
            return group.outcomes

        def __call__(self, group: ScoredGroup) -> list[Array]:
            return group.split(self.alpha * group.outcomes[group.owners])

    result = get_estimator("outcome", {"alpha": 3.0, "weight": 1.0})(make([1, 0], [2, 1]))
    assert [part.tolist() for part in result] == [[3.0, 3.0], [0.0]]
    with pytest.raises(ValueError, match="two advantage estimators are called 'outcome'"):
        register("outcome")(Grpo)


def test_a_group_whose_arrays_do_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"returns has shape \(2,\), expected \(3,\)"):
        make([1, 0], [1, 2], returns=[1.0, 0.0])
    with pytest.raises(ValueError, match="outcomes for"):
        make([1, 0, 1], [1, 2])
