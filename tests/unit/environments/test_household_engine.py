"""The engine says what the stock engine says, and keeps the rules of the PDDL domain."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product

import pytest
from household_games import Transcript, kitchen, transcripts
from hypothesis import given, settings
from hypothesis import strategies as st

from roleagent.environments.household.engine import admissible, apply, is_won
from roleagent.environments.household.game import (
    CLEAN,
    COOL,
    HOT,
    NOBODY,
    SLICED,
    TOGGLED,
    Game,
    Goal,
    Receptacle,
    State,
    Thing,
)
from roleagent.environments.household.generator import generate, task_id
from roleagent.environments.household.words import NOTHING_HAPPENS, listing, room_text, thing_text


def rebuild(record: Transcript) -> Game:
    """Build a game from what a transcript shows: every receptacle's first content, every ability that was offered."""
    names = re.findall(r"a ([a-z]+ \d+)", record.first)
    offered = {command for step in record.steps for command in step.admissible}
    contents: dict[str, list[str]] = {name: [] for name in names}
    doors, moved, seen = set(), set(), set()
    for step in record.steps:
        shown = re.search(r"(?:On the|The) (\w+ \d+)(?: is open\. In it)?, you see (.*)\.$", step.text)
        if shown and shown[1] not in seen:
            seen.add(shown[1])
            contents[shown[1]] = [name for name in re.findall(r"a (\w+ \d+)", shown[2]) if name not in moved]
        if "is closed." in step.text or "is open." in step.text:
            doors.add(step.text.split("The ")[1].split(" is ")[0])
        if step.action.startswith("move "):
            moved.add(step.action[5:].split(" to ")[0])
    objects = sorted(
        {name for inside in contents.values() for name in inside},
        key=lambda name: (name.split()[0], -int(name.split()[1])),
    )
    abilities = {
        "take": "pickupable",
        "use": "toggleable",
        "clean": "cleanable",
        "heat": "heatable",
        "cool": "coolable",
    }
    can: dict[str, set[str]] = {name: set() for name in objects}
    contain: dict[str, set[str]] = {}
    for command in offered:
        verb, _, rest = command.partition(" ")
        name = re.split(" from | with | to ", rest)[0]
        if verb in abilities and name in can:
            can[name].add(abilities[verb])
        if verb == "move":
            contain.setdefault(rest.split(" to ")[1].split()[0], set()).add(name.split()[0])
    kinds = {"sinkbasin": "SinkBasin", "microwave": "Microwave", "fridge": "Fridge"}
    words = re.sub(
        r"\b(put|some|it|a|the|in|on|and|with|under|find|look|at|them|examine)\b", "", record.goal[:-1]
    ).split()
    state, count = {"clean": (CLEAN, 1), "heat": (HOT, 1), "cool": (COOL, 1), "two": (0, 2)}.get(words[0], (0, 1))
    thing, place = words[-2:]
    lamp = place if place == "desklamp" else None
    number = {name: index for index, name in enumerate(objects)}
    location = {name: index for index, name in enumerate(names, 1)}
    home = {name: location[place] for place, inside in contents.items() for name in inside}
    return Game(
        receptacles=tuple(Receptacle(n, kinds.get(n.split()[0], n.split()[0]), location[n], n in doors) for n in names),
        things=tuple(Thing(name, name.split()[0], frozenset(can[name])) for name in objects),
        can_contain={kinds.get(place, place): frozenset(inside) for place, inside in contain.items()},
        goal=Goal(record.task_type, thing, None if lamp else kinds.get(place, place), state, count, lamp),
        goal_text=record.goal,
        start=State(
            0,
            NOBODY,
            0,
            tuple(tuple(sorted(number[name] for name in contents[place])) for place in names),
            (0,) * len(objects),
            tuple((home[name],) for name in objects),
        ),
    )


@pytest.mark.parametrize("record", transcripts(), ids=lambda record: record.task_type)
def test_recorded_games_of_the_stock_engine_are_replayed_word_for_word(record: Transcript) -> None:
    game = rebuild(record)
    state = game.start
    assert room_text(game) == record.first
    assert admissible(game, state) == record.admissible
    assert len(record.steps) >= 4
    for step in record.steps:
        state, text, valid = apply(game, state, step.action)
        assert (text, valid) == (step.text, True)
        assert admissible(game, state) == step.admissible
        assert is_won(game, state) == step.won


def test_all_six_task_types_are_recorded() -> None:
    assert len({record.task_type for record in transcripts()}) == 6


def say(game: Game, state: State, *commands: str) -> tuple[State, list[str]]:
    texts = []
    for command in commands:
        state, text, _ = apply(game, state, command)
        texts.append(text)
    return state, texts


def test_texts() -> None:
    game = kitchen()
    state, texts = say(
        game,
        game.start,
        "look",
        "inventory",
        "go to cabinet 1",
        "open cabinet 1",
        "take mug 1 from cabinet 1",
        "inventory",
        "look",
        "examine cabinet 1",
        "close cabinet 1",
        "examine cabinet 1",
        "go to shelf 1",
        "move mug 1 to shelf 1",
        "use desklamp 1",
    )
    assert texts == [
        "You are in the middle of a room. Looking quickly around you, you see nothing.",
        "You are not carrying anything.",
        "You arrive at cabinet 1. The cabinet 1 is closed.",
        "You open the cabinet 1. The cabinet 1 is open. In it, you see a mug 1.",
        "You pick up the mug 1 from the cabinet 1.",
        "You are carrying: a mug 1.",
        "You are facing the cabinet 1. Next to it, you see nothing.",
        "The cabinet 1 is open. In it, you see nothing.",
        "You close the cabinet 1.",
        "The cabinet 1 is closed.",
        "You arrive at shelf 1. On the shelf 1, you see a apple 1, a desklamp 1, a knife 1, a mug 2, and a statue 1.",
        "You move the mug 1 to the shelf 1.",
        "You turn on the desklamp 1.",
    ]
    assert apply(game, state, "examine shelf 1")[1] == (
        "On the shelf 1, you see a apple 1, a desklamp 1, a knife 1, a mug 2, a mug 1, and a statue 1."
    )
    assert apply(game, state, "help")[1].startswith("Available commands:\n  look: ")


def test_listing() -> None:
    assert [listing([]), listing(["a 1"]), listing(["a 1", "b 1"]), listing(["a 1", "b 1", "c 2"])] == [
        "nothing",
        "a a 1",
        "a a 1, and a b 1",
        "a a 1, a b 1, and a c 2",
    ]


def test_look_shows_what_was_moved_between_neighbours() -> None:
    game = kitchen()
    together = tuple(replace(place, location=4) if place.name == "cabinet 1" else place for place in game.receptacles)
    game = replace(game, receptacles=together)
    facing = "You are facing the cabinet 1, and shelf 1. Next to it, you see"
    state, texts = say(
        game,
        game.start,
        "go to shelf 1",
        "open cabinet 1",
        "take mug 2 from shelf 1",
        "look",
        "move mug 2 to cabinet 1",
    )
    assert texts[3] == f"{facing} nothing."
    assert say(game, state, "look")[1] == [f"{facing} a mug 2."]
    state, texts = say(game, state, "take mug 2 from cabinet 1", "look", "move mug 2 to shelf 1", "look")
    assert [texts[1], texts[3]] == [f"{facing} nothing.", f"{facing} a mug 2."], "now it is the cabinet that it left"
    state, _ = say(game, state, "take mug 2 from shelf 1", "move mug 2 to shelf 1")
    assert say(game, state, "look")[1] == [f"{facing} a mug 2."]
    away, _ = say(game, state, "go to fridge 1")
    assert say(game, away, "look")[1] == ["You are facing the fridge 1. Next to it, you see nothing."]


def test_what_started_cold_but_cannot_be_cooled_does_not_win() -> None:
    game = kitchen(Goal("cool", "Statue", "Shelf", state=COOL))
    cold = game.start._replace(flags=(0, 0, 0, 0, 0, COOL))
    assert thing_text(game, cold, 5) == "This is a cold statue 1."
    assert not is_won(game, cold)


def test_slicing_needs_a_knife_in_hand_and_the_object_here() -> None:
    game = kitchen()
    state, texts = say(game, game.start, "go to shelf 1", "slice apple 1 with knife 1")
    assert texts[-1] == NOTHING_HAPPENS
    state, texts = say(game, state, "take knife 1 from shelf 1", "slice apple 1 with knife 1", "examine knife 1")
    assert texts[1:] == ["You sliced the apple 1 with the knife 1.", "There's nothing special about knife 1."]
    assert say(game, state, "slice mug 2 with knife 1")[1] == [NOTHING_HAPPENS]
    state, _ = say(game, state, "go to fridge 1")
    assert say(game, state, "slice apple 1 with knife 1")[1] == [NOTHING_HAPPENS]


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (0, "There's nothing special about apple 1."),
        (CLEAN, "This is a clean apple 1."),
        (HOT, "This is a hot apple 1."),
        (COOL, "This is a cold apple 1."),
        (SLICED, "This is a sliced apple 1."),
        (CLEAN | HOT, "This is a hot and clean apple 1."),
        (CLEAN | COOL, "This is a cool and clean apple 1."),
        (CLEAN | SLICED, "This is a clean sliced apple 1."),
        (HOT | SLICED, "This is a hot sliced apple 1."),
        (COOL | SLICED, "This is a cool sliced apple 1."),
        (CLEAN | HOT | SLICED, "This is a hot and clean sliced apple 1."),
        (CLEAN | COOL | SLICED, "This is a cool and clean sliced apple 1."),
    ],
)
def test_examined_states(flags: int, text: str) -> None:
    game = kitchen()
    assert thing_text(game, game.start._replace(flags=(flags, 0, 0, 0, 0, 0)), 0) == text


def test_examined_lamp_and_mug() -> None:
    game = kitchen()
    assert thing_text(game, game.start, 1) == "There's nothing special about desklamp 1."
    assert thing_text(game, game.start._replace(flags=(0, TOGGLED, 0, 0, 0, 0)), 1) == "This desklamp 1 is on."
    assert thing_text(game, game.start, 3) == "This is a normal mug 2. In it, you see nothing."


def test_heating_and_cooling_undo_each_other_and_washing_stays() -> None:
    game = kitchen()
    state, _ = say(game, game.start, "go to shelf 1", "take apple 1 from shelf 1", "go to sinkbasin 1")
    state, texts = say(
        game, state, "clean apple 1 with sinkbasin 1", "go to microwave 1", "heat apple 1 with microwave 1"
    )
    assert texts[0] == "You clean the apple 1 using the sinkbasin 1."
    assert texts[2] == "You heat the apple 1 using the microwave 1."
    assert state.flags[0] == CLEAN | HOT
    state, texts = say(game, state, "go to fridge 1", "cool apple 1 with fridge 1")
    assert texts[1] == "You cool the apple 1 using the fridge 1."
    assert state.flags[0] == CLEAN | COOL


@pytest.mark.parametrize(
    ("path", "command"),
    [
        ((), "open cabinet 1"),
        ((), "take mug 1 from cabinet 1"),
        ((), "examine shelf 1"),
        ((), "use desklamp 1"),
        ((), "go to attic 1"),
        ((), "go shelf 1"),
        ((), ""),
        ((), "Look"),
        (("go to shelf 1",), "go to shelf 1"),
        (("go to shelf 1",), "open shelf 1"),
        (("go to shelf 1",), "close shelf 1"),
        (("go to shelf 1",), "take desklamp 1 from shelf 1"),
        (("go to shelf 1",), "take mug 1 from shelf 1"),
        (("go to shelf 1",), "examine mug 2"),
        (("go to shelf 1",), "use mug 2"),
        (("go to cabinet 1",), "take mug 1 from cabinet 1"),
        (("go to cabinet 1",), "close cabinet 1"),
        (("go to cabinet 1", "open cabinet 1"), "open cabinet 1"),
        (("go to shelf 1", "take mug 2 from shelf 1"), "take apple 1 from shelf 1"),
        (("go to shelf 1", "take mug 2 from shelf 1"), "move apple 1 to shelf 1"),
        (("go to shelf 1", "take mug 2 from shelf 1"), "clean mug 2 with sinkbasin 1"),
        (("go to shelf 1", "take mug 2 from shelf 1", "go to cabinet 1"), "move mug 2 to cabinet 1"),
        (("go to shelf 1", "take mug 2 from shelf 1", "go to microwave 1"), "clean mug 2 with microwave 1"),
        (("go to shelf 1", "take statue 1 from shelf 1", "go to sinkbasin 1"), "clean statue 1 with sinkbasin 1"),
        (("go to shelf 1", "take statue 1 from shelf 1", "go to sinkbasin 1"), "move statue 1 to sinkbasin 1"),
        (("go to sinkbasin 1",), "clean mug 2 with sinkbasin 1"),
    ],
)
def test_what_is_not_possible_changes_nothing(path: tuple[str, ...], command: str) -> None:
    game = kitchen()
    state, texts = say(game, game.start, *path)
    assert NOTHING_HAPPENS not in texts
    assert command not in admissible(game, state)
    after, text, valid = apply(game, state, command)
    assert (after, text, valid) == (state, NOTHING_HAPPENS, False)


def test_goals() -> None:
    def won(goal: Goal, *commands: str) -> bool:
        game = kitchen(goal)
        state, texts = say(game, game.start, *commands)
        assert NOTHING_HAPPENS not in texts
        return is_won(game, state)

    fetch = ("go to shelf 1", "take mug 2 from shelf 1")
    put = ("go to cabinet 1", "open cabinet 1", "move mug 2 to cabinet 1")
    clean = ("go to sinkbasin 1", "clean mug 2 with sinkbasin 1")
    assert not won(Goal("clean", "Mug", "Cabinet", state=CLEAN), *fetch, *put)
    assert won(Goal("clean", "Mug", "Cabinet", state=CLEAN), *fetch, *clean, *put)
    assert not won(Goal("clean", "Mug", "Fridge", state=CLEAN), *fetch, *clean, *put)
    assert not won(Goal("clean", "Apple", "Cabinet", state=CLEAN), *fetch, *clean, *put)
    assert not won(Goal("hot", "Mug", "Cabinet", state=HOT), *fetch, *clean, *put)
    assert won(Goal("two", "Mug", "Cabinet", count=2), *fetch, *put)
    assert not won(Goal("two", "Mug", "Cabinet", count=2), *fetch)
    light = Goal("look", "Mug", lamp="DeskLamp")
    assert won(light, *fetch, "use desklamp 1")
    assert won(light, "go to shelf 1", "use desklamp 1", "take mug 2 from shelf 1")
    assert not won(light, *fetch, "use desklamp 1", "go to fridge 1")
    assert not won(light, *fetch)
    assert not won(light, "go to shelf 1", "take apple 1 from shelf 1", "use desklamp 1")


def test_two_objects_count_only_in_one_receptacle() -> None:
    game = kitchen(Goal("two", "Mug", "Shelf", count=2))
    twice = Game(
        receptacles=(*game.receptacles, Receptacle("shelf 2", "Shelf", 9)),
        things=game.things,
        can_contain=game.can_contain,
        goal=game.goal,
        goal_text="put two mug in shelf.",
        start=game.start._replace(contents=((), (), (), (3,), (), (4,))),
    )
    assert not is_won(twice, twice.start)
    assert is_won(twice, twice.start._replace(contents=((), (), (), (3, 4), (), ())))


def every_command(game: Game) -> list[str]:
    """All commands that can be written with the game's names."""
    places = [receptacle.name for receptacle in game.receptacles]
    things = [thing.name for thing in game.things]
    commands = ["look", "inventory", "help"]
    commands += [f"{verb} {place}" for verb, place in product(("go to", "open", "close", "examine"), places)]
    commands += [f"{verb} {thing}" for verb, thing in product(("use", "examine"), things)]
    commands += [f"take {thing} from {place}" for thing, place in product(things, places)]
    commands += [f"move {thing} to {place}" for thing, place in product(things, places)]
    commands += [f"{v} {t} with {p}" for v, t, p in product(("clean", "heat", "cool"), things, places)]
    commands += [f"slice {thing} with {knife}" for thing, knife in product(things, things)]
    return commands


@settings(max_examples=60, deadline=None)
@given(
    level=st.sampled_from(["small", "medium"]),
    index=st.integers(0, 9_999_999),
    choices=st.lists(st.integers(0, 10**6), max_size=25),
)
def test_random_play_keeps_the_rules(level: str, index: int, choices: list[int]) -> None:
    game = generate(task_id(level, "pretrain", index))
    state = game.start
    written = every_command(game)
    for choice in [*choices, 0]:
        listed = admissible(game, state)
        assert list(listed) == sorted(set(listed))
        possible = set()
        for command in written:
            after, text, valid = apply(game, state, command)
            if valid:
                possible.add(command)
                assert text != NOTHING_HAPPENS
            else:
                assert after is state
                assert text == NOTHING_HAPPENS
        assert possible == set(listed)
        command = listed[choice % len(listed)]
        assert apply(game, state, command) == apply(game, state, command)
        state, _, _ = apply(game, state, command)
        inside = [thing for contents in state.contents for thing in contents]
        held = [] if state.held == NOBODY else [state.held]
        assert sorted(inside + held) == list(range(len(game.things)))
