"""The games that are compared, each as the content of a `game.tw-pddl`.

Kinds: `valid_seen` and `train` are real games with the grammar they came with; `old` are real games with the grammar
from before December 2024 ("put X in/on Y", no help); `household` are generated homes.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from roleagent.environments.alfworld.records import Record, read_game_file
from roleagent.environments.household.demonstrations import demonstrate
from roleagent.environments.household.generator import generate
from roleagent.environments.household.pddl import game_file, read_problem
from tests.differential.player import Names

DATA = Path(__file__).parents[3] / "shared" / "data" / "alfworld"
_OLD_WORDS = (
    ("You arrive at {r.name}.", "You arrive at {lend.name}."),
    ("move {o} to {r}", "put {o} in/on {r}"),
    ("You move the {o.name} to the {r.name}.", "You put the {o.name} in/on the {r.name}."),
)


@dataclass(frozen=True, slots=True)
class Source:
    """One game: `game` is "<task>/<trial>", or a household task id."""

    kind: str
    game: str

    def game_file(self) -> dict[str, Any]:
        """Return what stands in its `game.tw-pddl`."""
        domain, grammar = logic()
        if self.kind == "household":
            walkthrough = [step.action for step in demonstrate(self.game, max_steps=200).steps]
            file: dict[str, Any] = json.loads(game_file(generate(self.game), domain, grammar, walkthrough, "home"))
            return file
        record = real(self.kind if self.kind != "old" else "valid_seen", self.game)
        walkthrough = record["walkthrough"]
        if self.kind == "old":
            domain, grammar = old_logic()
            walkthrough = [
                command.replace("move ", "put ").replace(" to ", " in/on ") if command.startswith("move ") else command
                for command in walkthrough
            ]
        return {
            "pddl_domain": domain,
            "grammar": grammar.replace("UNKNOWN GOAL", record["task"]),
            "pddl_problem": record["pddl_problem"],
            "solvable": True,
            "walkthrough": walkthrough,
        }

    def record(self) -> Record:
        """Return the game as our engine reads it: from its game file, as from an official folder."""
        found = read_game_file(self.game, json.dumps(self.game_file()))
        assert found is not None
        return found


_records: dict[tuple[str, str], dict[str, Any]] = {}


def load(split: str, wanted: Collection[str] | None = None) -> list[str]:
    """Read the records of a split, or only those that are wanted; return the ids of all, in the file's order."""
    found = []
    with lzma.open(DATA / f"games_{split}.jsonl.xz", "rt", encoding="utf-8") as lines:
        for line in lines:
            game = line.split('"', 4)[3]  # the id comes first; most records are not parsed
            found.append(game)
            if wanted is None or game in wanted:
                _records[split, game] = json.loads(line)
    return found


def real(split: str, game: str) -> dict[str, Any]:
    """Return the record of a real game: id, task, pddl_problem, walkthrough."""
    if (split, game) not in _records:
        load(split, {game})
    return _records[split, game]


@cache
def logic() -> tuple[str, str]:
    """Return domain and grammar of the present release."""
    domain = (DATA / "domain.pddl").read_text(encoding="utf-8")
    return domain, (DATA / "grammar_template.twl2").read_text(encoding="utf-8")


@cache
def old_logic() -> tuple[str, str]:
    """Return domain and grammar of the release before: what the upgrade of December 2024 did, undone."""
    domain, grammar = logic()
    grammar = grammar[: grammar.index("action help {")].rstrip()
    for new, old in _OLD_WORDS:
        grammar = grammar.replace(new, old)
    return f"{domain[: domain.index('(:action help')].rstrip()}\n)\n", grammar + "\n"


def names_of(file: Mapping[str, Any]) -> Names:
    """Return the names that commands of a game can have."""
    game = read_problem(file["pddl_problem"], "")
    return Names(tuple(place.name for place in game.receptacles), tuple(thing.name for thing in game.things))
