"""Derive the scene table of the generator from the real ALFWorld games (MIT; built on ALFRED, MIT).

Run once; the result is `scenes.json` beside this file. A test derives it again and compares. Kept in the table:
which receptacles each real room has, which objects were seen in which receptacle type, what can be done to each
object type, how often each receptacle type is openable, which pairs may be combined (canContain), and the goals.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

PROVENANCE = (
    "Derived from the 3,553 training games of ALFWorld (MIT), which builds on ALFRED (MIT) and TextWorld (MIT)."
)
PROPERTIES = ("pickupable", "cleanable", "heatable", "coolable", "toggleable", "sliceable", "isReceptacleObject")
_FACT = re.compile(r"\(([^()\s]+) ([^()]*)\)")


def scene_kind(scene: int) -> str:
    """Return the kind of an ALFRED scene number: the hundreds digit decides."""
    return {0: "kitchen", 2: "livingroom", 3: "bedroom", 4: "bathroom"}[scene // 100]


def derive(games: Iterable[Mapping[str, str]]) -> dict[str, Any]:
    """Return the scene table of games given as records with `id` and `pddl_problem`."""
    rooms: dict[str, dict[int, dict[str, int]]] = defaultdict(dict)
    placed: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    goals: dict[str, dict[str, Counter[tuple[str, str]]]] = defaultdict(lambda: defaultdict(Counter))
    objects: dict[str, set[str]] = defaultdict(set)
    openable: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    contain: dict[str, set[str]] = defaultdict(set)
    for game in games:
        task_type, thing, _, place, scene = game["id"].split("/")[0].split("-")
        kind = scene_kind(int(scene))
        goals[task_type][kind][(thing, place)] += 1
        problem = game["pddl_problem"]
        facts: dict[str, list[list[str]]] = defaultdict(list)
        for name, arguments in _FACT.findall(problem, problem.index("(:init"), problem.index("(:goal")):
            facts[name].append(arguments.split())
        receptacle_types = {r: t.removesuffix("Type") for r, t in facts["receptacleType"]}
        object_types = {o: t.removesuffix("Type") for o, t in facts["objectType"]}
        rooms[kind][int(scene)] = dict(sorted(Counter(receptacle_types.values()).items()))
        for thing_id, receptacle in facts["inReceptacle"]:
            placed[kind][receptacle_types[receptacle]][object_types[thing_id]] += 1
        can_open = {arguments[0] for arguments in facts["openable"]}
        for receptacle, receptacle_type in receptacle_types.items():
            openable[receptacle_type][receptacle in can_open] += 1
        for receptacle_type, object_type in facts["canContain"]:
            contain[receptacle_type.removesuffix("Type")].add(object_type.removesuffix("Type"))
        for name in PROPERTIES:
            for (thing_id,) in facts[name]:
                if thing_id in object_types:  # a cracked egg has properties but no type
                    objects[object_types[thing_id]].add(name)
    return {
        "provenance": PROVENANCE,
        "rooms": {kind: [rooms[kind][scene] for scene in sorted(rooms[kind])] for kind in sorted(rooms)},
        "placed": {
            kind: {place: dict(sorted(counts.items())) for place, counts in sorted(placed[kind].items())}
            for kind in sorted(placed)
        },
        "objects": {name: sorted(objects[name]) for name in sorted(objects)},
        "openable": {name: round(yes / (no + yes), 3) for name, (no, yes) in sorted(openable.items()) if yes},
        "can_contain": {name: sorted(contain[name]) for name in sorted(contain)},
        "goals": {
            task_type: {
                kind: [[thing, place, count] for (thing, place), count in sorted(pairs.items())]
                for kind, pairs in sorted(kinds.items())
            }
            for task_type, kinds in sorted(goals.items())
        },
    }
