"""A pure engine for ALFWorld's text games, in ALFWorld's own words.

`Game` is what never changes, `State` is what does; both are immutable, and `apply` maps (game, state, command) to
(next state, text, valid). The preconditions and effects are those of ALFWorld's `domain.pddl`, the texts those of
its grammar file (the grammar since December 2024: "move X to Y"). Things stand in the order in which they are shown.

Where the stock engine departs from what the PDDL and the grammar seem to say, the stock engine is followed: an object
is examined only while it is held, nothing is ever said to be off, and "look" shows beside a receptacle what was moved
between receptacles of one location. `tests/differential` compares both engines.
"""

from __future__ import annotations

from roleagent.environments.household.game import CLEAN, COOL, HOT, NOBODY, SLICED, TOGGLED, Game, State
from roleagent.environments.household.words import (
    HELP,
    NOTHING_HAPPENS,
    look_text,
    receptacle_text,
    room_text,
    thing_text,
)

__all__ = ["Game", "State", "admissible", "apply", "is_won", "room_text"]  # what it takes to play


def is_open(game: Game, state: State, index: int) -> bool:
    """Tell whether hands can reach into the receptacle: open, or without a door."""
    return not game.receptacles[index].openable or bool(state.opened >> index & 1)


#: What an object must be able to become, for a goal that asks for it; some start cold that cannot be cooled.
ABILITIES = {CLEAN: "cleanable", HOT: "heatable", COOL: "coolable"}


def is_won(game: Game, state: State) -> bool:
    """Tell whether the goal holds."""
    goal = game.goal
    if goal.lamp is not None:
        if state.held == NOBODY or game.things[state.held].kind != goal.object:
            return False
        return any(
            game.things[thing].kind == goal.lamp and state.flags[thing] & TOGGLED
            for place in game.here(state.location)
            for thing in state.contents[place]
        )
    for index, contents in enumerate(state.contents):
        if contents and game.receptacles[index].kind == goal.receptacle:
            fit = 0
            for thing in contents:
                if game.things[thing].kind == goal.object and state.flags[thing] & goal.state == goal.state:
                    fit += not goal.state or ABILITIES[goal.state] in game.things[thing].can
            if fit >= goal.count:
                return True
    return False


def _replace(values: tuple[tuple[int, ...], ...], index: int, value: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    return (*values[:index], value, *values[index + 1 :])


def _marked(state: State, thing: int, add: int, remove: int = 0) -> State:
    flags = state.flags
    return state._replace(flags=(*flags[:thing], flags[thing] & ~remove | add, *flags[thing + 1 :]))


def _treat(game: Game, state: State, verb: str, thing: int, place: int) -> tuple[State, str] | None:
    kinds, ability, add, remove = TREATMENTS[verb]
    if state.held != thing or game.receptacles[place].kind not in kinds or ability not in game.things[thing].can:
        return None
    text = f"You {verb} the {game.things[thing].name} using the {game.receptacles[place].name}."
    return _marked(state, thing, add, remove), text


#: verb -> (receptacle kinds, PDDL property, flag set, flag cleared)
TREATMENTS: dict[str, tuple[tuple[str, ...], str, int, int]] = {
    "clean": (("Sink", "SinkBasin"), "cleanable", CLEAN, 0),
    "heat": (("Microwave",), "heatable", HOT, COOL),
    "cool": (("Fridge",), "coolable", COOL, HOT),
}


def apply(game: Game, state: State, command: str) -> tuple[State, str, bool]:
    """Return (next state, text, valid). An impossible command says "Nothing happens." and changes nothing."""
    result = _apply(game, state, command)
    if result is None:
        return state, NOTHING_HAPPENS, False
    return result[0], result[1], True


def _apply(game: Game, state: State, command: str) -> tuple[State, str] | None:
    verb, _, rest = command.partition(" ")
    if verb == "go":
        place = game.receptacle_index.get(rest[3:]) if rest.startswith("to ") else None
        return None if place is None else _go(game, state, place)
    if verb in ("open", "close"):
        place = game.receptacle_index.get(rest)
        return None if place is None else _door(game, state, verb, place)
    if verb == "take":
        name, _, where = rest.partition(" from ")
        return _take(game, state, name, where)
    if verb == "move":
        name, _, where = rest.partition(" to ")
        return _put(game, state, name, where)
    if verb in TREATMENTS:
        name, _, where = rest.partition(" with ")
        thing, place = game.thing_index.get(name), game.receptacle_index.get(where)
        if thing is None or place is None or game.receptacles[place].location != state.location:
            return None
        return _treat(game, state, verb, thing, place)
    if verb == "use":
        return _use(game, state, rest)
    if verb == "examine":
        return _examine(game, state, rest)
    if verb == "slice":
        name, _, knife = rest.partition(" with ")
        return _slice(game, state, name, knife)
    if command == "look":
        return state, look_text(game, state)
    if command == "inventory":
        carried = "anything" if state.held == NOBODY else f"a {game.things[state.held].name}"
        return state, f"You are not carrying {carried}." if state.held == NOBODY else f"You are carrying: {carried}."
    if command == "help":
        return state, HELP
    return None


def _go(game: Game, state: State, place: int) -> tuple[State, str] | None:
    receptacle = game.receptacles[place]
    if receptacle.location == state.location:
        return None
    state = state._replace(location=receptacle.location)
    return state, f"You arrive at {receptacle.name}. {receptacle_text(game, state, place)}"


def _door(game: Game, state: State, verb: str, place: int) -> tuple[State, str] | None:
    receptacle = game.receptacles[place]
    opened = bool(state.opened >> place & 1)
    if not receptacle.openable or receptacle.location != state.location or opened != (verb == "close"):
        return None
    state = state._replace(opened=state.opened ^ (1 << place))
    if verb == "close":
        return state, f"You close the {receptacle.name}."
    return state, f"You open the {receptacle.name}. {receptacle_text(game, state, place)}"


def _take(game: Game, state: State, name: str, where: str) -> tuple[State, str] | None:
    thing, place = game.thing_index.get(name), game.receptacle_index.get(where)
    if thing is None or place is None or state.held != NOBODY or game.receptacles[place].location != state.location:
        return None
    if thing not in state.contents[place] or "pickupable" not in game.things[thing].can:
        return None
    if not is_open(game, state, place):
        return None
    rest = tuple(other for other in state.contents[place] if other != thing)
    spots = tuple(spot for spot in state.spots[thing] if spot != state.location)
    state = state._replace(
        held=thing,
        contents=_replace(state.contents, place, rest),
        spots=_replace(state.spots, thing, spots),
        left=tuple(sorted({*state.left, (thing, place)})),
    )
    return state, f"You pick up the {name} from the {where}."


def _put(game: Game, state: State, name: str, where: str) -> tuple[State, str] | None:
    thing, place = game.thing_index.get(name), game.receptacle_index.get(where)
    if thing is None or place is None or state.held != thing:
        return None
    receptacle = game.receptacles[place]
    if receptacle.location != state.location or not is_open(game, state, place):
        return None
    if game.things[thing].kind not in game.can_contain.get(receptacle.kind, frozenset()):
        return None
    contents = tuple(sorted({*state.contents[place], thing}))
    spots = tuple(sorted({*state.spots[thing], state.location}))
    state = state._replace(
        held=NOBODY,
        contents=_replace(state.contents, place, contents),
        spots=_replace(state.spots, thing, spots),
        left=tuple(pair for pair in state.left if pair != (thing, place)),
    )
    return state, f"You move the {name} to the {where}."


def _use(game: Game, state: State, name: str) -> tuple[State, str] | None:
    thing = game.thing_index.get(name)
    if thing is None or "toggleable" not in game.things[thing].can:
        return None
    if not any(thing in state.contents[place] for place in game.here(state.location)):
        return None
    return _marked(state, thing, TOGGLED), f"You turn on the {name}."


def _examine(game: Game, state: State, name: str) -> tuple[State, str] | None:
    place = game.receptacle_index.get(name)
    if place is not None:
        if game.receptacles[place].location != state.location:
            return None
        return state, receptacle_text(game, state, place)
    thing = game.thing_index.get(name)
    if thing is None or state.held != thing:
        return None
    return state, thing_text(game, state, thing)


def _slice(game: Game, state: State, name: str, knife: str) -> tuple[State, str] | None:
    thing, tool = game.thing_index.get(name), game.thing_index.get(knife)
    if thing is None or tool is None or state.held != tool or game.things[tool].kind not in ("Knife", "ButterKnife"):
        return None
    if "sliceable" not in game.things[thing].can or state.location not in state.spots[thing]:
        return None
    return _marked(state, thing, SLICED), f"You sliced the {name} with the {knife}."


def admissible(game: Game, state: State) -> tuple[str, ...]:
    """Return every possible command, sorted as the stock engine sorts them."""
    commands = ["help", "inventory", "look"]
    held = None if state.held == NOBODY else game.things[state.held]
    for index, receptacle in enumerate(game.receptacles):
        name = receptacle.name
        if receptacle.location != state.location:
            commands.append(f"go to {name}")
            continue
        commands.append(f"examine {name}")
        reachable = is_open(game, state, index)
        if receptacle.openable:
            commands.append(f"close {name}" if reachable else f"open {name}")
        for thing in state.contents[index]:
            if "toggleable" in game.things[thing].can:
                commands.append(f"use {game.things[thing].name}")
        if held is None:
            if reachable:
                commands.extend(
                    f"take {game.things[thing].name} from {name}"
                    for thing in state.contents[index]
                    if "pickupable" in game.things[thing].can
                )
            continue
        if reachable and held.kind in game.can_contain.get(receptacle.kind, frozenset()):
            commands.append(f"move {held.name} to {name}")
        for verb, (kinds, ability, _, _) in TREATMENTS.items():
            if receptacle.kind in kinds and ability in held.can:
                commands.append(f"{verb} {held.name} with {name}")
    if held is not None:
        commands.append(f"examine {held.name}")
        if held.kind in ("Knife", "ButterKnife"):
            commands.extend(
                f"slice {thing.name} with {held.name}"
                for index, thing in enumerate(game.things)
                if "sliceable" in thing.can and state.location in state.spots[index]
            )
    return tuple(sorted(set(commands)))
