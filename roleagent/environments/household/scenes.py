"""The scene table: which rooms, receptacles, objects and goals real ALFWorld games have. Made by `derive.py`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import accumulate


@dataclass(frozen=True)
class Weighted:
    """Choices with cumulative weights: `cumulative[-1]` is their sum."""

    choices: tuple[str, ...]
    cumulative: tuple[float, ...]

    @staticmethod
    def of(weights: Mapping[str, float]) -> Weighted:
        """Build from choice -> weight."""
        return Weighted(tuple(weights), tuple(accumulate(weights.values())))


@dataclass(frozen=True)
class GoalPair:
    """What real games ask for: an object kind and a receptacle kind (for the lamp task: a lamp kind)."""

    kind: str  #: scene kind
    object: str
    place: str


@dataclass(frozen=True)
class Scenes:
    """The scene table, ready to draw from."""

    rooms: Mapping[str, tuple[Mapping[str, int], ...]]  #: scene kind -> real rooms: receptacle kind -> count
    common: Mapping[str, Mapping[str, float]]  #: scene kind -> receptacle kind -> mean count in a room
    placed: Mapping[str, Mapping[str, Mapping[str, int]]]  #: scene kind -> receptacle kind -> object kind -> times seen
    objects: Mapping[str, frozenset[str]]  #: object kind -> PDDL properties
    openable: Mapping[str, float]  #: receptacle kind -> share that can be opened
    can_contain: Mapping[str, frozenset[str]]  #: receptacle kind -> object kinds
    goals: Mapping[str, tuple[GoalPair, ...]]  #: task type -> goals
    goal_weights: Mapping[str, tuple[float, ...]]  #: task type -> cumulative weights of its goals


@cache
def scenes() -> Scenes:
    """Load the table once."""
    table = json.loads(files(__package__).joinpath("scenes.json").read_text(encoding="utf-8"))
    common: dict[str, dict[str, float]] = {}
    for kind, rooms in table["rooms"].items():
        common[kind] = {
            name: sum(room.get(name, 0) for room in rooms) / len(rooms)
            for name in sorted({name for room in rooms for name in room})
        }
    goals: dict[str, tuple[GoalPair, ...]] = {}
    weights: dict[str, tuple[float, ...]] = {}
    for task_type, kinds in table["goals"].items():
        goals[task_type] = tuple(
            GoalPair(kind, thing, place) for kind, triples in kinds.items() for thing, place, _ in triples
        )
        weights[task_type] = tuple(accumulate(count for triples in kinds.values() for _, _, count in triples))
    return Scenes(
        rooms={kind: tuple(rooms) for kind, rooms in table["rooms"].items()},
        common=common,
        placed=table["placed"],
        objects={name: frozenset(can) for name, can in table["objects"].items()},
        openable=table["openable"],
        can_contain={name: frozenset(kinds) for name, kinds in table["can_contain"].items()},
        goals=goals,
        goal_weights=weights,
    )
