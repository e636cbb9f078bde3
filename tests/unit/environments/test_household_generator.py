"""Generated homes: solvable, not solved, of their level, and decided by the id alone."""

from __future__ import annotations

from collections import Counter

import pytest
from household_games import real_games
from hypothesis import given, settings
from hypothesis import strategies as st

from roleagent.environments.household.derive import derive, scene_kind
from roleagent.environments.household.engine import is_won
from roleagent.environments.household.generator import (
    LEVELS,
    NEEDS,
    TASK_TYPES,
    Draws,
    generate,
    parse_task_id,
    task_id,
    task_type_of,
)
from roleagent.environments.household.scenes import scenes
from roleagent.errors import ConfigError

IDS = st.builds(
    task_id,
    st.sampled_from(list(LEVELS)),
    st.sampled_from(["train", "heldout", "pretrain"]),
    st.integers(0, 9_999_999),
)


@settings(max_examples=150, deadline=None)
@given(text=IDS)
def test_every_home_is_sound(text: str) -> None:
    level, space, index = parse_task_id(text)
    game, table = generate(text), scenes()
    goal, start = game.goal, game.start
    assert generate(text) == game
    assert goal.task_type == task_type_of(level, space, index)
    assert not is_won(game, start)
    assert sorted(thing for inside in start.contents for thing in inside) == list(range(len(game.things)))
    for thing, spots in enumerate(start.spots):
        place = next(i for i, inside in enumerate(start.contents) if thing in inside)
        assert spots == (game.receptacles[place].location,)
    names = [receptacle.name for receptacle in game.receptacles] + [thing.name for thing in game.things]
    assert len(set(names)) == len(names)
    assert len({receptacle.location for receptacle in game.receptacles} | {0}) == len(game.receptacles) + 1
    kinds = [receptacle.kind for receptacle in game.receptacles]
    goal_things = [i for i, thing in enumerate(game.things) if thing.kind == goal.object]
    assert len(goal_things) >= goal.count
    assert all("pickupable" in game.things[thing].can for thing in goal_things)
    if goal.lamp is None:
        assert goal.receptacle in kinds
        assert goal.object in game.can_contain[goal.receptacle]
        for place, inside in zip(game.receptacles, start.contents, strict=True):
            assert place.kind != goal.receptacle or not set(inside) & set(goal_things)
    else:
        assert any(thing.kind == goal.lamp and "toggleable" in thing.can for thing in game.things)
    if goal.task_type in NEEDS:
        flag, appliance = NEEDS[goal.task_type]
        assert goal.state == flag
        assert appliance in kinds
    for receptacle in game.receptacles:
        assert not receptacle.openable or receptacle.kind in table.openable
        assert receptacle.openable or table.openable.get(receptacle.kind) != 1.0
    if LEVELS[level].receptacles:
        assert len(game.receptacles) == LEVELS[level].receptacles
        assert len(game.things) == LEVELS[level].objects
        assert sum(receptacle.openable for receptacle in game.receptacles) <= LEVELS[level].max_openable


def test_different_ids_give_different_games() -> None:
    spaces = ("train", "heldout", "pretrain")
    games = {generate(task_id("small", space, index)).start: space for space in spaces for index in range(200)}
    rooms = {str(generate(task_id("small", space, index)).receptacles) for space in spaces for index in range(200)}
    assert len(rooms) > 400
    assert set(games.values()) == set(spaces)


def test_order_of_display_is_that_of_alfworld() -> None:
    game = generate("household-large-train-000002")
    for names in ([r.name for r in game.receptacles], [thing.name for thing in game.things]):
        keys = [(name.split()[0], -int(name.split()[1])) for name in names]
        assert keys == sorted(keys)


@pytest.mark.parametrize("space", ["train", "heldout", "pretrain"])
def test_task_types_are_balanced_and_mixed(space: str) -> None:
    types = [task_type_of("small", space, index) for index in range(600)]
    for block in range(100):
        assert sorted(types[block * 6 : block * 6 + 6]) == sorted(TASK_TYPES)
    assert min(Counter(types[::6]).values()) >= 5  # a block may begin with every type


@pytest.mark.parametrize(
    "text",
    [
        "household-small-train-1",
        "household-small-train-0000001",
        "household-tiny-train-000001",
        "household-small-test-000001",
        "household-small-train-000001 ",
        "household-small-pretrain-10000000",
        "webshop-1",
        "",
    ],
)
def test_foreign_ids_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="unknown household task id"):
        generate(text)


def test_large_ids_are_accepted() -> None:
    assert parse_task_id("household-small-pretrain-9999999") == ("small", "pretrain", 9_999_999)


def test_draws_go_on_beyond_a_block() -> None:
    draws, again = Draws("x", 1), Draws("x", 1)
    values = [draws.uniform() for _ in range(700)]
    assert values == [again.uniform() for _ in range(700)]
    assert len(set(values)) == 700
    assert all(0.0 <= value < 1.0 for value in values)
    counts = Counter(draws.weighted(("a", "b"), (1.0, 5.0)) for _ in range(4000))
    assert 0.76 < counts["b"] / 4000 < 0.84


@pytest.mark.slow
def test_the_table_is_what_the_real_games_say() -> None:
    table = derive(real_games("train"))
    loaded = scenes()
    assert table["rooms"] == {kind: list(rooms) for kind, rooms in loaded.rooms.items()}
    assert table["placed"] == loaded.placed
    assert {name: frozenset(can) for name, can in table["objects"].items()} == loaded.objects
    assert table["openable"] == loaded.openable
    assert {name: frozenset(kinds) for name, kinds in table["can_contain"].items()} == loaded.can_contain
    for task_type, kinds in table["goals"].items():
        triples = [(kind, thing, place) for kind, entries in kinds.items() for thing, place, _ in entries]
        assert [(pair.kind, pair.object, pair.place) for pair in loaded.goals[task_type]] == triples
        assert loaded.goal_weights[task_type][-1] == sum(entry[2] for entries in kinds.values() for entry in entries)
    assert set(table["goals"]) == set(TASK_TYPES)


def test_scene_kinds() -> None:
    assert [scene_kind(number) for number in (1, 30, 201, 308, 430)] == [
        "kitchen",
        "kitchen",
        "livingroom",
        "bedroom",
        "bathroom",
    ]


def test_an_id_names_the_same_game_for_ever() -> None:
    game = generate("household-small-train-000000")
    assert game.goal_text == "find two cd and put them in desk."
    contents = {
        receptacle.name: [game.things[thing].name for thing in inside]
        for receptacle, inside in zip(game.receptacles, game.start.contents, strict=True)
    }
    assert contents == {
        "desk 1": [],
        "drawer 2": ["book 1"],
        "drawer 1": ["pencil 1"],
        "shelf 2": ["box 1"],
        "shelf 1": ["cd 2"],
        "sidetable 1": ["cd 1", "cellphone 1"],
    }
    assert [receptacle.name for receptacle in game.receptacles if receptacle.openable] == ["drawer 2", "drawer 1"]
