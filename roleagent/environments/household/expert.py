"""An expert that knows only what it has observed, and where such things usually are.

It searches a small room in the order of its first description, a large one where real games have the object most often,
skips what it has searched, opens what is closed, remembers what it saw on the way, and never asks the game. So it plays
generated homes and real ALFWorld games alike. Every move has a short canonical reasoning: the current subgoal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, field
from functools import cache
from typing import Literal, NamedTuple

from roleagent.environments.household.scenes import scenes
from roleagent.environments.household.words import NOTHING_HAPPENS
from roleagent.errors import EnvironmentFault

MoveKind = Literal[
    "search_go",
    "search_open",
    "search_look",
    "fetch_go",
    "fetch_open",
    "take",
    "treat_go",
    "treat",
    "place_go",
    "place_open",
    "place",
    "return_go",
    "return_open",
    "return",
    "lamp_go",
    "use",
]
Verb = Literal["", "clean", "heat", "cool"]

APPLIANCES: dict[str, str] = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
PLAN_LENGTH = 6  #: receptacles that the reasoning of a search names
SMALL_ROOM = 12  #: receptacles up to which a room is searched in its own order
_ADJECTIVES: dict[str, Verb] = {"clean": "clean", "hot": "heat", "cool": "cool"}
_GOALS = (
    (re.compile(r"put a (?P<state>clean|hot|cool) (?P<object>\w+) in (?P<place>\w+)\."), 1),
    (re.compile(r"(?P<state>clean|heat|cool) some (?P<object>\w+) and put it in (?P<place>\w+)\."), 1),
    (re.compile(r"put two (?P<object>\w+) in (?P<place>\w+)\."), 2),
    (re.compile(r"find two (?P<object>\w+) and put them in (?P<place>\w+)\."), 2),
    (re.compile(r"put (?:a|some) (?P<object>\w+) (?:in|on) (?P<place>\w+)\."), 1),
    (re.compile(r"examine the (?P<object>\w+) with the (?P<lamp>\w+)\."), 1),
    (re.compile(r"look at (?P<object>\w+) under the (?P<lamp>\w+)\."), 1),
)
_NAME = re.compile(r"a ([a-z]+ \d+)")
_SEEN = re.compile(r"(?:On the ([a-z]+ \d+)|The ([a-z]+ \d+) is open\. In it), you see (.*)\.$")


class Wish(NamedTuple):
    """The goal sentence, understood. Words are as the game writes them ("mug", "cabinet")."""

    object: str
    place: str  #: receptacle word; "" for the lamp task
    lamp: str  #: lamp word; "" for the others
    verb: Verb
    amount: int  #: how many objects: 1 or 2


class Move(NamedTuple):
    """What the expert does next and why."""

    kind: MoveKind
    reasoning: str
    action: str


def understand(goal: str) -> Wish:
    """Read a goal sentence.

    Raises:
        EnvironmentFault: the sentence has none of ALFWorld's wordings.
    """
    for pattern, count in _GOALS:
        match = pattern.fullmatch(goal)
        if match is not None:
            found = match.groupdict()
            state = found.get("state") or ""
            verb = _ADJECTIVES.get(state, state)
            return Wish(found["object"], found.get("place") or "", found.get("lamp") or "", verb, count)  # type: ignore[arg-type]
    raise EnvironmentFault(f"household goal {goal!r} has none of ALFWorld's wordings")


def kind_of(name: str) -> str:
    """Return the kind word of a name: "mug 1" -> "mug"."""
    return name.partition(" ")[0]


@cache
def _chances(thing: str) -> Mapping[str, float]:
    """Return, for an object word, receptacle word -> times that real games have one there, a step of looking."""
    table = scenes()
    seen: dict[str, float] = {}
    built: dict[str, float] = {}
    for room, places in table.placed.items():
        for place, count in table.common[room].items():
            built[place] = built.get(place, 0.0) + count
            found = sum(times for kind, times in places.get(place, {}).items() if kind.lower() == thing)
            seen[place] = seen.get(place, 0.0) + found
    return {
        place.lower(): times / built[place] / (1.0 + table.openable.get(place, 0.0)) for place, times in seen.items()
    }


def search_order(room: Sequence[str], thing: str, excluded: str = "") -> list[str]:
    """Return a room's receptacles in the order in which a thing is looked for, those of the `excluded` kind last."""
    if len(room) <= SMALL_ROOM:
        return list(room)
    chances = _chances(thing)
    return sorted(room, key=lambda name: (kind_of(name) == excluded, -chances.get(kind_of(name), 0.0)))


@dataclass
class Memory:
    """All that observations have told so far."""

    order: list[str]  #: receptacles as first described
    at: str = ""
    held: str = ""
    source: str = ""  #: receptacle that what is held was taken from
    searched: list[str] = field(default_factory=list)  #: receptacles whose content was seen, in that order
    visited: list[str] = field(default_factory=list)  #: receptacles where the agent has been, in that order
    closed: set[str] = field(default_factory=set)  #: receptacles last seen closed
    seen: dict[str, str] = field(default_factory=dict)  #: object -> receptacle where it was last seen
    treated: dict[str, str] = field(default_factory=dict)  #: object -> verb

    @staticmethod
    def of(first_observation: str) -> Memory:
        """Begin with the room's first description."""
        return Memory(order=_NAME.findall(first_observation))

    def observe(self, action: str, text: str) -> None:
        """Take in the answer to an action."""
        if text == NOTHING_HAPPENS and action.startswith("go to ") and action[6:] in self.order:
            self.at = action[6:]  # it stands where the agent already is: real rooms have such places
            return
        words = text.split(" ", 4)
        verb = words[1] if len(words) > 1 else ""
        if verb == "arrive":
            self.at = f"{words[3]} {words[4].partition('.')[0]}"
            if self.at not in self.visited:
                self.visited.append(self.at)
        elif verb == "open":
            self.closed.discard(self.at)
        elif verb == "close":
            self.closed.add(text[14:-1])
            return
        elif verb == "pick":
            self.held, _, self.source = text[16:-1].partition(" from the ")
            self.seen.pop(self.held, None)
            return
        elif verb == "move":
            name, _, place = text[13:-1].partition(" to the ")
            self.held = ""
            self.seen[name] = place
            return
        elif verb in APPLIANCES and words[0] == "You":
            self.treated[self.held] = verb
            return
        match = _SEEN.search(text)
        if match is None:
            if text.endswith(f"The {self.at} is closed."):
                self.closed.add(self.at)
            return
        place = match[1] or match[2]
        if place not in self.searched:
            self.searched.append(place)
        for name in _NAME.findall(match[3]):
            self.seen[name] = place


class Expert:
    """Plays one episode: `move()` says what to do, `observe(action, text)` takes in the answer."""

    def __init__(self, goal: str, first_observation: str) -> None:
        self.wish = understand(goal)
        self.memory = Memory.of(first_observation)
        wish, room = self.wish, self.memory.order
        # What only has to be brought to a kind of place is not there yet.
        self.order = search_order(room, wish.object, "" if wish.verb or wish.amount > 1 else wish.place)
        self.lamp_order = search_order(room, wish.lamp) if wish.lamp else self.order
        self.target = self._first(self.wish.place) if self.wish.place else ""
        self.appliance = self._first(APPLIANCES[self.wish.verb]) if self.wish.verb else ""

    def _first(self, kind: str) -> str:
        for name in self.memory.order:
            if kind_of(name) == kind:
                return name
        raise EnvironmentFault(f"household room has no {kind}, which the goal needs")

    def twin(self) -> Expert:
        """Return another that knows the same: what it takes in from now on, this one does not."""
        twin = copy(self)
        twin.memory = deepcopy(self.memory)
        return twin

    def observe(self, action: str, text: str) -> None:
        """Take in the answer to an action."""
        self.memory.observe(action, text)

    def overlook(self) -> None:
        """Do not notice what is wanted here: the receptacle counts as searched in vain."""
        memory = self.memory
        for name in [name for name, place in memory.seen.items() if place == memory.at]:
            if kind_of(name) == self.wish.object and not self.done(name):
                del memory.seen[name]

    def done(self, name: str) -> bool:
        """Tell whether an object lies as the goal asks."""
        if self.memory.seen.get(name) != self.target:
            return False
        return not self.wish.verb or self.memory.treated.get(name) == self.wish.verb

    def placed(self) -> int:
        """Return how many objects lie as the goal asks."""
        return sum(kind_of(name) == self.wish.object and self.done(name) for name in self.memory.seen)

    def move(self) -> Move:
        """Return the next move."""
        memory, wish = self.memory, self.wish
        if memory.held and kind_of(memory.held) != wish.object:
            return self._give_back()
        if not memory.held:
            return self._acquire()
        if wish.lamp:
            return self._light()
        if wish.verb and memory.treated.get(memory.held) != wish.verb:
            reasoning = f"{wish.verb} {memory.held} with {self.appliance}"
            if memory.at != self.appliance:
                return Move("treat_go", reasoning, f"go to {self.appliance}")
            return Move("treat", reasoning, f"{wish.verb} {memory.held} with {self.appliance}")
        reasoning = f"place {memory.held} in {self.target}"
        if memory.at != self.target:
            return Move("place_go", reasoning, f"go to {self.target}")
        if self.target in memory.closed:
            return Move("place_open", reasoning, f"open {self.target}")
        return Move("place", reasoning, f"move {memory.held} to {self.target}")

    def _give_back(self) -> Move:
        """Put down what is not wanted: where it was there is room for it."""
        memory = self.memory
        reasoning = f"place {memory.held} in {memory.source}"
        if memory.at != memory.source:
            return Move("return_go", reasoning, f"go to {memory.source}")
        if memory.source in memory.closed:
            return Move("return_open", reasoning, f"open {memory.source}")
        return Move("return", reasoning, f"move {memory.held} to {memory.source}")

    def _acquire(self) -> Move:
        memory, wish = self.memory, self.wish
        known = [name for name in memory.seen if kind_of(name) == wish.object and not self.done(name)]
        second = "second " if wish.amount == 2 and self.placed() else ""
        if not known:
            return self.search(f"find {second}{wish.object}")
        here = [name for name in known if memory.seen[name] == memory.at]
        name = here[0] if here else known[0]
        place = memory.seen[name]
        # The same first words as while searching: what follows the object's name is what followed it last.
        found = f"find {second}{name} in {place}"
        if memory.at != place:
            return Move("fetch_go", found, f"go to {place}")
        if place in memory.closed:
            return Move("fetch_open", found, f"open {place}")
        return Move("take", found, f"take {name} from {place}")

    def _light(self) -> Move:
        memory = self.memory
        lamps = [name for name in memory.seen if kind_of(name) == self.wish.lamp]
        if not lamps:
            return self.search(f"find {self.wish.lamp}")
        here = [name for name in lamps if memory.seen[name] == memory.at]
        lamp = here[0] if here else lamps[0]
        if memory.seen[lamp] != memory.at:
            return Move("lamp_go", f"find {lamp} in {memory.seen[lamp]}", f"go to {memory.seen[lamp]}")
        return Move("use", f"find {lamp} in {memory.at}", f"use {lamp}")

    def search(self, reasoning: str) -> Move:
        """Open what is closed here, else go to the first receptacle of the search order that was not searched.

        The reasoning names the receptacles still to be searched, the present one first: a policy that imitates it
        keeps its plan in the text and need not recall what was searched.
        """
        memory = self.memory
        order = self.order if kind_of(memory.held) != self.wish.object else self.lamp_order
        ahead = [name for name in order if name not in memory.searched]
        if memory.at in ahead:
            ahead.remove(memory.at)
            ahead = [memory.at, *ahead]
            if memory.at in memory.closed:
                return Move("search_open", plan(reasoning, ahead), f"open {memory.at}")
            return Move("search_look", plan(reasoning, ahead), f"examine {memory.at}")
        if not ahead:
            memory.searched.clear()  # everything was searched in vain: begin again
            ahead = [name for name in order if name != memory.at]
        return Move("search_go", plan(reasoning, ahead), f"go to {ahead[0]}")


def plan(reasoning: str, ahead: list[str]) -> str:
    """Return the reasoning of a search: what for, and the places still to be searched."""
    return f"{reasoning} in {', '.join(ahead[:PLAN_LENGTH])}"
