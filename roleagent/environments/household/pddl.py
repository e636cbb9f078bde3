"""Games as ALFWorld's PDDL problems, both ways, and the JSON of a `game.tw-pddl` file.

`problem_text` states a generated game with the predicates and types of ALFWorld's `domain.pddl`, in the layout of its
data, so that the stock engine can load it and gives everything the same name. `read_problem` builds a `Game` from such
a text, real or generated; names follow the stock engine: ids in sorted order, the highest number first.
The domain and the grammar belong to ALFWorld (MIT) and are passed in by the caller.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

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
from roleagent.environments.household.scenes import scenes
from roleagent.errors import EnvironmentFault

PROPERTIES = ("pickupable", "isReceptacleObject", "cleanable", "heatable", "coolable", "toggleable", "sliceable")
_STATES = {"isClean": CLEAN, "isHot": HOT, "isCool": COOL, "isToggled": TOGGLED, "isSliced": SLICED}
_NEEDED = {CLEAN: ("cleanable", "isClean"), HOT: ("heatable", "isHot"), COOL: ("coolable", "isCool")}
_FACT = re.compile(r"\(([^()\s]+) ([^()]*)\)")


def thing_id(kind: str, position: int, height: int) -> str:
    """Return an ALFRED-like id. Ids of a kind sort by position; a basin's id names the sink or tub first."""
    base = kind.removesuffix("Basin")
    text = f"{base}_bar__plus_{position:02d}_dot_00_bar__plus_{height:02d}_dot_00_bar__plus_00_dot_00"
    return f"{text}_bar_{kind}" if base != kind else text


def _ids(kinds: Sequence[str], height: int) -> list[str]:
    """Return one id for each kind, so that sorting ids gives back the order of the kinds."""
    count: dict[str, int] = {}
    ids = []
    for kind in kinds:
        ids.append(thing_id(kind, count.get(kind, 0), height))
        count[kind] = count.get(kind, 0) + 1
    return ids


def problem_text(game: Game, name: str = "household") -> str:
    """Return the game's PDDL problem. `name` is any PDDL word."""
    places = _ids([receptacle.kind for receptacle in game.receptacles], 0)
    things = _ids([thing.kind for thing in game.things], 1)
    locations = sorted({receptacle.location for receptacle in game.receptacles} | {game.start.location})
    object_kinds = sorted(scenes().objects.keys() | {thing.kind for thing in game.things})
    place_kinds = sorted({receptacle.kind for receptacle in game.receptacles})
    objects = [
        "agent1 - agent",
        *(f"        {kind} - object" for kind in object_kinds),
        *(f"        {kind}Type - otype" for kind in object_kinds),
        *(f"        {kind}Type - rtype" for kind in sorted(game.can_contain.keys() | set(place_kinds))),
        *(f"        {thing} - object" for thing in things),
        *(f"        {place} - receptacle" for place in places),
        *(f"        loc_bar_{location:03d} - location" for location in locations),
    ]
    present = {thing.kind for thing in game.things}
    facts = [f"(receptacleType {i} {r.kind}Type)" for i, r in zip(places, game.receptacles, strict=True)]
    facts += [f"(objectType {i} {thing.kind}Type)" for i, thing in zip(things, game.things, strict=True)]
    facts += [
        f"(canContain {place}Type {kind}Type)"
        for place in place_kinds
        for kind in sorted(game.can_contain.get(place, frozenset()) & present)
    ]
    for ability in PROPERTIES:
        facts += [f"({ability} {i})" for i, thing in zip(things, game.things, strict=True) if ability in thing.can]
    facts += [f"(openable {i})" for i, r in zip(places, game.receptacles, strict=True) if r.openable]
    facts += [f"(opened {i})" for number, i in enumerate(places) if game.start.opened >> number & 1]
    facts.append(f"(atLocation agent1 loc_bar_{game.start.location:03d})")
    for predicate, bit in _STATES.items():
        facts += [f"({predicate} {i})" for i, flags in zip(things, game.start.flags, strict=True) if flags & bit]
    for place, inside in zip(places, game.start.contents, strict=True):
        facts += [f"(inReceptacle {things[thing]} {place})" for thing in inside]
    for outer, inner in game.inside.items():
        facts += [f"(inReceptacleObject {things[thing]} {things[outer]})" for thing in inner]
    facts += [
        f"(receptacleAtLocation {i} loc_bar_{r.location:03d})" for i, r in zip(places, game.receptacles, strict=True)
    ]
    facts += [
        f"(objectAtLocation {i} loc_bar_{spot:03d})"
        for i, spots in zip(things, game.start.spots, strict=True)
        for spot in spots
    ]
    objects_text, facts_text = "\n".join(objects), "\n".join(f"        {fact}" for fact in facts)
    return f"""
(define (problem {name})
(:domain alfred)
(:objects
{objects_text}
        )

(:init
{facts_text}
        )

        (:goal
            {goal_text(game.goal)}
        )
    )
"""


def goal_text(goal: Goal) -> str:
    """Return the PDDL goal, as ALFWorld states it for each task type."""
    if goal.lamp is not None:
        return (
            "(and (exists (?ot - object ?r - receptacle ?a - agent ?l - location) "
            f"(and (objectType ?ot {goal.lamp}Type) (toggleable ?ot) (isToggled ?ot) "
            "(receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?ot ?r))) "
            f"(exists (?o - object ?a - agent) (and (objectType ?o {goal.object}Type) (holds ?a ?o))))"
        )
    kind, place = f"{goal.object}Type", f"{goal.receptacle}Type"
    if goal.count == 2:
        return (
            "(and (exists (?r - receptacle) (exists (?o1 - object) "
            f"(and (objectType ?o1 {kind}) (receptacleType ?r {place}) (inReceptacle ?o1 ?r) (exists (?o2 - object) "
            f"(and (not (= ?o1 ?o2)) (objectType ?o2 {kind}) (receptacleType ?r {place}) (inReceptacle ?o2 ?r)))))))"
        )
    conditions = [f"(objectType ?o {kind})", f"(receptacleType ?r {place})", "(inReceptacle ?o ?r)"]
    if goal.state:
        able, state = _NEEDED[goal.state]
        conditions = [f"({able} ?o)", f"({state} ?o)", *conditions]
    return f"(and (exists (?r - receptacle) (exists (?o - object) (and {' '.join(conditions)}))))"


def game_file(game: Game, domain: str, grammar: str, walkthrough: Sequence[str], name: str = "household") -> str:
    """Return the JSON text of a `game.tw-pddl` file.

    Args:
        game: the game.
        domain: text of ALFWorld's `domain.pddl`.
        grammar: text of ALFWorld's grammar, with "UNKNOWN GOAL" where the goal sentence goes.
        walkthrough: commands that win.
        name: any PDDL word.
    """
    record = {
        "pddl_domain": domain,
        "grammar": grammar.replace("UNKNOWN GOAL", game.goal_text),
        "pddl_problem": problem_text(game, name),
        "solvable": True,
        "walkthrough": list(walkthrough),
    }
    return json.dumps(record)


def _names(ids: Iterable[str]) -> dict[str, str]:
    """Return id -> name, as the stock engine does: over all sorted ids, the highest number first.

    The word is what stands before the first "_bar_", with "basin" where the id has it: a bath's sink is a bathtubbasin.
    """
    words = {}
    for text in sorted(ids, key=str.lower):
        low = text.lower()
        words[text] = low.partition("_bar_")[0] + ("basin" if "basin" in low else "")
    left: dict[str, int] = defaultdict(int)
    for word in words.values():
        left[word] += 1
    names = {}
    for text, word in words.items():
        names[text] = f"{word} {left[word]}"
        left[word] -= 1
    return names


def read_problem(text: str, sentence: str) -> Game:
    """Build the game of an ALFWorld PDDL problem with its goal sentence.

    Raises:
        EnvironmentFault: the problem is not one of ALFWorld's.
    """
    try:
        start, end = text.index("(:init"), text.index("(:goal")
    except ValueError as error:
        raise EnvironmentFault("PDDL problem without (:init or (:goal: this is not an ALFWorld problem") from error
    facts: dict[str, list[list[str]]] = defaultdict(list)
    for name, arguments in _FACT.findall(text, start, end):
        facts[name].append(arguments.split())
    one = {name: {entry[0] for entry in entries} for name, entries in facts.items()}
    declared = re.findall(r"(\S+_bar_\S+) - (object|receptacle)\b", text[:start])
    names = _names(dict.fromkeys(ident for ident, _ in declared))
    spot = {place: index for index, place in enumerate(sorted(_locations(facts)))}
    kinds = {ident: kind.removesuffix("Type") for ident, kind in (*facts["receptacleType"], *facts["objectType"])}
    place_ids = [ident for ident in names if ident in one["receptacleType"]]
    object_ids = [ident for ident in names if ident in one["objectType"]]
    index = {ident: number for number, ident in enumerate(object_ids)}
    where = {place: spot[location] for place, location in facts["receptacleAtLocation"]}
    receptacles = tuple(
        Receptacle(names[ident], kinds[ident], where.get(ident, -1), ident in one.get("openable", ()))
        for ident in place_ids
    )
    things = tuple(
        Thing(names[ident], kinds[ident], frozenset(able for able in PROPERTIES if ident in one.get(able, ())))
        for ident in object_ids
    )
    contents: dict[str, list[int]] = defaultdict(list)
    for thing, place in facts["inReceptacle"]:
        contents[place].append(index[thing])
    spots: dict[str, set[int]] = defaultdict(set)
    for thing, location in facts["objectAtLocation"]:
        spots[thing].add(spot[location])
    inside: dict[int, list[int]] = defaultdict(list)
    for inner, outer in facts["inReceptacleObject"]:
        if inner in index and outer in index:
            inside[index[outer]].append(index[inner])
    can_contain: dict[str, set[str]] = defaultdict(set)
    for place_kind, kind in facts["canContain"]:
        can_contain[place_kind.removesuffix("Type")].add(kind.removesuffix("Type"))
    return Game(
        receptacles=receptacles,
        things=things,
        can_contain={place: frozenset(kinds) for place, kinds in can_contain.items()},
        goal=_read_goal(text[end:]),
        goal_text=sentence,
        start=State(
            location=spot[facts["atLocation"][0][1]],
            held=NOBODY,
            opened=sum(1 << number for number, ident in enumerate(place_ids) if ident in one.get("opened", ())),
            contents=tuple(tuple(sorted(contents[ident])) for ident in place_ids),
            flags=tuple(
                sum(bit for predicate, bit in _STATES.items() if ident in one.get(predicate, ()))
                for ident in object_ids
            ),
            spots=tuple(tuple(sorted(spots[ident])) for ident in object_ids),
        ),
        inside={outer: tuple(sorted(inner)) for outer, inner in inside.items()},
    )


def _locations(facts: dict[str, list[list[str]]]) -> set[str]:
    names = ("receptacleAtLocation", "objectAtLocation", "atLocation")
    return {entry[1] for name in names for entry in facts[name]}


def _read_goal(text: str) -> Goal:
    kinds = re.findall(r"\(objectType \?\w+ (\w+)Type\)", text)
    places = re.findall(r"\(receptacleType \?r (\w+)Type\)", text)
    if "(isToggled" in text and len(kinds) == 2:
        return Goal("look_at_obj_in_light", object=kinds[1], lamp=kinds[0])
    if not kinds or not places:
        raise EnvironmentFault("PDDL goal is none of ALFWorld's six task types")
    if len(kinds) == 2:
        return Goal("pick_two_obj_and_place", object=kinds[0], receptacle=places[0], count=2)
    for state, (_, predicate) in _NEEDED.items():
        if f"({predicate} " in text:
            task_type = f"pick_{ {CLEAN: 'clean', HOT: 'heat', COOL: 'cool'}[state] }_then_place_in_recep"
            return Goal(task_type, object=kinds[0], receptacle=places[0], state=state)
    return Goal("pick_and_place_simple", object=kinds[0], receptacle=places[0])
