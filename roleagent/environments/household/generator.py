"""Generated homes: the task id alone decides the game.

A game is drawn from the scene table of the real ALFWorld games (`scenes.py`): a goal that real games have, a room of
that kind with everything the goal needs, and distractors where real games have them. Always solvable, never solved
at the start. Task types are balanced: every six ids in a row hold all six, in a drawn order.

Simplified: no two receptacles share a location, nothing lies on the floor, and every object is in one receptacle.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, TypeVar, cast

from roleagent.environments.household.game import CLEAN, COOL, HOT, NOBODY, Game, Goal, Receptacle, State, Thing
from roleagent.environments.household.scenes import GoalPair, Scenes, Weighted, scenes
from roleagent.errors import ConfigError
from roleagent.seeding import derive, generator

Space = Literal["train", "heldout", "pretrain"]
LevelName = Literal["small", "medium", "large"]
T = TypeVar("T")

TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
#: Each task type's two wordings in ALFWorld, chosen by a draw.
WORDINGS: Mapping[str, tuple[str, str]] = {
    "pick_and_place_simple": ("put a {object} in {place}.", "put some {object} on {place}."),
    "look_at_obj_in_light": ("examine the {object} with the {place}.", "look at {object} under the {place}."),
    "pick_clean_then_place_in_recep": (
        "put a clean {object} in {place}.",
        "clean some {object} and put it in {place}.",
    ),
    "pick_heat_then_place_in_recep": ("put a hot {object} in {place}.", "heat some {object} and put it in {place}."),
    "pick_cool_then_place_in_recep": ("put a cool {object} in {place}.", "cool some {object} and put it in {place}."),
    "pick_two_obj_and_place": ("put two {object} in {place}.", "find two {object} and put them in {place}."),
}
#: Task type -> (state flag, appliance kind).
NEEDS: Mapping[str, tuple[int, str]] = {
    "pick_clean_then_place_in_recep": (CLEAN, "SinkBasin"),
    "pick_heat_then_place_in_recep": (HOT, "Microwave"),
    "pick_cool_then_place_in_recep": (COOL, "Fridge"),
}
SPACE_SIZE = 10_000_000  #: indices of each id space


@dataclass(frozen=True, slots=True)
class Level:
    """Size of a generated home. With `receptacles` 0 the room is a real one, as large as it is."""

    receptacles: int
    objects: int
    max_openable: int  #: more drawers and cabinets than this have no door; fridge, microwave and safe always have one
    pickupable_only: bool  #: distractors can be taken


LEVELS: Mapping[str, Level] = {
    "small": Level(receptacles=6, objects=6, max_openable=3, pickupable_only=True),
    "medium": Level(receptacles=12, objects=12, max_openable=6, pickupable_only=False),
    "large": Level(receptacles=0, objects=0, max_openable=100, pickupable_only=False),
}
_TASK_ID = re.compile(r"household-(small|medium|large)-(train|heldout|pretrain)-(\d{6,8})")


class Draws:
    """Uniform numbers in blocks: much cheaper than one call a draw."""

    __slots__ = ("_next", "_source", "_values")

    def __init__(self, *parts: int | str) -> None:
        self._source = generator(*parts)
        self._values: list[float] = self._source.random(64).tolist()
        self._next = 0

    def uniform(self) -> float:
        """Return a number in [0, 1)."""
        if self._next == len(self._values):
            self._values = self._source.random(256).tolist()
            self._next = 0
        self._next += 1
        return self._values[self._next - 1]

    def pick(self, choices: Sequence[T]) -> T:
        """Return one of the choices, each as likely."""
        return choices[int(self.uniform() * len(choices))]

    def kind(self, weighted: Weighted) -> str:
        """Return one of weighted kinds."""
        return self.weighted(weighted.choices, weighted.cumulative)

    def weighted(self, choices: Sequence[T], cumulative: Sequence[float]) -> T:
        """Return one of the choices, in proportion to its weight."""
        return choices[min(bisect_right(cumulative, self.uniform() * cumulative[-1]), len(choices) - 1)]


def task_id(level: str, space: str, index: int) -> str:
    """Return the id of a generated game."""
    return f"household-{level}-{space}-{index:06d}"


def parse_task_id(text: str) -> tuple[LevelName, Space, int]:
    """Return (level, id space, index).

    Raises:
        ConfigError: this is not the id of a generated home.
    """
    match = _TASK_ID.fullmatch(text)
    if match is None or task_id(match[1], match[2], int(match[3])) != text or int(match[3]) >= SPACE_SIZE:
        raise ConfigError(f"unknown household task id {text!r}: expected for example household-small-train-000123")
    return cast(LevelName, match[1]), cast(Space, match[2]), int(match[3])


def task_type_of(level: str, space: str, index: int) -> str:
    """Return the task type without building the game: six ids in a row hold the six types in a drawn order."""
    code = derive("household", level, space, "types", index // 6)
    left = list(TASK_TYPES)
    for position in range(index % 6):
        code, choice = divmod(code, 6 - position)
        left.pop(choice)
    return left[code % len(left)]


def generate(text: str) -> Game:
    """Return the game of a task id.

    Raises:
        ConfigError: the id is not that of a generated home.
    """
    level_name, space, index = parse_task_id(text)
    level, table = LEVELS[level_name], scenes()
    task_type = task_type_of(level_name, space, index)
    draws = Draws("household", level_name, space, index)
    pair = draws.weighted(table.goals[task_type], table.goal_weights[task_type])
    lamp = task_type == "look_at_obj_in_light"
    target = None if lamp else pair.place
    kinds = _room(draws, table, level, task_type, pair, target)
    receptacles = _receptacles(draws, table, level, kinds)
    placed = _objects(draws, level, pair, target, receptacles, 2 if task_type == "pick_two_obj_and_place" else 1)
    names = _numbered([kind for kind, _ in placed])
    things = tuple(
        Thing(name, kind, table.objects.get(kind, frozenset())) for name, (kind, _) in zip(names, placed, strict=True)
    )
    contents: list[list[int]] = [[] for _ in receptacles]
    for thing, (_, place) in enumerate(placed):
        contents[place].append(thing)
    state = NEEDS[task_type][0] if task_type in NEEDS else 0
    goal = Goal(
        task_type=task_type,
        object=pair.object,
        receptacle=target,
        state=state,
        count=2 if task_type == "pick_two_obj_and_place" else 1,
        lamp=pair.place if lamp else None,
    )
    wording = draws.pick(WORDINGS[task_type])
    return Game(
        receptacles=receptacles,
        things=things,
        can_contain=table.can_contain,
        goal=goal,
        goal_text=wording.format(object=pair.object.lower(), place=pair.place.lower()),
        start=State(
            location=0,
            held=NOBODY,
            opened=0,
            contents=tuple(tuple(inside) for inside in contents),
            flags=(0,) * len(things),
            spots=tuple((receptacles[place].location,) for _, place in placed),
        ),
    )


@cache
def _sources(pair: GoalPair, target: str | None) -> Weighted:
    """Return the receptacle kinds from which the goal's object is fetched: where real rooms of this kind have it.

    Never the target. A kind that was only seen in the target may lie in every receptacle of the room that can hold it.
    """
    table = scenes()
    able = {kind for kind, things in table.can_contain.items() if pair.object in things and kind != target}
    seen = {
        place: things[pair.object]
        for place, things in table.placed[pair.kind].items()
        if pair.object in things and place in able
    }
    return Weighted.of(seen or {kind: count for kind, count in table.common[pair.kind].items() if kind in able})


@cache
def _lamp_places(pair: GoalPair) -> Weighted:
    """Return the receptacle kinds on which real rooms of this kind have the goal's lamp."""
    placed = scenes().placed[pair.kind]
    return Weighted.of({place: things[pair.place] for place, things in placed.items() if pair.place in things})


@cache
def _common(scene: str) -> Weighted:
    return Weighted.of(scenes().common[scene])


@cache
def _distractors(scene: str, place: str, excluded: str, pickupable_only: bool) -> Weighted:
    """Return the object kinds that real rooms have in a receptacle kind, without the goal's kind in the target."""
    table = scenes()
    return Weighted.of(
        {
            thing: times
            for thing, times in table.placed[scene].get(place, {}).items()
            if thing != excluded and (not pickupable_only or "pickupable" in table.objects.get(thing, ()))
        }
    )


def _room(draws: Draws, table: Scenes, level: Level, task_type: str, pair: GoalPair, target: str | None) -> list[str]:
    """Return the receptacle kinds of the room: what the goal needs, then what such rooms have."""
    needed = [draws.kind(_sources(pair, target))]
    if target is not None:
        needed.append(target)
    else:
        lamps = _lamp_places(pair)
        if needed[0] not in lamps.choices or draws.uniform() < 0.7:  # sometimes the object lies beside the lamp
            needed.append(draws.kind(lamps))
    if task_type in NEEDS and NEEDS[task_type][1] not in needed:
        needed.append(NEEDS[task_type][1])
    if not level.receptacles:
        rooms = table.rooms[pair.kind]
        room = dict(draws.pick([room for room in rooms if set(needed) <= set(room)] or rooms))
        for kind in needed:
            room.setdefault(kind, 1)
        return [kind for kind, count in room.items() for _ in range(count)]
    while len(needed) < level.receptacles:
        kind = draws.kind(_common(pair.kind))
        if kind not in _SINGLE or kind not in needed:
            needed.append(kind)
    return needed


_SINGLE = frozenset({"Fridge", "Microwave", "Toaster", "CoffeeMachine", "Toilet", "Safe", "GarbageCan", "TVStand"})


@cache
def _shown_before(kind: str) -> str:
    """Return the key of ALFWorld's display order: the lower-case id, where a SinkBasin's id begins with "Sink"."""
    return f"{kind.removesuffix('Basin').lower()}_bar_{kind.lower()}"


def _numbered(kinds: Sequence[str]) -> list[str]:
    """Return names for kinds in display order. As in ALFWorld the first of a kind has the highest number."""
    left: dict[str, int] = {}
    for kind in kinds:
        left[kind] = left.get(kind, 0) + 1
    names = []
    for kind in kinds:
        names.append(f"{kind.lower()} {left[kind]}")
        left[kind] -= 1
    return names


def _receptacles(draws: Draws, table: Scenes, level: Level, kinds: list[str]) -> tuple[Receptacle, ...]:
    kinds.sort(key=_shown_before)
    doors = sum(table.openable.get(kind, 0.0) == 1.0 for kind in kinds)
    receptacles = []
    for location, (kind, name) in enumerate(zip(kinds, _numbered(kinds), strict=True), start=1):
        share = table.openable.get(kind, 0.0)
        openable = share == 1.0
        if 0.0 < share < 1.0 and draws.uniform() < share and doors < level.max_openable:
            openable = True
            doors += 1
        receptacles.append(Receptacle(name, kind, location, openable))
    return tuple(receptacles)


def _objects(
    draws: Draws,
    level: Level,
    pair: GoalPair,
    target: str | None,
    receptacles: tuple[Receptacle, ...],
    count: int,
) -> list[tuple[str, int]]:
    """Return (object kind, receptacle index) in display order: those of the goal, the lamp, and distractors."""
    sources = _sources(pair, target).choices
    fitting = [index for index, receptacle in enumerate(receptacles) if receptacle.kind in sources]
    objects = [(pair.object, draws.pick(fitting)) for _ in range(count)]
    if target is None:
        lamps = _lamp_places(pair).choices
        objects.append(
            (pair.place, draws.pick([index for index, place in enumerate(receptacles) if place.kind in lamps]))
        )
    total = level.objects or int(len(receptacles) * (0.9 + 0.8 * draws.uniform()))
    seen = [
        _distractors(pair.kind, place.kind, pair.object if place.kind == target else "", level.pickupable_only)
        for place in receptacles
    ]
    holding = [index for index, choices in enumerate(seen) if choices.choices]
    while len(objects) < total:
        place = draws.pick(holding)
        objects.append((draws.kind(seen[place]), place))
    objects.sort(key=lambda entry: _shown_before(entry[0]))
    return objects
