"""The expert solves every game it is given, knowing only what it has seen."""

from __future__ import annotations

import pytest
from household_games import kitchen, real_games

from roleagent.environments.household.demonstrations import demonstrate, play
from roleagent.environments.household.engine import apply, is_won
from roleagent.environments.household.expert import Expert, Memory, Wish, understand
from roleagent.environments.household.game import Game, Goal
from roleagent.environments.household.generator import LEVELS, TASK_TYPES, WORDINGS, task_id
from roleagent.environments.household.pddl import read_problem
from roleagent.environments.household.words import room_text
from roleagent.errors import EnvironmentFault
from roleagent.types import Task


@pytest.mark.parametrize("level", list(LEVELS))
def test_it_solves_every_type_at_every_level(level: str) -> None:
    solved = dict.fromkeys(TASK_TYPES, 0)
    for index in range(240 if level == "small" else 60):
        found = demonstrate(task_id(level, "train", index), max_steps=150)
        assert found.success, found
        assert found.label is None
        assert all(step.valid for step in found.steps)
        solved[found.task.task_type] += 1
    assert len(set(solved.values())) == 1


def test_small_homes_fit_into_twenty_steps() -> None:
    lengths = [len(demonstrate(task_id("small", "heldout", index), max_steps=60).steps) for index in range(300)]
    assert sum(length <= 20 for length in lengths) >= 0.97 * len(lengths)


def test_one_medium_home_in_nine_does_not_fit_into_twenty_steps() -> None:
    lengths = [len(demonstrate(task_id("medium", "heldout", index), max_steps=60).steps) for index in range(256)]
    assert sum(length <= 20 for length in lengths) == 228  # the study's held-out tasks and its step limit


def test_it_wins_all_real_games_of_the_seen_rooms() -> None:
    steps = 0
    games = real_games("valid_seen")
    for record in games:
        game = read_problem(record["pddl_problem"], record["task"])
        found = play(game, Task(record["id"], "alfworld", game.goal.task_type, "heldout"), 0, {}, 200)
        assert found.success, record["id"]
        steps += len(found.steps)
    assert steps / len(games) < 30


def moves(game: Game) -> list[tuple[str, str, str]]:
    state = game.start
    expert = Expert(game.goal_text, room_text(game))
    made = []
    while not is_won(game, state):
        move = expert.move()
        made.append(tuple(move))
        state, text, valid = apply(game, state, move.action)
        assert valid
        expert.observe(move.action, text)
    return made


def test_a_whole_game_move_by_move() -> None:
    assert moves(kitchen()) == [
        ("search_go", "find mug in cabinet 1, fridge 1, microwave 1, shelf 1, sinkbasin 1", "go to cabinet 1"),
        ("search_open", "find mug in cabinet 1, fridge 1, microwave 1, shelf 1, sinkbasin 1", "open cabinet 1"),
        ("take", "find mug 1 in cabinet 1", "take mug 1 from cabinet 1"),
        ("treat_go", "clean mug 1 with sinkbasin 1", "go to sinkbasin 1"),
        ("treat", "clean mug 1 with sinkbasin 1", "clean mug 1 with sinkbasin 1"),
        ("place_go", "place mug 1 in cabinet 1", "go to cabinet 1"),
        ("place", "place mug 1 in cabinet 1", "move mug 1 to cabinet 1"),
    ]


def test_it_remembers_the_second_object_and_opens_the_target() -> None:
    game = kitchen(Goal("pick_two_obj_and_place", "Mug", "Fridge", count=2), "put two mug in fridge.")
    game = Game(
        receptacles=game.receptacles,
        things=game.things,
        can_contain=game.can_contain,
        goal=game.goal,
        goal_text=game.goal_text,
        start=game.start._replace(contents=((), (), (), (0, 1, 2, 3, 4, 5), ())),
    )
    assert [action for _, _, action in moves(game)] == [
        "go to cabinet 1",
        "open cabinet 1",
        "go to fridge 1",
        "open fridge 1",
        "go to microwave 1",
        "open microwave 1",
        "go to shelf 1",
        "take mug 2 from shelf 1",
        "go to fridge 1",
        "move mug 2 to fridge 1",
        "go to shelf 1",
        "take mug 1 from shelf 1",
        "go to fridge 1",
        "move mug 1 to fridge 1",
    ]


def test_it_remembers_the_lamp() -> None:
    game = kitchen(Goal("look_at_obj_in_light", "Mug", lamp="DeskLamp"), "look at mug under the desklamp.")
    assert moves(game)[2:] == [
        ("take", "find mug 1 in cabinet 1", "take mug 1 from cabinet 1"),
        ("search_go", "find desklamp in fridge 1, microwave 1, shelf 1, sinkbasin 1", "go to fridge 1"),
        ("search_open", "find desklamp in fridge 1, microwave 1, shelf 1, sinkbasin 1", "open fridge 1"),
        ("search_go", "find desklamp in microwave 1, shelf 1, sinkbasin 1", "go to microwave 1"),
        ("search_open", "find desklamp in microwave 1, shelf 1, sinkbasin 1", "open microwave 1"),
        ("search_go", "find desklamp in shelf 1, sinkbasin 1", "go to shelf 1"),
        ("use", "find desklamp 1 in shelf 1", "use desklamp 1"),
    ]


@pytest.mark.parametrize("task_type", TASK_TYPES)
@pytest.mark.parametrize("wording", [0, 1])
def test_every_wording_is_understood(task_type: str, wording: int) -> None:
    lamp = task_type == "look_at_obj_in_light"
    text = WORDINGS[task_type][wording].format(object="mug", place="desklamp" if lamp else "shelf")
    verb = {"pick_c": task_type[5:10] if "clean" in task_type else task_type[5:9], "pick_h": "heat"}.get(
        task_type[:6], ""
    )
    assert understand(text) == Wish(
        "mug",
        "" if lamp else "shelf",
        "desklamp" if lamp else "",
        verb,  # type: ignore[arg-type]
        2 if "two" in task_type else 1,
    )


def test_other_goals_are_refused() -> None:
    with pytest.raises(EnvironmentFault, match="ALFWorld's wordings"):
        understand("tidy up.")
    with pytest.raises(EnvironmentFault, match="has no cabinet"):
        Expert(
            "put a mug in cabinet.", "You are in the middle of a room. Looking quickly around you, you see a desk 1."
        )


def test_memory() -> None:
    memory = Memory.of("Looking quickly around you, you see a desk 2, a desk 1, and a safe 1.")
    assert memory.order == ["desk 2", "desk 1", "safe 1"]
    for action, text in (
        ("go to desk 1", "You arrive at desk 1. On the desk 1, you see a cd 2, and a mug 1."),
        ("take cd 2 from desk 1", "You pick up the cd 2 from the desk 1."),
        ("go to safe 1", "You arrive at safe 1. The safe 1 is closed."),
    ):
        memory.observe(action, text)
    assert (memory.at, memory.held, memory.seen) == ("safe 1", "cd 2", {"mug 1": "desk 1"})
    assert (memory.closed, memory.searched, memory.visited) == ({"safe 1"}, ["desk 1"], ["desk 1", "safe 1"])
    memory.observe("open safe 1", "You open the safe 1. The safe 1 is open. In it, you see nothing.")
    memory.observe("move cd 2 to safe 1", "You move the cd 2 to the safe 1.")
    assert (memory.held, memory.seen, memory.closed) == ("", {"mug 1": "desk 1", "cd 2": "safe 1"}, set())
    memory.observe("close safe 1", "You close the safe 1.")
    assert memory.closed == {"safe 1"}
    memory.observe("go to desk 2", "Nothing happens.")
    assert memory.at == "desk 2"
    memory.observe("examine desk 2", "On the desk 2, you see a pen 1.")
    assert memory.seen["pen 1"] == "desk 2"
