"""Several predicted states: what the demonstrator imagines, from what it knows and from nothing else."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roleagent.environments.household.demonstrations import demonstrate, foresee
from roleagent.environments.household.engine import apply, is_won
from roleagent.environments.household.expert import Expert
from roleagent.environments.household.game import Game, State
from roleagent.environments.household.generator import generate, task_id
from roleagent.environments.household.words import room_text

HOMES = [task_id("small", "pretrain", index) for index in range(60)]


def reached(game: Game, steps: int) -> tuple[State, Expert]:
    """Return state and expert after some steps of the expert, one before the end at most."""
    state, expert = game.start, Expert(game.goal_text, room_text(game))
    for _ in range(steps):
        action = expert.move().action
        after, answer, _ = apply(game, state, action)
        if is_won(game, after):
            break
        state = after
        expert.observe(action, answer)
    return state, expert


def test_a_search_and_a_delivery_by_hand() -> None:
    game = generate("household-small-pretrain-000007")
    state, expert = reached(game, 0)
    room = expert.memory.order
    assert expert.move().action == f"go to {room[0]}"
    texts = foresee(game, state, expert, expert.move().action, 4)
    expected: list[str] = []
    for place in room:
        if place.split()[0] in ("cabinet", "drawer", "fridge", "microwave", "safe"):
            expected.append(f"You arrive at {place}. The {place} is closed.")
            expected.append(f"You open the {place}. The {place} is open. In it, you see nothing.")
        else:
            expected.append(f"You arrive at {place}. On the {place}, you see nothing.")
    assert list(texts) == expected[:4]


@pytest.mark.parametrize("home", HOMES[:20])
def test_what_is_known_is_foreseen_exactly_and_the_end_ends_it(home: str) -> None:
    steps = demonstrate(home, horizon=4).steps
    taken = max(t for t, step in enumerate(steps) if step.action.startswith("take "))
    behind = [step.next_state for step in steps]
    for t in range(taken + 1, len(steps)):
        ahead = behind[t : t + 4]
        assert len(steps[t].predictions) <= 4
        if not any(text.endswith((" is closed.", "you see nothing.")) for text in steps[t].predictions):
            assert list(steps[t].predictions) == ahead, "where it has looked before it knows"
    assert len(steps[-1].predictions) == 1, "the game is won: nothing is behind it"


def test_most_deliveries_are_foreseen_to_their_end() -> None:
    exact = total = 0
    for home in HOMES:
        steps = demonstrate(home, horizon=2).steps
        for step, later in zip(steps[-2:-1], steps[-1:], strict=True):
            total += 1
            exact += step.predictions == (step.next_state, later.next_state)
    assert total == len(HOMES)
    assert exact > 0.5 * total


def test_more_states_change_neither_play_nor_first_prediction() -> None:
    for home in HOMES[:15]:
        one = demonstrate(home, 3, {"closed target": 0.5}, 20, 0.1)
        four = demonstrate(home, 3, {"closed target": 0.5}, 20, 0.1, horizon=4)
        assert [step._replace(predictions=step.predictions[:1]) for step in four.steps] == list(one.steps)
        assert four.label == one.label


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2000), st.integers(0, 12), st.randoms(use_true_random=False))
def test_hidden_contents_are_in_no_prediction(index: int, steps: int, random: object) -> None:
    game = generate(task_id("small", "pretrain", index))
    state, expert = reached(game, steps)
    hidden = [
        number
        for number, place in enumerate(game.receptacles)
        # What lies where it has to be brought decides when the game is won, which the game may tell.
        if place.name not in (*expert.memory.searched, expert.memory.at) and place.kind != game.goal.receptacle
    ]
    shuffled = list(hidden)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    contents = list(state.contents)
    for number, other in zip(hidden, shuffled, strict=True):
        contents[number] = state.contents[other]
    other_state = state._replace(contents=tuple(contents))
    action = expert.move().action
    found = foresee(game, state, expert, action, 4)
    assert found == foresee(replace(game, start=other_state), other_state, expert, action, 4)
    known = {expert.memory.held, *expert.memory.seen, *expert.memory.order}
    named = {name for text in found for name in re.findall(r"[a-z]+ \d+", text)}
    assert named <= known


def test_a_twin_knows_the_same_and_keeps_its_own() -> None:
    expert = Expert("put a mug in desk.", "you see a desk 1, and a shelf 1.")
    expert.observe("go to desk 1", "You arrive at desk 1. On the desk 1, you see a pen 1.")
    twin = expert.twin()
    assert twin.memory == expert.memory
    twin.observe("go to shelf 1", "You arrive at shelf 1. On the shelf 1, you see a mug 1.")
    assert twin.move().action == "take mug 1 from shelf 1"
    assert expert.memory.seen == {"pen 1": "desk 1"}
    assert expert.move().action == "go to shelf 1"
