"""What happened in an episode, by the engine: the facts that `roleagent.environments.household.oracle` judges.

An episode is a game and any list of commands; it is played again, and from the states follow what was seen, taken,
treated, put down and left closed. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from roleagent.environments.household.engine import ABILITIES, TREATMENTS, apply, is_open, is_won
from roleagent.environments.household.game import Game, State

NOTHING = -1  #: `Act.thing`, `Act.place`: the command names none, or one that is not in the game

_BETWEEN = {"take": " from ", "move": " to ", "clean": " with ", "heat": " with ", "cool": " with "}


class Act(NamedTuple):
    """Step t: the command in parts, the states around it, and whether it was possible."""

    number: int  #: t, from 1
    verb: str
    thing: int  #: index of the object that the command names, or NOTHING
    place: int  #: index of the receptacle that the command names, or NOTHING
    before: State
    after: State
    valid: bool


class Episode:
    """The facts of an episode that was not won. Things and places are indices; lists are in the order of time."""

    def __init__(self, game: Game, acts: Sequence[Act]) -> None:
        self.game = game
        self.goal = game.goal
        self.acts = acts
        self.length = len(acts)
        self.end = acts[-1].after
        self.wanted = frozenset(index for index, thing in enumerate(game.things) if thing.kind == game.goal.object)
        self.verb = next((verb for verb, (_, _, flag, _) in TREATMENTS.items() if flag == game.goal.state), "")

    # -- places ------------------------------------------------------------------------------------------------------

    def at(self, state: State, place: int) -> bool:
        """Tell whether the agent stands at a place."""
        return self.game.receptacles[place].location == state.location

    def is_target(self, place: int) -> bool:
        """Tell whether a place is of the kind that the goal names."""
        return place != NOTHING and self.game.receptacles[place].kind == self.goal.receptacle

    def is_appliance(self, place: int) -> bool:
        """Tell whether a place is where the needed treatment is done."""
        return place != NOTHING and bool(self.verb) and self.game.receptacles[place].kind in TREATMENTS[self.verb][0]

    @cached_property
    def looks(self) -> list[tuple[int, int]]:
        """(t, place): the contents of the place were shown."""
        shown = []
        for act in self.acts:
            looked = act.verb in ("go", "open", "examine") and act.place != NOTHING
            if looked and act.valid and is_open(self.game, act.after, act.place):
                shown.append((act.number, act.place))
        return shown

    @cached_property
    def searched(self) -> dict[int, int]:
        """place -> t at which its contents were first shown."""
        return {place: number for number, place in reversed(self.looks)}

    @cached_property
    def arrivals(self) -> list[Act]:
        """Every step that led to a place."""
        return [act for act in self.acts if act.verb == "go" and act.valid]

    def left_closed(self, place: int) -> list[int]:
        """Return, for each stay at a place that was closed, t of the step that went away without opening it.

        A stay that lasts to the end counts with its first step that did not open it.
        """
        found = []
        stay: int | None = None
        for act in self.acts:
            if self.at(act.before, place) and not is_open(self.game, act.before, place):
                opens = act.valid and act.verb == "open" and act.place == place
                stay = None if opens else stay or act.number
                if not self.at(act.after, place):
                    found.append(act.number)
                    stay = None
        return found if stay is None else [*found, stay]

    # -- objects -----------------------------------------------------------------------------------------------------

    @cached_property
    def seen(self) -> dict[int, int]:
        """thing -> t at which it was first shown; what was never shown is missing."""
        first: dict[int, int] = {}
        for number, place in self.looks:
            for thing in self.acts[number - 1].after.contents[place]:
                first.setdefault(thing, number)
        return first

    @cached_property
    def takes(self) -> list[Act]:
        """Every object that was picked up."""
        return [act for act in self.acts if act.verb == "take" and act.valid]

    @cached_property
    def subject(self) -> int:
        """The wanted object that was taken last, or NOTHING: the one of which the story tells."""
        return next((act.thing for act in reversed(self.takes) if act.thing in self.wanted), NOTHING)

    @cached_property
    def taken(self) -> int:
        """Step t at which the subject was taken last; 0 without one."""
        return next((act.number for act in reversed(self.takes) if act.thing == self.subject), 0)

    @property
    def holds_subject(self) -> bool:
        """Whether it is in the hand at the end."""
        return self.subject != NOTHING and self.end.held == self.subject

    def put(self, thing: int) -> Act | None:
        """Return the step that put an object where it lies at the end; None if the agent did not put it down."""
        if self.end.held == thing:
            return None
        return next(
            (act for act in reversed(self.acts) if act.verb == "move" and act.valid and act.thing == thing), None
        )

    def ready(self, state: State, thing: int) -> bool:
        """Tell whether an object has the state that the goal asks for."""
        needed = self.goal.state
        if not needed:
            return True
        return state.flags[thing] & needed == needed and ABILITIES[needed] in self.game.things[thing].can

    @cached_property
    def placed(self) -> frozenset[int]:
        """Wanted objects that lie as the goal asks, together: those in the receptacle that has most of them."""
        best: frozenset[int] = frozenset()
        for place, contents in enumerate(self.end.contents):
            if self.is_target(place):
                here = frozenset(thing for thing in contents if thing in self.wanted and self.ready(self.end, thing))
                best = max(best, here, key=len)
        return best

    @cached_property
    def wrong_treatments(self) -> list[int]:
        """Steps that treated the subject in another way than asked, after it was last treated as asked."""
        found: list[int] = []
        for act in self.acts:
            if act.verb in TREATMENTS and act.valid and act.thing == self.subject and self.verb:
                found = [] if act.verb == self.verb else [*found, act.number]
        return found

    # -- the search --------------------------------------------------------------------------------------------------

    @cached_property
    def phase(self) -> int:
        """First step after the last one that took or put something: from here on the agent searched, or should have."""
        moved = [act.number for act in self.acts if act.verb in ("take", "move") and act.valid]
        return min(moved[-1] + 1 if moved else 1, self.length)

    def searches_lamp(self) -> bool:
        """Tell whether all that is left to find is the lamp."""
        return self.goal.lamp is not None and self.holds_subject

    @cached_property
    def needed(self) -> frozenset[int]:
        """Objects one of which is to be found at the end: wanted ones that are not placed, or lamps."""
        if self.searches_lamp():
            return frozenset(i for i, thing in enumerate(self.game.things) if thing.kind == self.goal.lamp)
        return self.wanted - self.placed

    @cached_property
    def overlooked(self) -> list[int]:
        """Steps of the last phase that went away from a needed object in plain sight."""
        found = []
        for act in self.acts[self.phase - 1 :]:
            if act.verb == "go" and act.valid:
                here = (place for place in self.game.here(act.before.location) if is_open(self.game, act.before, place))
                things = {thing for place in here for thing in act.before.contents[place]}
                if any(self.seen.get(thing, self.length) < act.number for thing in things & self.needed):
                    found.append(act.number)
        return found

    @cached_property
    def returns(self) -> list[int]:
        """Steps of the last phase that went to a place where the agent had been, or was, though there was a better one.

        Better is one that was not searched yet, or where a needed object had been seen.
        """
        visited = {act.place for act in self.arrivals if act.number < self.phase}
        found = []
        for act in self.acts[self.phase - 1 :]:
            if act.verb != "go" or act.place == NOTHING or not (act.valid or self.at(act.before, act.place)):
                continue
            known = any(self.seen.get(thing, self.length) < act.number for thing in self.needed)
            others = set(range(len(self.game.receptacles))) - {act.place}
            unsearched = any(self.searched.get(place, self.length) >= act.number for place in others)
            here = any(thing in self.needed for thing in act.after.contents[act.place])
            if act.place in visited and (known or unsearched) and not here:
                found.append(act.number)
            visited.add(act.place)
        return found


def replay(game: Game, actions: Sequence[str]) -> Episode | None:
    """Play commands of the engine; None if they win.

    Args:
        game: what was played.
        actions: T >= 1 commands; what follows the winning one is not looked at.

    Raises:
        ValueError: there are no actions.
    """
    if not actions:
        raise ValueError("an episode without steps has no mistake")
    state, acts = game.start, []
    for number, action in enumerate(actions, 1):
        after, _, valid = apply(game, state, action)
        acts.append(Act(number, *_parts(game, action), state, after, valid))
        if valid and is_won(game, after):
            return None
        state = after
    return Episode(game, acts)


def _parts(game: Game, action: str) -> tuple[str, int, int]:
    """Return (verb, thing, place) of a command; it need not be possible."""
    verb, _, rest = action.partition(" ")
    if verb == "go":
        name, where = "", rest.removeprefix("to ")
    elif verb in _BETWEEN:
        name, _, where = rest.partition(_BETWEEN[verb])
    else:
        name = where = rest
    return verb, game.thing_index.get(name, NOTHING), game.receptacle_index.get(where, NOTHING)
