"""One real game: the record that files hold, and the game that is played, in its own language.

`act`, `commands`, `first_text` and `opening` are pure. They answer as the stock engine does (alfworld 0.4.2, textworld
1.7.0), to the letter: a command is stripped of surrounding white space and must then be one of the listed ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from roleagent.environments.alfworld.grammar import UNKNOWN_GOAL, Language, read_language
from roleagent.environments.household.engine import Game, State, admissible, apply, is_won, room_text
from roleagent.environments.household.pddl import read_problem
from roleagent.errors import EnvironmentFault
from roleagent.json_text import read_json_text

#: ALFWorld's task types, by the names of the paper's table.
TASK_TYPES: Mapping[str, str] = {
    "pick_and_place_simple": "Pick",
    "look_at_obj_in_light": "Look",
    "pick_clean_then_place_in_recep": "Clean",
    "pick_heat_then_place_in_recep": "Heat",
    "pick_cool_then_place_in_recep": "Cool",
    "pick_two_obj_and_place": "Pick2",
}
SPLITS = ("train", "valid_seen", "valid_unseen")
_WELCOME = "-= Welcome to TextWorld, ALFRED! =-"
_GAME = re.compile(r"([a-z_]+)-(\w+)-(\w+)-(\w+)-(\d+)/(trial_[\w-]+)")


@dataclass(frozen=True, slots=True)
class Record:
    """What a game's files hold. `game` is "<task>/<trial>", as in the official folders."""

    game: str
    sentence: str  #: the goal
    problem: str  #: PDDL
    walkthrough: tuple[str, ...]  #: commands that win, in the game's own language
    domain: str  #: PDDL
    grammar: str  #: with "UNKNOWN GOAL" where the goal goes

    def game_file(self) -> str:
        """Return the JSON text of an official `game.tw-pddl`."""
        return json.dumps(
            {
                "pddl_domain": self.domain,
                "grammar": self.grammar.replace(UNKNOWN_GOAL, self.sentence),
                "pddl_problem": self.problem,
                "solvable": True,
                "walkthrough": list(self.walkthrough),
            }
        )


@dataclass(frozen=True, slots=True)
class RealGame:
    """A game ready to be played."""

    game: Game
    language: Language
    locations: int  #: number of locations: they are counted backwards


def task_type(game: str) -> str:
    """Return the task type of "<task>/<trial>", by the paper's name.

    Raises:
        EnvironmentFault: it is not named as ALFWorld's games are.
    """
    match = _GAME.fullmatch(game)
    if match is None or match[1] not in TASK_TYPES:
        raise EnvironmentFault(
            f"game {game!r} is not named like one of ALFWorld's: <type>-<what>-<how>-<where>-<room>/trial_<id>"
        )
    return TASK_TYPES[match[1]]


def is_game(game: str) -> bool:
    """Tell whether "<task>/<trial>" is one that ALFWorld plays: of its six types, nothing sliced."""
    match = _GAME.fullmatch(game)
    return match is not None and match[1] in TASK_TYPES and "Sliced" not in game


def read_game_file(game: str, text: str) -> Record | None:
    """Read a `game.tw-pddl`; None if it says that it cannot be solved, as ALFWorld leaves such games out.

    Raises:
        EnvironmentFault: it is not a game file of ALFWorld.
    """
    try:
        content = read_json_text(text)
        if not isinstance(content, dict) or not content.get("solvable"):
            return None
        domain, grammar, problem = (content[key] for key in ("pddl_domain", "grammar", "pddl_problem"))
        walkthrough = tuple(content.get("walkthrough") or ())
    except (ValueError, KeyError, TypeError) as error:
        raise EnvironmentFault(f"game {game}: its game.tw-pddl cannot be read ({error})") from error
    if not all(isinstance(value, str) for value in (domain, grammar, problem, *walkthrough)):
        raise EnvironmentFault(f"game {game}: its game.tw-pddl has a value that is no text")
    try:
        _, sentence = read_language(domain, grammar)
    except EnvironmentFault as error:
        raise EnvironmentFault(f"game {game}: {error}") from error
    grammar = grammar.replace(f"is to: {json.dumps(sentence)[1:-1]}", f"is to: {UNKNOWN_GOAL}", 1)
    return Record(game, sentence, problem, walkthrough, domain, grammar)


def read_line(value: object, domain: str, grammar: str) -> Record:
    """Read a record of the compact form: `id`, `task` (the goal), `pddl_problem`, `walkthrough`.

    Raises:
        EnvironmentFault: something is missing or of another type.
    """
    if not isinstance(value, dict):
        raise EnvironmentFault("a line that is no JSON object: each line of the compact form is one game")
    found: list[Any] = [value.get(key) for key in ("id", "task", "pddl_problem", "walkthrough")]
    game, sentence, problem, walkthrough = found
    if not (isinstance(walkthrough, list) and all(isinstance(text, str) for text in (*found[:3], *walkthrough))):
        raise EnvironmentFault("a line without id, task, pddl_problem and walkthrough: each line is one game")
    return Record(game, sentence, problem, tuple(walkthrough), domain, grammar)


def build(record: Record) -> RealGame:
    """Build the game of a record.

    Raises:
        EnvironmentFault: its problem, domain or grammar is not ALFWorld's.
    """
    try:
        language, _ = read_language(record.domain, record.grammar)
        game = read_problem(record.problem, record.sentence)
    except EnvironmentFault as error:
        raise EnvironmentFault(f"game {record.game}: {error}") from error
    declared = record.problem.index("(:init")
    return RealGame(game, language, record.problem.count(" - location", 0, declared))


def first_text(real: RealGame) -> str:
    """Return s_1: what is in the room."""
    return room_text(real.game)


def opening(real: RealGame) -> str:
    """Return the stock engine's whole first feedback: welcome, room and goal."""
    return f"{_WELCOME}\n\n{room_text(real.game)}\n\nYour task is to: {real.game.goal_text}"


def act(real: RealGame, state: State, command: str) -> tuple[State, str, bool]:
    """Return (next state, feedback, whether the command was one of the listed ones)."""
    command = command.strip()
    if real.language.native:
        return apply(real.game, state, command)
    state, text, valid = apply(real.game, state, real.language.inward(command))
    return state, real.language.outward(text, f"loc {real.locations - state.location}"), valid


def commands(real: RealGame, state: State) -> tuple[str, ...]:
    """Return the listed commands, sorted."""
    listed = admissible(real.game, state)
    return listed if real.language.native else real.language.listed(listed)


def won(real: RealGame, state: State) -> bool:
    """Tell whether the goal holds."""
    return is_won(real.game, state)


def check(record: Record) -> None:
    """Check a record through and through: it can be played, is not won yet, and its walkthrough wins.

    Raises:
        EnvironmentFault: says what is wrong with which game.
    """
    task_type(record.game)
    real = build(record)
    state = real.game.start
    if won(real, state):
        raise EnvironmentFault(f"game {record.game}: it is won before it begins")
    for command in record.walkthrough:
        state, _, valid = act(real, state, command)
        if not valid:
            raise EnvironmentFault(f"game {record.game}: its walkthrough says {command!r}, which is not possible then")
    if not won(real, state):
        raise EnvironmentFault(f"game {record.game}: its walkthrough does not win")
