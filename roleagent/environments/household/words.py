"""What is read: rooms, receptacles and objects in the words of ALFWorld's grammar, and what `help` answers."""

from __future__ import annotations

from roleagent.environments.household.game import CLEAN, COOL, HOT, SLICED, TOGGLED, Game, State

NOTHING_HAPPENS = "Nothing happens."
_MIDDLE = "You are in the middle of a room. Looking quickly around you, you see"

HELP = """Available commands:
  look:                             look around your current location
  inventory:                        check your current inventory
  go to (receptacle):               move to a receptacle
  open (receptacle):                open a receptacle
  close (receptacle):               close a receptacle
  take (object) from (receptacle):  take an object from a receptacle
  move (object) to (receptacle):  place an object in or on a receptacle
  examine (something):              examine a receptacle or an object
  use (object):                     use an object
  heat (object) with (receptacle):  heat an object using a receptacle
  clean (object) with (receptacle): clean an object using a receptacle
  cool (object) with (receptacle):  cool an object using a receptacle
  slice (object) with (object):     slice an object using a sharp object
"""


def listing(names: list[str]) -> str:
    """Join names as ALFWorld does: "a x", "a x, and a y", "nothing"."""
    if not names:
        return "nothing"
    if len(names) == 1:
        return f"a {names[0]}"
    return ", ".join([f"a {name}" for name in names[:-1]]) + f", and a {names[-1]}"


def receptacle_text(game: Game, state: State, index: int) -> str:
    """Describe a receptacle and what can be seen in or on it."""
    receptacle = game.receptacles[index]
    name = receptacle.name
    if receptacle.openable and not state.opened >> index & 1:
        return f"The {name} is closed."
    seen = listing([game.things[thing].name for thing in state.contents[index]])
    if receptacle.openable:
        return f"The {name} is open. In it, you see {seen}."
    return f"On the {name}, you see {seen}."


def thing_text(game: Game, state: State, index: int) -> str:
    """Describe an object. The first condition that holds decides, in the grammar's order."""
    thing, flags = game.things[index], state.flags[index]
    name = thing.name
    if "isReceptacleObject" in thing.can:
        inner = listing([game.things[other].name for other in game.inside.get(index, ())])
        return f"This is a normal {name}. In it, you see {inner}."
    clean, hot, cool, cut = flags & CLEAN, flags & HOT, flags & COOL, flags & SLICED
    if clean and (hot or cool):
        words = "hot and clean" if hot else "cool and clean"
    elif cut and (clean or hot or cool):
        words = "clean" if clean else "hot" if hot else "cool"
    else:
        words = "hot" if hot else "clean" if clean else "cold" if cool else ""
    if words:
        return f"This is a {words} sliced {name}." if cut else f"This is a {words} {name}."
    if "toggleable" in thing.can and flags & TOGGLED:  # the stock engine never finds that something is off
        return f"This {name} is on."
    if "sliceable" in thing.can and cut:
        return f"This is a sliced {name}."
    return f"There's nothing special about {name}."


def room_text(game: Game) -> str:
    """Return the first observation: everything in the room, seen from its middle."""
    room = listing([receptacle.name for receptacle in game.receptacles])
    return f"{_MIDDLE} {room}."


def look_text(game: Game, state: State) -> str:
    """Answer "look", as the stock engine does.

    From the middle of the room it lists nothing. Beside a receptacle it sees what was taken from one receptacle of this
    location and put into another, once for each that it was taken from.
    """
    places = game.here(state.location)
    here = [game.receptacles[index].name for index in places]
    if not here:
        return f"{_MIDDLE} nothing."
    facing = here[0] if len(here) == 1 else ", ".join(here[:-1]) + f", and {here[-1]}"
    beside = [
        game.things[thing].name
        for thing, place in state.left
        if place in places and state.location in state.spots[thing]
    ]
    return f"You are facing the {facing}. Next to it, you see {listing(beside)}."
