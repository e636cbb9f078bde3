"""Scripted failures: one characteristic mistake, after which the demonstrator does not recover.

A `Mistake` looks at the expert's next move and says whether this is an occasion for it; if so it returns a `Script`:
the moves from here on and the label that a good diagnosis would give. Scripts may peek into the game, so that the
mistake really is one. Whether an episode failed is decided by the engine alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from roleagent.environments.household.engine import TREATMENTS
from roleagent.environments.household.expert import APPLIANCES, Expert, Move, kind_of
from roleagent.environments.household.game import Game
from roleagent.environments.household.generator import Draws


@dataclass(frozen=True, slots=True)
class Label:
    """What went wrong. At most 15 words a field; the fields are those of a diagnosis."""

    failure_type: str
    root_cause: str
    critical_step: int  #: 1..T: the step of the mistake
    lesson: str
    retrieval_query: str


class ScriptedMove(NamedTuple):
    """A move of a script; `critical` marks the mistake itself."""

    reasoning: str
    action: str
    critical: bool = False


class Script(NamedTuple):
    """What happens from the mistake on, without end, and how to call it."""

    failure_type: str
    root_cause: str
    lesson: str
    moves: Iterator[ScriptedMove]


@dataclass(frozen=True, slots=True)
class Occasion:
    """The situation before a move: what the expert knows and would do, and the game itself."""

    game: Game
    expert: Expert
    move: Move
    draws: Draws


DONE: Mapping[str, str] = {"clean": "cleaned", "heat": "heated", "cool": "cooled"}
Mistake = Callable[[Occasion], Script | None]


def task_phrase(expert: Expert) -> str:
    """Return the task in a few words, for retrieval: "clean mug and place in cabinet"."""
    wish = expert.wish
    if wish.lamp:
        return f"look at {wish.object} under {wish.lamp}"
    if wish.verb:
        return f"{wish.verb} {wish.object} and place in {wish.place}"
    return f"place two {wish.object} in {wish.place}" if wish.amount == 2 else f"place {wish.object} in {wish.place}"


def _fits(game: Game, thing: str, place: str) -> bool:
    receptacle = game.receptacles[game.receptacle_index[place]]
    return game.things[game.thing_index[thing]].kind in game.can_contain.get(receptacle.kind, frozenset())


def _wander(expert: Expert, critical: bool = False) -> Iterator[ScriptedMove]:
    """Go from receptacle to receptacle in the room's order, without doing anything there."""
    order = expert.memory.order
    position = order.index(expert.memory.at) if expert.memory.at else -1
    while True:
        position = (position + 1) % len(order)
        yield ScriptedMove("look around", f"go to {order[position]}", critical)
        critical = False


def _reach(expert: Expert, place: str, reasoning: str) -> Iterator[ScriptedMove]:
    """Go to a receptacle and open it if it turns out to be closed."""
    if expert.memory.at != place:
        yield ScriptedMove(reasoning, f"go to {place}")
    if place in expert.memory.closed:
        yield ScriptedMove(reasoning, f"open {place}")


def _place(expert: Expert, thing: str, place: str, critical: bool) -> Iterator[ScriptedMove]:
    """Carry an object to a receptacle and leave it there, then wander."""
    reasoning = f"place {thing} in {place}"
    yield from _reach(expert, place, reasoning)
    yield ScriptedMove(reasoning, f"move {thing} to {place}", critical)
    yield from _wander(expert)


def repeated_exploration(occasion: Occasion) -> Script | None:
    """Searches the same places again and again while others stay unsearched."""
    expert = occasion.expert
    again = list(expert.memory.searched)
    if occasion.move.kind != "search_go" or len(again) < 2:
        return None
    unsearched = occasion.move.action.removeprefix("go to ")

    def moves() -> Iterator[ScriptedMove]:
        position, critical = 0, True
        while True:
            if again[position] != expert.memory.at:
                yield ScriptedMove(occasion.move.reasoning, f"go to {again[position]}", critical)
                critical = False
            position = (position + 1) % len(again)

    return Script(
        "repeated exploration",
        f"{again[0]} was searched again while {unsearched} stayed unsearched.",
        "Search places that have not been searched yet.",
        moves(),
    )


def wrong_receptacle(occasion: Occasion) -> Script | None:
    """Leaves the right object in a receptacle of another kind."""
    expert, game = occasion.expert, occasion.game
    if occasion.move.kind != "place_go":
        return None
    thing = expert.memory.held
    others = [
        place for place in expert.memory.order if kind_of(place) != expert.wish.place and _fits(game, thing, place)
    ]
    if not others:
        return None
    place = occasion.draws.pick(others)
    return Script(
        "wrong receptacle",
        f"{thing} was placed in {place} instead of a {expert.wish.place}.",
        "Place the object only in the receptacle that the task names.",
        _place(expert, thing, place, critical=True),
    )


def wrong_object(occasion: Occasion) -> Script | None:
    """Takes an object of another kind and carries it through the task."""
    expert, game, memory = occasion.expert, occasion.game, occasion.expert.memory
    if occasion.move.kind not in ("search_go", "take") or memory.held or not memory.at:
        return None
    others = [
        name
        for name, place in memory.seen.items()
        if place == memory.at
        and kind_of(name) not in (expert.wish.object, expert.wish.lamp)
        and "pickupable" in game.things[game.thing_index[name]].can
        and (not expert.target or _fits(game, name, expert.target))
    ]
    if not others or memory.at in memory.closed:
        return None
    thing = occasion.draws.pick(others)

    def moves() -> Iterator[ScriptedMove]:
        yield ScriptedMove(f"find {thing} in {memory.at}", f"take {thing} from {memory.at}", critical=True)
        if expert.wish.lamp:
            lamps = [name for name in memory.seen if kind_of(name) == expert.wish.lamp]
            for lamp in lamps[:1]:
                yield from _reach(expert, memory.seen[lamp], f"find {lamp} in {memory.seen[lamp]}")
                yield ScriptedMove(f"find {lamp} in {memory.seen[lamp]}", f"use {lamp}")
            yield from _wander(expert)
        verb = expert.wish.verb
        if verb and TREATMENTS[verb][1] in game.things[game.thing_index[thing]].can:
            yield from _treat(expert, verb, thing, expert.appliance)
        yield from _place(expert, thing, expert.target, critical=False)

    return Script(
        "wrong object",
        f"{thing} was taken instead of a {expert.wish.object}.",
        "Take only the kind of object that the task names.",
        moves(),
    )


def _treat(expert: Expert, verb: str, thing: str, place: str, critical: bool = False) -> Iterator[ScriptedMove]:
    if expert.memory.at != place:
        yield ScriptedMove(f"{verb} {thing} with {place}", f"go to {place}")
    yield ScriptedMove(f"{verb} {thing} with {place}", f"{verb} {thing} with {place}", critical)


def missing_treatment(occasion: Occasion) -> Script | None:
    """Places the object without the treatment that the task asks for."""
    expert = occasion.expert
    if occasion.move.kind != "treat_go":
        return None
    thing, verb = expert.memory.held, expert.wish.verb
    return Script(
        "missing treatment",
        f"{thing} was placed in {expert.target} without being {DONE[verb]}.",
        f"{verb.capitalize()} the object with the {APPLIANCES[verb]} before placing it.",
        _place(expert, thing, expert.target, critical=True),
    )


def wrong_treatment(occasion: Occasion) -> Script | None:
    """Treats the object in another way than the task asks for, then places it."""
    expert, game = occasion.expert, occasion.game
    if occasion.move.kind != "treat_go":
        return None
    thing, verb = expert.memory.held, expert.wish.verb
    can = game.things[game.thing_index[thing]].can
    others = [
        (other, place)
        for other, kind in APPLIANCES.items()
        for place in expert.memory.order
        if other != verb and kind_of(place) == kind and TREATMENTS[other][1] in can
    ]
    if not others:
        return None
    other, place = occasion.draws.pick(others)

    def moves() -> Iterator[ScriptedMove]:
        yield from _treat(expert, other, thing, place, critical=True)
        yield from _place(expert, thing, expert.target, critical=False)

    return Script(
        "wrong treatment",
        f"{thing} was {DONE[other]} but had to be {DONE[verb]}.",
        f"Use the {APPLIANCES[verb]} when the task says {verb}.",
        moves(),
    )


def premature_placement(occasion: Occasion) -> Script | None:
    """Puts the object back where it was before treating it."""
    expert = occasion.expert
    place, thing = expert.memory.at, expert.memory.held
    if occasion.move.kind != "treat_go" or place == expert.target or not _fits(occasion.game, thing, place):
        return None
    return Script(
        "premature placement",
        f"{thing} was put back in {place} without being {DONE[expert.wish.verb]}.",
        "Keep the object in hand until it is treated.",
        _place(expert, thing, place, critical=True),
    )


def unopened_receptacle(occasion: Occasion) -> Script | None:
    """Passes by closed receptacles although the object lies in one."""
    expert, game, memory = occasion.expert, occasion.game, occasion.expert.memory
    if occasion.move.kind != "search_open" or memory.held:
        return None
    closed = memory.at
    goal_kind = game.goal.object
    open_ones = sum(
        game.things[thing].kind == goal_kind
        for place, inside in zip(game.receptacles, game.start.contents, strict=True)
        if not place.openable or place.name in memory.searched
        for thing in inside
    )
    if open_ones >= game.goal.count or not any(
        game.things[thing].kind == goal_kind for thing in game.start.contents[game.receptacle_index[closed]]
    ):
        return None

    def moves() -> Iterator[ScriptedMove]:
        critical = True
        for place in memory.order:
            if place not in memory.visited:
                yield ScriptedMove(occasion.move.reasoning, f"go to {place}", critical)
                critical = False
        yield from _wander(expert, critical)

    return Script(
        "unopened receptacle",
        f"{closed} was left closed and the {expert.wish.object} in it was never found.",
        "Open closed receptacles while searching.",
        moves(),
    )


def closed_target(occasion: Occasion) -> Script | None:
    """Tries again and again to place the object in a closed receptacle."""
    expert = occasion.expert
    if occasion.move.kind != "place_open":
        return None
    thing = expert.memory.held

    def moves() -> Iterator[ScriptedMove]:
        critical = True
        while True:
            yield ScriptedMove(occasion.move.reasoning, f"move {thing} to {expert.target}", critical)
            critical = False

    return Script(
        "closed target",
        f"{expert.target} was still closed when {thing} was to be placed.",
        "Open a closed receptacle before placing something in it.",
        moves(),
    )


def lamp_not_used(occasion: Occasion) -> Script | None:
    """Examines the object beside the lamp without turning it on."""
    expert = occasion.expert
    if occasion.move.kind != "use":
        return None
    thing, lamp = expert.memory.held, occasion.move.action.removeprefix("use ")

    def moves() -> Iterator[ScriptedMove]:
        yield ScriptedMove(f"examine {thing}", f"examine {thing}", critical=True)
        yield from _wander(expert)

    return Script(
        "lamp not used",
        f"{thing} was examined but {lamp} was never turned on.",
        "Use the lamp while holding the object.",
        moves(),
    )


def second_object_forgotten(occasion: Occasion) -> Script | None:
    """Stops after the first of two objects."""
    expert = occasion.expert
    if expert.wish.amount != 2 or expert.memory.held or expert.placed() != 1:
        return None
    return Script(
        "second object forgotten",
        f"only one {expert.wish.object} was placed in {expert.target}.",
        "Find and place the second object too.",
        _wander(expert, critical=True),
    )


def invalid_action(occasion: Occasion) -> Script | None:
    """Repeats a command that needs another place than where the agent stands."""
    expert = occasion.expert
    thing = expert.memory.held
    if occasion.move.kind == "treat_go":
        place = expert.appliance
        action = f"{expert.wish.verb} {thing} with {place}"
    elif occasion.move.kind == "place_go":
        place = expert.target
        action = f"move {thing} to {place}"
    else:
        return None

    def moves() -> Iterator[ScriptedMove]:
        critical = True
        while True:
            yield ScriptedMove(occasion.move.reasoning, action, critical)
            critical = False

    return Script(
        "invalid action",
        f"{action} was tried without going to {place} first.",
        "Go to the receptacle before acting there.",
        moves(),
    )


#: All mistakes. The order is that in which they are offered at an occasion.
MISTAKES: Mapping[str, Mistake] = {
    "repeated exploration": repeated_exploration,
    "unopened receptacle": unopened_receptacle,
    "wrong object": wrong_object,
    "missing treatment": missing_treatment,
    "wrong treatment": wrong_treatment,
    "premature placement": premature_placement,
    "wrong receptacle": wrong_receptacle,
    "closed target": closed_target,
    "lamp not used": lamp_not_used,
    "second object forgotten": second_object_forgotten,
    "invalid action": invalid_action,
}
