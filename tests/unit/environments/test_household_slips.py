"""Slips and honest predictions of the demonstrator."""

from __future__ import annotations

from roleagent.environments.household.demonstrations import Demonstration, demonstrate
from roleagent.environments.household.generator import task_id


def demonstrations(slips: float) -> list[Demonstration]:
    return [demonstrate(task_id("small", "pretrain", index), index, {}, 20, slips) for index in range(150)]


def test_the_expert_recovers_from_slips_and_still_wins() -> None:
    played = demonstrations(0.1)
    steps = [step for one in played for step in one.steps]
    share = sum(step.slip for step in steps) / len(steps)
    assert 0.05 < share < 0.15
    assert all(one.success for one in played)


def test_without_slips_none_is_marked() -> None:
    assert not any(step.slip for one in demonstrations(0.0) for step in one.steps)


def test_what_was_seen_is_predicted_and_what_was_not_is_guessed() -> None:
    known, guessed, hits = 0, 0, 0
    for one in demonstrations(0.0):
        looked: set[str] = set()
        for step in one.steps:
            place = step.action.removeprefix("go to ").removeprefix("open ")
            moving = place != step.action
            if not moving or ", you see " not in step.next_state or place in looked:
                assert step.prediction == step.next_state
                known += 1
            else:
                guessed += 1
                hits += step.prediction == step.next_state
                assert step.prediction.partition(", you see ")[0] == step.next_state.partition(", you see ")[0]
            if moving and ", you see " in step.next_state:
                looked.add(place)
    assert known > 100
    assert guessed > 100
    assert 0 < hits < 0.6 * guessed  # a guess that is always right would know what it cannot


def test_guesses_do_not_depend_on_where_things_are() -> None:
    """The same room's guess for a place is the same whatever lies there: it is drawn from the seed alone."""
    first = demonstrate(task_id("small", "pretrain", 3), 7)
    again = demonstrate(task_id("small", "pretrain", 3), 8)
    assert [step.next_state for step in first.steps] == [step.next_state for step in again.steps]
    assert [step.prediction for step in first.steps] != [step.prediction for step in again.steps]
