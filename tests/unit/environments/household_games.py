"""Shared by the household tests: a small game made by hand, and the recorded games of the real ALFWorld."""

from __future__ import annotations

import json
import lzma
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from roleagent.environments.household.game import NOBODY, Game, Goal, Receptacle, State, Thing

DATA = Path(__file__).parents[4] / "shared" / "data" / "alfworld"


def kitchen(goal: Goal | None = None, goal_text: str = "put a clean mug in cabinet.") -> Game:
    """A closed cabinet (mug 1), fridge and microwave (closed, empty), a full shelf, an empty sink."""
    places = (("cabinet 1", "Cabinet", True), ("fridge 1", "Fridge", True), ("microwave 1", "Microwave", True))
    places += (("shelf 1", "Shelf", False), ("sinkbasin 1", "SinkBasin", False))
    food = frozenset({"pickupable", "cleanable", "heatable", "coolable", "sliceable"})
    ware = frozenset({"pickupable", "cleanable", "heatable", "coolable", "isReceptacleObject"})
    things = (
        Thing("apple 1", "Apple", food),
        Thing("desklamp 1", "DeskLamp", frozenset({"toggleable"})),
        Thing("knife 1", "Knife", frozenset({"pickupable", "cleanable"})),
        Thing("mug 2", "Mug", ware),
        Thing("mug 1", "Mug", ware),
        Thing("statue 1", "Statue", frozenset({"pickupable"})),
    )
    everything = frozenset({"Apple", "Knife", "Mug"})
    return Game(
        receptacles=tuple(Receptacle(name, kind, spot, door) for spot, (name, kind, door) in enumerate(places, 1)),
        things=things,
        can_contain={kind: everything for _, kind, _ in places} | {"Shelf": everything | {"Statue"}},
        goal=goal or Goal("pick_clean_then_place_in_recep", "Mug", "Cabinet", state=1),
        goal_text=goal_text,
        start=State(0, NOBODY, 0, ((4,), (), (), (0, 1, 2, 3, 5), ()), (0,) * 6, ((4,), (4,), (4,), (4,), (1,), (4,))),
    )


@dataclass(frozen=True)
class Played:
    """One recorded step of the stock engine."""

    action: str
    text: str
    admissible: tuple[str, ...]
    won: bool


@dataclass(frozen=True)
class Transcript:
    """One recorded game of the stock engine."""

    task_type: str
    first: str
    goal: str
    admissible: tuple[str, ...]
    steps: tuple[Played, ...]


def _commands(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"'([^']*)'", text))


@cache
def transcripts() -> tuple[Transcript, ...]:
    """Read the recorded games, one of each task type."""
    found = []
    for block in (DATA / "transcripts_6types.txt").read_text(encoding="utf-8").split("===== ")[1:]:
        first = re.search(r"^You are in the middle.*$", block, re.M)
        goal = re.search(r"^Your task is to: (.*)$", block, re.M)
        start = re.search(r"^ADMISSIBLE (.*)$", block, re.M)
        assert first
        assert goal
        assert start
        steps = re.findall(r"^>  (.*?) \(admissible\) \n (.*?) \n   ADM: (\[.*?\]) score .* won \[(\w+)\]", block, re.M)
        found.append(
            Transcript(
                task_type=block.split(" ", 1)[0],
                first=first[0],
                goal=goal[1],
                admissible=_commands(start[1]),
                steps=tuple(Played(a, text, _commands(adm), won == "True") for a, text, adm, won in steps),
            )
        )
    return tuple(found)


@cache
def real_games(split: str) -> tuple[dict[str, Any], ...]:
    """Read real games: id, task, pddl_problem, walkthrough."""
    with lzma.open(DATA / f"games_{split}.jsonl.xz", "rt", encoding="utf-8") as lines:
        return tuple(json.loads(line) for line in lines)
