"""Scripted failures: they fail by the engine, and their labels say why."""

from __future__ import annotations

from collections import Counter
from dataclasses import astuple
from functools import cache

import pytest

from roleagent.environments.household.demonstrations import DEFAULT_HABITS, Demonstration, demonstrate
from roleagent.environments.household.engine import apply, is_won
from roleagent.environments.household.expert import PLAN_LENGTH
from roleagent.environments.household.failures import MISTAKES
from roleagent.environments.household.generator import generate, task_id
from roleagent.environments.household.words import NOTHING_HAPPENS
from roleagent.errors import ConfigError

MAX_STEPS = 20


@cache
def failures_of(kind: str) -> tuple[Demonstration, ...]:
    """Demonstrations of a demonstrator who always makes this mistake, where it led to failure."""
    found = (demonstrate(task_id("small", "pretrain", i), 3, {kind: 1.0}, MAX_STEPS) for i in range(400))
    return tuple(one for one in found if one.label is not None)


@pytest.mark.parametrize("kind", list(MISTAKES))
def test_every_mistake_occurs_fails_and_is_labelled(kind: str) -> None:
    failed = failures_of(kind)
    assert len(failed) >= 10
    for one in failed:
        assert one.label is not None
        assert not one.success
        assert len(one.steps) == MAX_STEPS
        assert one.label.failure_type == kind
        assert 1 <= one.label.critical_step <= MAX_STEPS
        for text in (one.label.root_cause, one.label.lesson, one.label.retrieval_query):
            assert 2 <= len(text.split()) <= 15
        assert one.label.retrieval_query.startswith(f"{kind}: ")
        game = generate(one.task.task_id)
        state = game.start
        for step in one.steps:
            state, text, valid = apply(game, state, step.action)
            assert (text, valid) == (step.next_state, step.valid)
            assert not is_won(game, state)


@pytest.mark.parametrize("kind", list(MISTAKES))
def test_before_the_mistake_it_is_the_expert(kind: str) -> None:
    for one in failures_of(kind)[:30]:
        assert one.label is not None
        expert = demonstrate(one.task.task_id, max_steps=MAX_STEPS)
        common = 0
        while one.steps[common] == expert.steps[common]:
            common += 1
        assert common < one.label.critical_step


def critical(one: Demonstration) -> str:
    assert one.label is not None
    return one.steps[one.label.critical_step - 1].action


def test_the_critical_step_is_the_mistake() -> None:
    for one in failures_of("repeated exploration"):
        assert any(step.action == critical(one) for step in one.steps[: one.label.critical_step - 1])  # type: ignore[union-attr]
    for one in failures_of("missing treatment"):
        assert critical(one).startswith("move ")
        assert not any(step.action.split()[0] in ("clean", "heat", "cool") for step in one.steps)
    for one in failures_of("wrong treatment"):
        asked = one.task.task_type.split("_")[1]
        assert critical(one).split()[0] in {"clean", "heat", "cool"} - {asked}
    for one in failures_of("wrong receptacle"):
        assert critical(one).startswith("move ")
        goal = generate(one.task.task_id).goal
        assert critical(one).split(" to ")[1].split()[0] != (goal.receptacle or "").lower()
    for one in failures_of("wrong object"):
        assert critical(one).startswith("take ")
        assert critical(one).split()[1] != generate(one.task.task_id).goal.object.lower()
    for one in failures_of("lamp not used"):
        assert critical(one).startswith("examine ")
        assert not any(step.action.startswith("use ") for step in one.steps)
    for one in failures_of("second object forgotten"):
        assert sum(step.action.startswith("move ") for step in one.steps) == 1
    for one in failures_of("unopened receptacle"):
        at = one.label.critical_step - 1  # type: ignore[union-attr]
        assert one.steps[at].state.endswith("is closed.")
        assert not any(step.action.startswith("open ") for step in one.steps[at:])
    for kind in ("invalid action", "closed target"):
        for one in failures_of(kind):
            at = one.label.critical_step - 1  # type: ignore[union-attr]
            assert {step.next_state for step in one.steps[at:]} == {NOTHING_HAPPENS}
            assert len({step.action for step in one.steps[at:]}) == 1
    for one in failures_of("premature placement"):
        at = one.label.critical_step - 1  # type: ignore[union-attr]
        assert critical(one).replace("move", "take").replace(" to ", " from ") == one.steps[at - 1].action


def test_default_habits_are_a_fair_mixture() -> None:
    assert set(DEFAULT_HABITS) == set(MISTAKES)
    found = [demonstrate(task_id("small", "pretrain", i), 1, DEFAULT_HABITS, MAX_STEPS) for i in range(1200)]
    failed = Counter(one.label.failure_type for one in found if one.label)
    assert 0.3 < sum(failed.values()) / len(found) < 0.45
    assert set(failed) == set(MISTAKES)
    assert max(failed.values()) < 6 * min(failed.values())
    assert all((one.label is None) == one.success for one in found)


def test_demonstrations_are_pure_and_seeds_matter() -> None:
    texts = [task_id("small", "train", index) for index in range(60)]
    first = [demonstrate(text, 1, DEFAULT_HABITS) for text in texts]
    assert [demonstrate(text, 1, DEFAULT_HABITS) for text in reversed(texts)] == first[::-1]
    assert [demonstrate(text, 2, DEFAULT_HABITS) for text in texts] != first
    for text in texts:  # the pure expert's seed decides its guesses and nothing else
        one, two = demonstrate(text, 1), demonstrate(text, 2, {})
        assert [step._replace(predictions=()) for step in one.steps] == [
            step._replace(predictions=()) for step in two.steps
        ]


def test_a_demonstration_reads_as_one_episode() -> None:
    one = demonstrate("household-small-pretrain-000007", 0, DEFAULT_HABITS)
    assert one.steps[0].state.startswith("You are in the middle of a room.")
    for before, after in zip(one.steps, one.steps[1:], strict=False):
        assert before.next_state == after.state
    assert all(2 <= len(step.reasoning.split()) <= 4 + 2 * PLAN_LENGTH for step in one.steps)
    assert (one.task.environment, one.task.split) == ("household", "train")
    assert demonstrate("household-small-heldout-000007").task.split == "heldout"


def test_the_step_limit_is_kept() -> None:
    one = demonstrate("household-small-pretrain-000007", max_steps=3)
    assert len(one.steps) == 3
    assert not one.success
    assert one.label is None
    cut = [demonstrate(task_id("small", "pretrain", i), 3, {"wrong receptacle": 1.0}, 8) for i in range(200)]
    assert any(one.label for one in cut)
    assert all(1 <= one.label.critical_step <= 8 for one in cut if one.label)


def test_unknown_habits_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown failure type 'laziness'"):
        demonstrate("household-small-train-000001", 0, {"laziness": 0.5})


def test_labels_name_real_things() -> None:
    for kind in MISTAKES:
        for one in failures_of(kind)[:20]:
            assert one.label is not None
            assert all("{" not in str(part) for part in astuple(one.label))
