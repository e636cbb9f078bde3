"""Slips and honest predictions of the demonstrator."""

from __future__ import annotations

import re

import pytest

from roleagent.environments.household.demonstrations import Demonstration, demonstrate, expectation
from roleagent.environments.household.expert import Expert
from roleagent.environments.household.generator import task_id
from roleagent.environments.household.words import NOTHING_HAPPENS


def demonstrations(slips: float) -> list[Demonstration]:
    return [demonstrate(task_id("small", "pretrain", index), index, {}, 20, slips) for index in range(150)]


def test_the_expert_recovers_from_slips_and_still_wins() -> None:
    played = demonstrations(0.1)
    steps = [step for one in played for step in one.steps]
    share = sum(step.slip for step in steps) / len(steps)
    assert 0.05 < share < 0.15
    assert sum(one.success for one in played) > 0.95 * len(played)  # a loop of slips may use the steps up


def test_without_slips_none_is_marked() -> None:
    assert not any(step.slip for one in demonstrations(0.0) for step in one.steps)


def test_what_was_seen_is_predicted_and_nothing_is_expected_where_nobody_looked() -> None:
    known, guessed, hits = 0, 0, 0
    for one in demonstrations(0.0):
        looked: set[str] = set()
        for step in one.steps:
            place = step.action.removeprefix("go to ").removeprefix("open ")
            moving = place != step.action
            if not moving or place in looked:
                assert step.predictions == (step.next_state,)
                known += 1
            else:
                guessed += 1
                hits += step.predictions == (step.next_state,)
                assert step.predictions[0].endswith((", you see nothing.", " is closed."))
            if moving and ", you see " in step.next_state:
                looked.add(place)
    assert known > 100
    assert guessed > 100
    assert 0 < hits < 0.9 * guessed  # an expectation that is always right would know what it cannot


@pytest.mark.parametrize(
    ("action", "answer", "expected"),
    [
        ("go to shelf 1", "You arrive at shelf 1. On the shelf 1, you see a cd 1.", "On the shelf 1, you see nothing."),
        ("go to drawer 1", "You arrive at drawer 1. On the drawer 1, you see nothing.", "The drawer 1 is closed."),
        ("go to desk 1", "You arrive at desk 1. On the desk 1, you see a pen 1.", "On the desk 1, you see a pen 1."),
        ("go to shelf 9", NOTHING_HAPPENS, "On the shelf 9, you see nothing."),
    ],
)
def test_the_expected_arrival_depends_on_the_kind_of_the_place_alone(action: str, answer: str, expected: str) -> None:
    expert = Expert("put a mug in shelf.", "Looking around, you see a desk 1, a drawer 1, and a shelf 1.")
    expert.observe("go to desk 1", "You arrive at desk 1. On the desk 1, you see a pen 1.")
    place = action.removeprefix("go to ")
    assert expectation(expert, action, answer) == f"You arrive at {place}. {expected}"


def test_the_expected_content_and_grab_do_not_know_the_answer() -> None:
    expert = Expert("put a mug in shelf.", "Looking around, you see a desk 1, a drawer 1, and a shelf 1.")
    opened = "You open the drawer 1. The drawer 1 is open. In it, you see "
    assert expectation(expert, "open drawer 1", f"{opened}a mug 1.") == f"{opened}nothing."
    assert expectation(expert, "take mug 2 from desk 1", NOTHING_HAPPENS) == "You pick up the mug 2 from the desk 1."
    assert expectation(expert, "use desklamp 1", "You turn on the desklamp 1.") == "You turn on the desklamp 1."


def test_a_refused_slip_is_made_again_and_then_left() -> None:
    steps = [step for one in demonstrations(0.12) for step in zip(one.steps, one.steps[1:], strict=False)]
    after_refusal = [(one, two) for one, two in steps if one.slip and one.next_state == NOTHING_HAPPENS]
    again = [two.action == one.action for one, two in after_refusal if two.slip]
    assert all(again)
    assert 0.25 < len(again) / len(after_refusal) < 0.45


def test_slips_are_those_of_an_imitator() -> None:
    """It takes what is not there, with the reasoning of one who sees it, and overlooks what is."""
    slips = [step for one in demonstrations(0.12) for step in one.steps if step.slip]
    imagined = [step for step in slips if step.action.startswith("take ") and step.reasoning.endswith(step.action[-9:])]
    overlooked = [
        (one, two)
        for demo in demonstrations(0.12)
        for one, two in zip(demo.steps, demo.steps[1:], strict=False)
        if one.slip
        and not two.slip
        and one.action.startswith("go to ")
        and re.match(r"find (second )?\w+ \d", two.reasoning)
    ]
    assert len(imagined) > 20
    assert len(overlooked) > 5


def test_what_was_overlooked_is_found_in_a_second_round() -> None:
    rounds = 0
    for index in range(60):
        demo = demonstrate(task_id("small", "pretrain", index), index, {}, 60, oversights=0.5)
        plain = demonstrate(task_id("small", "pretrain", index), index, {}, 60)
        first = next((t for t, step in enumerate(demo.steps) if step.slip), None)
        if first is None:
            assert demo.steps == plain.steps
            continue
        # Up to the oversight nothing changes; there it would have been taken.
        assert demo.steps[:first] == plain.steps[:first]
        assert plain.steps[first].action.startswith("take ")
        assert not demo.steps[first].action.startswith("take ")
        places = [step.action for step in demo.steps[: first + 12] if step.action.startswith("go to ")]
        rounds += len(places) > len(set(places)) and demo.success
    assert rounds > 10


def test_overlooking_forgets_only_what_is_wanted_and_not_done() -> None:
    expert = Expert("put two mug in shelf.", "you see a desk 1, and a shelf 1.")
    expert.observe("go to desk 1", "You arrive at desk 1. On the desk 1, you see a mug 1, and a pen 1.")
    expert.overlook()
    assert expert.memory.seen == {"pen 1": "desk 1"}
    assert expert.memory.searched == ["desk 1"]
    expert.observe("go to shelf 1", "You arrive at shelf 1. On the shelf 1, you see a mug 2.")
    expert.overlook()
    assert expert.memory.seen["mug 2"] == "shelf 1", "it lies where it should"
