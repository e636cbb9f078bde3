"""The estimators beside Role-Agent's own: by hand, and GiGPO against a slow reading of its paper."""

import random
import statistics
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_advantages import assert_same, groups, make
from test_scoring import config, episode, random_batch

from roleagent.config.recipes import RECIPES
from roleagent.errors import ConfigError
from roleagent.learning.advantages.base import ScoredGroup, advantages_of, get_estimator, list_estimators
from roleagent.learning.advantages.dapo import Dapo
from roleagent.learning.advantages.dr_grpo import DrGrpo
from roleagent.learning.advantages.grpo import Grpo
from roleagent.learning.advantages.gspo import Gspo
from roleagent.learning.advantages.ppo import Ppo, generalised_advantages
from roleagent.learning.advantages.reinforce_pp import ReinforcePP
from roleagent.learning.advantages.rloo import Rloo
from roleagent.learning.scoring import make_estimator, score_batch
from roleagent.types import Trajectory

#: Drawing a whole group is slow; each property is simple.
lean = settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])

# --- outcome estimators ----------------------------------------------------------------------------------------------


def test_dr_grpo_by_hand() -> None:
    # mean 0.25: no division.
    result = DrGrpo()(make([1, 0, 0, 0], [2, 1, 1, 3]))
    assert [part.tolist() for part in result] == [[0.75] * 2, [-0.25], [-0.25], [-0.25] * 3]


def test_rloo_by_hand() -> None:
    # Each against the mean of the other three: 1 - 0, 0 - 1/3, ...
    result = Rloo()(make([1, 0, 0, 0], [2, 1, 1, 3]))
    assert [part.tolist() for part in result] == [
        pytest.approx([1.0] * 2),
        pytest.approx([-1 / 3]),
        pytest.approx([-1 / 3]),
        pytest.approx([-1 / 3] * 3),
    ]
    assert Rloo()(make([1], [2]))[0].tolist() == [0.0, 0.0]


@lean
@given(groups())
def test_rloo_compares_with_the_others_alone(group: ScoredGroup) -> None:
    outcomes = group.outcomes.tolist()
    for row, part in enumerate(Rloo()(group)):
        others = outcomes[:row] + outcomes[row + 1 :]
        expected = outcomes[row] - statistics.fmean(others) if others else 0.0
        np.testing.assert_allclose(part, expected, rtol=0, atol=1e-9)


def test_reinforce_pp_by_hand() -> None:
    # Group means 0.5 and 0.25; what is left of all eight: +-0.5 twice each, 0.75 and -0.25 three times. Squares sum to
    # 4 * 0.25 + 0.5625 + 3 * 0.0625 = 1.75, so the deviation is sqrt(1.75 / 7) = 0.5.
    batch = [make([1, 0, 0, 1], [1, 1, 1, 1]), make([1, 0, 0, 0], [2, 1, 1, 1])]
    first, second = ReinforcePP().over_batch(batch)
    scale = 0.5 + 1e-6
    assert [part.tolist() for part in first] == [pytest.approx([x / scale]) for x in (0.5, -0.5, -0.5, 0.5)]
    assert second[0].tolist() == pytest.approx([0.75 / scale] * 2)
    assert second[3].tolist() == pytest.approx([-0.25 / scale])


def test_reinforce_pp_with_one_trajectory_a_task_uses_the_batch_mean() -> None:
    # 1, 0, 0, 0: mean 0.25, deviation 0.5.
    batch = [make([outcome], [1]) for outcome in (1, 0, 0, 0)]
    found = [parts[0].item() for parts in ReinforcePP().over_batch(batch)]
    assert found == pytest.approx([0.75 / (0.5 + 1e-6), *[-0.25 / (0.5 + 1e-6)] * 3])


@lean
@given(st.lists(groups(), max_size=2))
def test_batch_estimators_keep_order_and_lengths(batch: list[ScoredGroup]) -> None:
    for name in list_estimators():
        found = advantages_of(get_estimator(name), batch)
        assert [[len(part) for part in parts] for parts in found] == [group.lengths.tolist() for group in batch]
        assert all(np.isfinite(part).all() for parts in found for part in parts)


@lean
@given(groups())
def test_dapo_and_gspo_have_the_advantage_of_grpo(group: ScoredGroup) -> None:
    assert_same(Dapo()(group), Grpo()(group))
    assert_same(Gspo()(group), Grpo()(group))


# --- PPO -------------------------------------------------------------------------------------------------------------


def test_generalised_advantages_by_hand() -> None:
    # gamma 0.5, lambda 0.5. delta_3 = 1 - 0.2 = 0.8; delta_2 = 0 + 0.5 * 0.2 - 0.4 = -0.3;
    # delta_1 = 0 + 0.5 * 0.4 - 0.1 = 0.1. B_3 = 0.8; B_2 = -0.3 + 0.25 * 0.8 = -0.1; B_1 = 0.1 - 0.025 = 0.075.
    found = generalised_advantages(np.array([0.0, 0.0, 1.0]), np.array([0.1, 0.4, 0.2]), 0.5, 0.5)
    np.testing.assert_allclose(found, [0.075, -0.1, 0.8], atol=1e-12)


def test_ppo_by_hand() -> None:
    # One step each, so B = r - penalty - V: 1 - 0.25 = 0.75 and 0 - 0.1 - 0.15 = -0.25; mean 0.25, deviation sqrt(0.5).
    group = replace(
        make([1, 0], [1, 1], penalties=[0.0, 0.1]), rewards=np.array([1.0, 0.0]), values=np.array([0.25, 0.15])
    )
    scale = np.sqrt(0.5) + 1e-6
    assert [part.item() for part in Ppo()(group)] == pytest.approx([0.5 / scale, -0.5 / scale])
    assert [part.item() for part in Ppo().value_targets(group)] == pytest.approx([1.0, -0.1])
    assert [part.item() for part in Ppo(normalisation="mean")(group)] == pytest.approx([0.5, -0.5])


@lean
@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(-1, 1)), min_size=1, max_size=8), st.floats(0.1, 1))
def test_lambda_spans_one_step_to_the_whole_return(steps: list[tuple[float, float]], discount: float) -> None:
    rewards, values = np.array(steps).T
    ahead = [*values[1:], 0.0]
    one_step = [r + discount * n - v for r, n, v in zip(rewards, ahead, values, strict=True)]
    np.testing.assert_allclose(generalised_advantages(rewards, values, discount, 0.0), one_step, atol=1e-9)
    returns = [sum(discount**k * r for k, r in enumerate(rewards[t:])) for t in range(len(rewards))]
    np.testing.assert_allclose(generalised_advantages(rewards, values, discount, 1.0), returns - values, atol=1e-9)


@lean
@given(groups())
def test_perfect_values_leave_no_advantage(group: ScoredGroup) -> None:
    rewards = group.rewards - group.penalties
    perfect = []
    for row in group.split(rewards):
        following, values = 0.0, []
        for reward in row[::-1]:
            following = reward + 0.95 * following
            values.append(following)
        perfect += values[::-1]
    known = replace(group, values=np.asarray(perfect, dtype=np.float64))
    for part, targets, values in zip(
        Ppo(normalisation="mean")(known), Ppo().value_targets(known), known.split(np.asarray(perfect)), strict=True
    ):
        np.testing.assert_allclose(part, 0.0, atol=1e-9)
        np.testing.assert_allclose(targets, values, atol=1e-9)


def test_ppo_without_values_is_refused() -> None:
    with pytest.raises(ValueError, match="needs the values of its states"):
        Ppo()(make([1, 0], [1, 1]))
    batch = random_batch(1, 2, 3)
    with pytest.raises(ValueError, match="needs the values"):
        score_batch(batch, config(advantage={"estimator": "ppo"}))


def test_ppo_scores_a_batch() -> None:
    # Two steps, the second paid: V = 0.5, 0.5. delta_2 = 0.5; delta_1 = 0.95 * 0.5 - 0.5 = -0.025;
    # B_1 = -0.025 + 0.95 * 0.95 * 0.5.
    run = episode("a", 0, ["hall", "desk", "safe"], [(), ()], win=True)
    scored = score_batch([run], config(advantage={"estimator": "ppo"}), {"a/0": np.array([0.5, 0.5])})
    np.testing.assert_allclose(scored.value_targets["a/0"], [0.475 + 0.95 * 0.95 * 0.5, 1.0])
    raw = np.array([-0.025 + 0.95 * 0.95 * 0.5, 0.5])
    np.testing.assert_allclose(scored.step_advantages["a/0"], (raw - raw.mean()) / (raw.std(ddof=1) + 1e-6))
    assert scored.values is not None


# --- recipes ---------------------------------------------------------------------------------------------------------


def test_every_estimator_has_a_recipe_and_every_recipe_an_estimator() -> None:
    assert set(RECIPES) == set(list_estimators())


@pytest.mark.parametrize("name", list_estimators())
def test_class_defaults_are_what_the_recipe_configures(name: str) -> None:
    assert make_estimator(config(advantage={"estimator": name})) == get_estimator(name)


def test_a_value_head_and_an_estimator_for_it_go_together() -> None:
    with pytest.raises(ConfigError, match="'ppo' needs a value head"):
        make_estimator(config(advantage={"estimator": "ppo"}, learner={"value_coefficient": 0.0}))
    with pytest.raises(ConfigError, match="'grpo' uses none"):
        make_estimator(config(advantage={"estimator": "grpo"}, learner={"value_coefficient": 0.5}))


# --- GiGPO, slowly ---------------------------------------------------------------------------------------------------


def slow_common(a: str, b: str) -> int:
    """Length of the longest common subsequence, by the table."""
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            table[i + 1][j + 1] = table[i][j] + 1 if x == y else max(table[i][j + 1], table[i + 1][j])
    return table[-1][-1]


def slow_gigpo(batch: list[Trajectory], *, alpha: float, gamma: float, similarity: float, penalty: float) -> dict:
    """GiGPO (arXiv 2505.10978, equations 3 and 5 to 8), with loops and dictionaries only."""
    found = {}
    for task in {run.task.task_id for run in batch}:
        group = sorted((run for run in batch if run.task.task_id == task), key=lambda run: run.sample_index)

        def scaled(numbers: list[float]) -> list[float]:
            if len(numbers) < 2 or max(numbers) - min(numbers) <= 1e-8:
                return [0.0] * len(numbers)
            mean, deviation = statistics.fmean(numbers), statistics.stdev(numbers)
            return [(number - mean) / (deviation + 1e-6) for number in numbers]

        macro = scaled([run.score for run in group])
        anchors: list[str] = []
        members: dict[int, list[tuple[str, int, float]]] = {}
        for run in group:
            for t, step in enumerate(run.steps):
                state = " ".join(step.state.lower().split())
                place = 0
                while place < len(anchors):
                    lengths = len(state) + len(anchors[place])
                    if state == anchors[place] or 2 * slow_common(state, anchors[place]) >= similarity * lengths:
                        break
                    place += 1
                else:
                    anchors.append(state)
                paid = sum(gamma**k * later.reward for k, later in enumerate(run.steps[t:]))
                value = paid - (0.0 if step.valid_action else penalty)
                members.setdefault(place, []).append((run.trajectory_id, t, value))
        micro = {}
        for visits in members.values():
            for (name, t, _), value in zip(visits, scaled([value for *_, value in visits]), strict=True):
                micro[name, t] = value
        for run, outcome in zip(group, macro, strict=True):
            found[run.trajectory_id] = [outcome + alpha * micro[run.trajectory_id, t] for t in range(len(run.steps))]
    return found


@pytest.mark.parametrize("similarity", [1.0, 0.9, 0.6])
@pytest.mark.parametrize("seed", range(4))
def test_gigpo_equals_a_slow_reading_of_its_paper(seed: int, similarity: float) -> None:
    draw = random.Random(seed)
    rooms = ["You are in the hall.", "You are in the  Hall.", "You are in the hall!!", "You are in a barn.", "Nothing."]
    batch = []
    for task in "ab":
        for sample in range(5):
            states = [draw.choice(rooms) for _ in range(draw.randint(2, 6))]
            batch.append(episode(task, sample, states, [()] * (len(states) - 1), win=draw.random() < 0.5, invalid=(2,)))
    section = {"estimator": "gigpo", "alpha": 0.7, "state_similarity": similarity}
    scored = score_batch(batch, config(advantage=section, rollout={"invalid_action_penalty": 0.25}))
    expected = slow_gigpo(batch, alpha=0.7, gamma=0.95, similarity=similarity, penalty=0.25)
    assert expected.keys() == scored.step_advantages.keys()
    for name, advantages in expected.items():
        np.testing.assert_allclose(scored.step_advantages[name], advantages, atol=1e-9)
    assert any(len(set(row)) > 1 for row in expected.values())


# --- identities ------------------------------------------------------------------------------------------------------


@lean
@given(st.integers(0, 1000), st.sampled_from([0.5, 0.9, 1.0]))
def test_role_agent_becomes_gigpo_becomes_grpo(seed: int, similarity: float) -> None:
    """Through the configuration: no match -> GiGPO to the last bit; alpha 0 too -> GRPO."""
    draw = random.Random(seed)
    batch = [
        episode(
            task,
            sample,
            states := [draw.choice(["hall", "desk", "safe"]) for _ in range(draw.randint(2, 4))],
            [("",)] * (len(states) - 1),
            win=draw.random() < 0.5,
        )
        for task in "ab"
        for sample in range(3)
    ]
    section: dict[str, object] = {"state_similarity": similarity}

    def advantages(**change: object) -> dict:
        return score_batch(batch, config(advantage=section | change)).step_advantages

    for names, alpha in ((("role_agent", "gigpo"), 0.7), (("role_agent", "gigpo", "grpo"), 0.0)):
        first, *others = (advantages(estimator=name, alpha=alpha) for name in names)
        for other in others:
            for key, values in first.items():
                np.testing.assert_array_equal(values, other[key])


def test_the_ablation_without_prediction_rewards_none() -> None:
    batch = random_batch(3, 4, 6, horizon=1)
    without = {"estimator": "role_agent_without_prediction"}
    found = score_batch(batch, config(advantage=without)).step_advantages
    predicting = score_batch(batch, config(advantage=without, world_in_agent={"enabled": True})).step_advantages
    full = score_batch(batch, config()).step_advantages
    for key, values in found.items():
        np.testing.assert_array_equal(values, predicting[key])
    assert any((values != full[key]).any() for key, values in found.items())


def test_no_estimator_has_a_field_that_the_configuration_does_not_fill() -> None:
    filled = {"alpha", "normalisation", "weight", "form", "discount", "gae_lambda"}
    for name in list_estimators():
        assert {field.name for field in fields(get_estimator(name))} <= filled  # type: ignore[arg-type]
