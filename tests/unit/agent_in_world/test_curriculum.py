"""The task distribution: every invariant of the method, section 2, and faults 1 and 3 of section 6."""

from __future__ import annotations

import json
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roleagent.agent_in_world.curriculum import FORGOTTEN, Draw, TaskDistribution, bounded_mixture
from roleagent.config.models import AgentInWorldConfig
from roleagent.errors import ConfigError

shares = st.one_of(st.just(0.0), st.just(1.0), st.floats(0, 1))
temperatures = st.floats(-4, 2).map(lambda exponent: 10.0**exponent)
bounds = st.floats(1e-4, 1)
relevances = st.lists(st.one_of(st.just(0.0), st.floats(0, 1)), min_size=1, max_size=40)


def config(**values: float | bool | str) -> AgentInWorldConfig:
    return AgentInWorldConfig.model_validate({"max_probability": 1.0, **values})


def pool(size: int) -> list[str]:
    return [f"task-{index:03d}" for index in range(size)]


def distribution(
    size: int, relevance: dict[int, float] | None = None, **values: float | bool | str
) -> TaskDistribution:
    made = TaskDistribution(pool(size), config(**values))
    made.add_relevance({f"task-{index:03d}": value for index, value in (relevance or {}).items()})
    made.end_iteration()
    return made


# -- the formula -----------------------------------------------------------------------------------------------------


def test_a_mixture_computed_by_hand() -> None:
    """M = 4, lambda = 0.5, tau = 0.5, relevance (1, 0.5, 0, 0): softmax of (2, 1) is (0.7311, 0.2689)."""
    p = distribution(4, {0: 1.0, 1: 0.5}, softmax_temperature=0.5).probabilities()
    hot = 1 / (1 + math.exp(-1))
    np.testing.assert_allclose(p, [0.125 + 0.5 * hot, 0.125 + 0.5 * (1 - hot), 0.125, 0.125], rtol=1e-12)


def test_the_bound_moves_mass_to_the_other_relevant_tasks_first() -> None:
    """With bound 0.4 task 0 may take 0.275 of the relevance part; the 0.225 that is left goes to task 1."""
    p = distribution(4, {0: 1.0, 1: 0.5}, softmax_temperature=0.5, max_probability=0.4).probabilities()
    np.testing.assert_allclose(p, [0.4, 0.35, 0.125, 0.125], rtol=1e-12)


def test_what_no_relevant_task_can_take_goes_to_the_others_evenly() -> None:
    parts = distribution(5, {0: 1.0, 1: 0.5}, max_probability=0.25).mixture()
    np.testing.assert_allclose(parts.probabilities, [0.25, 0.25, 1 / 6, 1 / 6, 1 / 6], rtol=1e-12)
    np.testing.assert_allclose(parts.relevance, [0.15, 0.15, 0, 0, 0], rtol=1e-12)


def test_what_a_success_rate_leaves_of_relevance_by_hand() -> None:
    """Relevance 1 for all; success rates 0, 1/4, 3/4, 1, unknown. Learnable: 4 s (1 - s) = 0, 3/4, 3/4, 0, 1."""
    for emphasis, left in (("failing", [1, 0.75, 0.25, 0, 1]), ("learnable", [0, 0.75, 0.75, 0, 1])):
        made = distribution(5, dict.fromkeys(range(5), 1.0), softmax_temperature=0.5, mixture=0.4, emphasis=emphasis)
        made.observe({f"task-{index:03d}": rate for index, rate in enumerate((0.0, 0.25, 0.75, 1.0))})
        weights = np.array([math.exp(value / 0.5) if value else 0.0 for value in left])
        np.testing.assert_allclose(made.probabilities(), 0.6 / 5 + 0.4 * weights / weights.sum(), rtol=1e-12)


def test_without_relevance_the_distribution_is_uniform() -> None:
    assert distribution(7).probabilities().tolist() == [1 / 7] * 7
    assert distribution(7, {2: 1.0}, mixture=0.0).probabilities().tolist() == [1 / 7] * 7
    assert distribution(7, {2: 1.0}, enabled=False).probabilities().tolist() == [1 / 7] * 7


@given(relevances, shares, temperatures, bounds)
def test_invariants_of_the_mixture(relevance: list[float], share: float, temperature: float, bound: float) -> None:
    effective = np.array(relevance)
    size = len(relevance)
    parts = bounded_mixture(effective, share=share, temperature=temperature, max_probability=bound)
    p = parts.probabilities
    assert p.sum() == pytest.approx(1, abs=1e-12)
    assert p.min() >= (1 - share) / size - 1e-15
    assert p.max() <= max(bound, 1 / size) + 1e-12
    assert parts.relevance.min() >= 0
    assert not parts.relevance[effective == 0].any()
    relevant = effective > 0
    if share > 1e-9:
        assert (parts.relevance[relevant] > 0).all()
    if relevant.any():
        # more relevance never means less probability
        assert p[relevant].min() >= p[~relevant].max(initial=0) - 1e-12
        order = np.argsort(effective[relevant])
        assert (np.diff(p[relevant][order]) >= -1e-12).all()


@given(relevances, st.floats(0.01, 1), st.floats(0.05, 2))
def test_a_bound_that_does_not_bind_changes_nothing(relevance: list[float], share: float, temperature: float) -> None:
    effective = np.array(relevance)
    free = bounded_mixture(effective, share=share, temperature=temperature, max_probability=1.0)
    largest = float(free.probabilities.max())
    if largest < 1:
        same = bounded_mixture(effective, share=share, temperature=temperature, max_probability=largest * (1 + 1e-9))
        np.testing.assert_allclose(same.probabilities, free.probabilities, atol=1e-9)


@given(relevances, st.floats(0.1, 1), st.floats(0.05, 2), st.floats(0.05, 0.5))
def test_below_the_bound_the_proportions_of_the_softmax_stay(
    relevance: list[float], share: float, temperature: float, bound: float
) -> None:
    effective = np.array(relevance)
    parts = bounded_mixture(effective, share=share, temperature=temperature, max_probability=bound)
    limit = max(bound, 1 / len(relevance))
    below = (effective > 0) & (parts.probabilities < limit - 1e-9)
    if below.sum() >= 2 and share > 0:
        weights = np.exp((effective[below] - effective[below].max()) / temperature)
        ratio = parts.relevance[below] / weights
        np.testing.assert_allclose(ratio, ratio[0], rtol=1e-6)


# -- drawing ---------------------------------------------------------------------------------------------------------


@given(st.integers(1, 30), st.dictionaries(st.integers(0, 29), st.floats(0, 1)), shares, st.integers(0, 99))
def test_draws_are_distinct_tasks_of_the_pool(size: int, relevance: dict[int, float], share: float, seed: int) -> None:
    made = distribution(size, {key: value for key, value in relevance.items() if key < size}, mixture=share)
    for count in (0, 1, size):
        draws = made.draw(count, seed, 3)
        assert len(draws) == count
        assert len({draw.task_id for draw in draws}) == count
        assert {draw.task_id for draw in draws} <= set(pool(size))
    assert made.draw(size, seed, 3) == made.draw(size, seed, 3)
    p = dict(zip(made.task_ids, made.probabilities().tolist(), strict=True))
    assert all(draw.probability == p[draw.task_id] for draw in made.draw(size, seed, 3))
    assert all(draw.source == "uniform" for draw in made.draw(size, seed, 3) if draw.task_id not in made.relevance)


def test_the_first_draw_follows_p_and_its_source_the_mixture() -> None:
    """20,000 draws; every count within 5 standard deviations of its expectation."""
    made = distribution(8, {0: 1.0, 1: 0.4, 2: 0.1}, softmax_temperature=0.3, max_probability=0.3)
    parts = made.mixture()
    trials = 20_000
    counts: Counter[tuple[str, str]] = Counter()
    for iteration in range(trials):
        (draw,) = made.draw(1, 11, iteration)
        counts[draw.task_id, draw.source] += 1
    for index, task_id in enumerate(made.task_ids):
        for source, mass in (("uniform", parts.uniform[index]), ("relevance", parts.relevance[index])):
            deviation = math.sqrt(trials * mass * (1 - mass))
            assert abs(counts[task_id, source] - trials * mass) <= 5 * deviation, (task_id, source)


def test_later_draws_follow_p_among_what_is_left() -> None:
    """p = (0.7, 0.1, 0.1, 0.1): P(task 0 among two) = 0.7 + 0.3 * 0.7 / 0.9 = 0.9333."""
    made = distribution(4, {0: 1.0}, mixture=0.6)
    np.testing.assert_allclose(made.probabilities(), [0.7, 0.1, 0.1, 0.1])
    trials = 10_000
    hits = sum(any(draw.task_id == "task-000" for draw in made.draw(2, 5, iteration)) for iteration in range(trials))
    expected = 0.7 + 0.3 * 0.7 / 0.9
    assert abs(hits / trials - expected) <= 5 * math.sqrt(expected * (1 - expected) / trials)


def test_a_pure_relevance_mixture_still_fills_the_batch() -> None:
    made = distribution(10, {3: 1.0, 4: 1.0}, mixture=1.0)
    firsts = Counter()
    for iteration in range(400):
        draws = made.draw(3, 1, iteration)
        assert {draw.task_id for draw in draws[:2]} == {"task-003", "task-004"}
        assert draws[2].probability == 0
        firsts[draws[2].task_id] += 1
    assert len(firsts) == 8  # the rest is filled at random, not in the order of the pool
    assert max(firsts.values()) < 100


def test_draws_depend_on_seed_and_iteration() -> None:
    made = distribution(50, {1: 1.0})
    assert made.draw(10, 1, 1) != made.draw(10, 1, 2)
    assert made.draw(10, 1, 1) != made.draw(10, 2, 1)


def test_too_small_a_pool_is_a_clear_error() -> None:
    with pytest.raises(ConfigError, match=r"cannot draw 5 different tasks from a pool of 4.*tasks_per_iteration"):
        distribution(4).draw(5, 0, 0)


# -- the known faults of public code ---------------------------------------------------------------------------------


class RecordingEnvironment:
    """Knows nothing of the curriculum: it only notes which task it is really asked to play."""

    def __init__(self) -> None:
        self.played: Counter[str] = Counter()

    def reset(self, task_id: str) -> None:
        self.played[task_id] += 1


def play(made: TaskDistribution, iterations: int, count: int = 8) -> Counter[str]:
    environment = RecordingEnvironment()
    for iteration in range(iterations):
        for draw in made.draw(count, 3, iteration):
            environment.reset(draw.task_id)
    return environment.played


def test_fault_1_reweighting_changes_what_is_played() -> None:
    """Ten failed tasks among 200: uniform, they are 5 % of what is played; reshaped, more than 40 %."""
    failed = dict.fromkeys(range(0, 200, 20), 0.8)
    before = play(distribution(200), 400)
    after = play(distribution(200, failed), 400)
    names = [f"task-{index:03d}" for index in failed]
    share_before = sum(before[name] for name in names) / sum(before.values())
    share_after = sum(after[name] for name in names) / sum(after.values())
    assert abs(share_before - 0.05) < 5 * math.sqrt(0.05 * 0.95 / 3200)
    assert share_after > 0.4
    # each of them is drawn more, not just all together
    assert min(after[name] for name in names) > 3 * max(before[name] for name in names)
    # and no task is starved: every one keeps at least (1 - lambda) / M
    assert len(after) > 195


def test_fault_3_weights_do_not_only_grow() -> None:
    """A task that is retrieved every iteration stays bounded; left alone it fades; mastered it is at the base rate."""
    made = distribution(10, decay=0.9)
    for _ in range(100):
        made.add_relevance({"task-001": 0.8})
        made.end_iteration()
        assert made.relevance["task-001"] == 0.8
    values = []
    for _ in range(30):
        made.end_iteration()
        values.append(made.relevance["task-001"])
    np.testing.assert_allclose(values, 0.8 * 0.9 ** np.arange(1, 31))
    for _ in range(100):
        made.end_iteration()
    assert made.relevance == {}
    assert made.probabilities().tolist() == [0.1] * 10


def test_fault_3_the_state_survives_a_resume_exactly() -> None:
    """Through JSON, as a checkpoint goes, and continued: every later number and draw is the same."""
    rng = np.random.default_rng(5)

    def one_iteration(made: TaskDistribution, n: int, observed: np.ndarray, found: np.ndarray) -> list[Draw]:
        draws = made.draw(6, 9, n)
        made.observe({draw.task_id: float(rate) for draw, rate in zip(draws, observed, strict=True)})
        made.add_relevance({f"task-{index:03d}": float(value) for index, value in enumerate(found)})
        made.end_iteration()
        return draws

    def rounds(start: int, stop: int, data: list[tuple[np.ndarray, np.ndarray]], made: TaskDistribution) -> list[Draw]:
        return [draw for n in range(start, stop) for draw in one_iteration(made, n, *data[n])]

    data = [(rng.random(6).round(3), rng.random(40) * (rng.random(40) < 0.1)) for _ in range(20)]
    straight = TaskDistribution(pool(40), config())
    expected = rounds(0, 20, data, straight)[60:]
    first = TaskDistribution(pool(40), config())
    rounds(0, 10, data, first)
    resumed = TaskDistribution(pool(40), config())
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict(), sort_keys=True)))
    assert rounds(10, 20, data, resumed) == expected
    assert resumed.state_dict() == straight.state_dict()
    assert resumed.probabilities().tolist() == straight.probabilities().tolist()


def test_a_state_saved_in_the_middle_of_an_iteration_is_complete() -> None:
    made = distribution(5, {1: 0.9})
    made.observe({"task-001": 0.5})
    made.add_relevance({"task-002": 0.7})
    resumed = TaskDistribution(pool(5), config())
    resumed.load_state_dict(json.loads(json.dumps(made.state_dict())))
    made.end_iteration()
    resumed.end_iteration()
    assert resumed.relevance == made.relevance == {"task-001": pytest.approx(0.81), "task-002": 0.7}
    assert resumed.state_dict() == made.state_dict()


# -- relevance and success -------------------------------------------------------------------------------------------


def test_success_cuts_relevance_and_a_mastered_task_returns_to_the_base_rate() -> None:
    made = distribution(20, {0: 0.8, 1: 0.8, 2: 0.8}, softmax_temperature=0.2)
    made.observe({"task-000": 1.0, "task-001": 0.5, "task-002": 0.0})
    p = made.probabilities()
    assert p[0] == p[19] == pytest.approx(0.5 / 20)
    assert p[2] > p[1] > p[0]
    ratio = made.mixture().relevance[2] / made.mixture().relevance[1]
    assert ratio == pytest.approx(math.exp((0.8 - 0.4) / 0.2))
    made.observe({"task-000": 0.5})  # it fails again, and its relevance counts again
    assert made.probabilities()[0] > 0.5 / 20


def test_a_task_that_was_never_retrieved_never_gains() -> None:
    """Only retrieval gives relevance, and only failed tasks are retrieved."""
    made = distribution(30, {5: 0.9, 6: 0.5})
    made.observe({f"task-{index:03d}": 1.0 for index in range(10, 20)})
    p = made.probabilities()
    untouched = [index for index in range(30) if index not in (5, 6)]
    assert set(p[untouched]) == {0.5 / 30}
    assert made.metrics()["relevant_tasks"] == 2


def test_relevance_counts_from_the_next_draw_on_whatever_the_order() -> None:
    first, second = distribution(5), distribution(5)
    first.add_relevance({"task-001": 0.3})
    assert first.probabilities().tolist() == [0.2] * 5
    first.observe({"task-001": 0.25})
    second.observe({"task-001": 0.25})
    second.add_relevance({"task-001": 0.1})
    second.add_relevance({"task-001": 0.3, "task-002": 0.0})
    first.end_iteration()
    second.end_iteration()
    assert first.state_dict() == second.state_dict()
    assert first.relevance == {"task-001": 0.3}


def test_the_closer_failure_counts_when_old_and_new_meet() -> None:
    made = distribution(5, {1: 0.9}, decay=0.5)
    made.add_relevance({"task-001": 0.2, "task-002": 0.2})
    made.end_iteration()
    assert made.relevance == {"task-001": 0.45, "task-002": 0.2}


def test_what_has_faded_is_forgotten() -> None:
    made = distribution(5, {1: 1.0}, decay=0.1)
    for _ in range(3):
        made.end_iteration()
    assert made.relevance == {"task-001": pytest.approx(FORGOTTEN)} or made.relevance == {}
    made.end_iteration()
    assert made.relevance == {}


def test_solved_tasks_carry_the_iteration() -> None:
    made = TaskDistribution(pool(4), config())
    assert made.observe({"task-000": 1.0, "task-001": 0.99, "elsewhere": 1.0}) == ["task-000"]
    made.end_iteration()
    made.end_iteration()
    assert made.observe({"task-000": 0.0, "task-002": 1.0}) == ["task-002"]
    assert made.solved == {"task-000": 1, "task-002": 3}
    assert made.success_rates == {"task-000": 0.0, "task-001": 0.99, "task-002": 1.0}


def test_tasks_outside_the_pool_are_counted_and_left_out() -> None:
    made = TaskDistribution(pool(3), config())
    assert made.add_relevance({"elsewhere": 0.5, "task-001": 0.5}) == 1
    made.end_iteration()
    assert made.relevance == {"task-001": 0.5}


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan])
def test_numbers_out_of_range_are_refused(value: float) -> None:
    made = TaskDistribution(pool(3), config())
    with pytest.raises(ValueError, match="not in"):
        made.observe({"task-001": value})
    with pytest.raises(ValueError, match="not in"):
        made.add_relevance({"task-001": value})


def test_a_copy_is_independent() -> None:
    made = distribution(5, {1: 0.9})
    twin = made.copy()
    twin.add_relevance({"task-002": 1.0})
    twin.observe({"task-001": 1.0})
    twin.end_iteration()
    assert made.relevance == {"task-001": 0.9}
    assert made.success_rates == {}
    assert twin.relevance == {"task-001": pytest.approx(0.81), "task-002": 1.0}


def test_a_state_of_another_pool_or_version_is_refused() -> None:
    state = distribution(5).state_dict()
    with pytest.raises(ConfigError, match="another pool"):
        TaskDistribution(pool(6), config()).load_state_dict(state)
    with pytest.raises(ConfigError, match="version 0"):
        distribution(5).load_state_dict({**state, "version": 0})


def test_an_empty_or_repeating_pool_is_refused() -> None:
    with pytest.raises(ConfigError, match="empty"):
        TaskDistribution([], config())
    with pytest.raises(ConfigError, match="twice"):
        TaskDistribution(["a", "a"], config())


def test_metrics_by_hand() -> None:
    made = distribution(4, {0: 1.0}, mixture=0.6)
    metrics = made.metrics([Draw("task-000", "relevance", 0.7), Draw("task-001", "uniform", 0.1)])
    entropy = -(0.7 * math.log(0.7) + 3 * 0.1 * math.log(0.1))
    assert metrics == {
        "entropy": pytest.approx(entropy),
        "perplexity": pytest.approx(math.exp(entropy)),
        "max_probability": pytest.approx(0.7),
        "relevant_tasks": 1,
        "relevance_share": pytest.approx(0.6),
        "drawn_by_relevance": 0.5,
    }
    assert "drawn_by_relevance" not in made.metrics()
    assert distribution(8).metrics()["perplexity"] == pytest.approx(8)
