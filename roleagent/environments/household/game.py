"""A household game: what never changes in it (`Game`), and what does (`State`). Both are immutable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

NOBODY = -1  #: `State.held` with empty hands

CLEAN, HOT, COOL, TOGGLED, SLICED = 1, 2, 4, 8, 16  #: bits of `State.flags`


@dataclass(frozen=True, slots=True)
class Receptacle:
    """A place. `kind` is ALFRED's type without its suffix ("SinkBasin"), `name` is what is read ("sinkbasin 1")."""

    name: str
    kind: str
    location: int
    openable: bool = False


@dataclass(frozen=True, slots=True)
class Thing:
    """An object. `can` holds the PDDL property names, for example "pickupable" and "cleanable"."""

    name: str
    kind: str
    can: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Goal:
    """What wins: `count` objects of a kind, in the needed state, together in one receptacle of a kind.

    With `lamp` instead of `receptacle`: hold an object of the kind where a lamp of that kind stands, turned on.
    """

    task_type: str
    object: str
    receptacle: str | None = None
    state: int = 0  #: 0, CLEAN, HOT or COOL
    count: int = 1
    lamp: str | None = None


class State(NamedTuple):
    """What can change. A tuple of tuples, so a state that an observation remembers never changes under it."""

    location: int
    held: int  #: index of the object in hand, or NOBODY
    opened: int  #: bit i: receptacle i is open
    contents: tuple[tuple[int, ...], ...]  #: objects in each receptacle, in the order of the game's objects
    flags: tuple[int, ...]  #: bits of each object
    spots: tuple[tuple[int, ...], ...]  #: objectAtLocation: the locations of each object
    left: tuple[tuple[int, int], ...] = ()  #: (object, receptacle) it was taken from and not put back into, sorted


@dataclass(frozen=True)
class Game:
    """One game: its room, its objects, its goal and its first state. Indices follow the order of display."""

    receptacles: tuple[Receptacle, ...]
    things: tuple[Thing, ...]
    can_contain: Mapping[str, frozenset[str]]  #: receptacle kind -> object kinds
    goal: Goal
    goal_text: str
    start: State
    inside: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  #: inReceptacleObject: outer -> inner objects

    @cached_property
    def receptacle_index(self) -> dict[str, int]:
        """Index of each receptacle's name."""
        return {receptacle.name: index for index, receptacle in enumerate(self.receptacles)}

    @cached_property
    def thing_index(self) -> dict[str, int]:
        """Index of each object's name."""
        return {thing.name: index for index, thing in enumerate(self.things)}

    def here(self, location: int) -> list[int]:
        """Return the receptacles at a location."""
        return [index for index, receptacle in enumerate(self.receptacles) if receptacle.location == location]
