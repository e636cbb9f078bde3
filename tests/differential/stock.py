"""The stock engine of ALFWorld (alfworld, textworld), driven as its own AlfredTWEnv drives it."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Answer:
    """All that an agent is told after a reset or a command. `admissible` is sorted."""

    feedback: str
    admissible: tuple[str, ...]
    score: int
    done: bool
    won: bool

    def digest(self) -> str:
        """Return 8 hexadecimal digits that stand for the whole answer."""
        text = json.dumps([self.feedback, list(self.admissible), self.score, self.done, self.won])
        return hashlib.sha256(text.encode()).hexdigest()[:8]


class StockGame:
    """One game of the stock engine, begun."""

    def __init__(self, game_file: Mapping[str, Any]) -> None:
        """Load the content of a `game.tw-pddl` and begin it."""
        import textworld
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "game.tw-pddl"
            path.write_text(json.dumps(game_file), encoding="utf-8")
            infos = textworld.EnvInfos(won=True, admissible_commands=True, feedback=True)
            self._environment = textworld.start(str(path), infos, wrappers=[AlfredDemangler(shuffle=False)])
        self.latest = self.restart()

    def restart(self) -> Answer:
        """Begin the game again."""
        self.latest = self._read(self._environment.reset())
        return self.latest

    def step(self, command: str) -> Answer:
        """Give a command."""
        state, _, _ = self._environment.step(command)
        self.latest = self._read(state)
        return self.latest

    def close(self) -> None:
        """Let the engine's libraries go."""
        self._environment.close()

    @staticmethod
    def _read(state: Any) -> Answer:
        return Answer(
            state.feedback,
            tuple(state.admissible_commands),
            int(state.get("score") or 0),
            bool(state.get("done")),
            bool(state.won),
        )


def versions() -> dict[str, str]:
    """Return the versions of the stock engine's packages."""
    return {name: version(name) for name in ("alfworld", "textworld", "fast-downward-textworld")}


def quicken() -> None:
    """Make the stock engine of this process several times as fast, for long recordings, without changing an answer.

    Parses of the same text and translations of the same problem are done once, contexts are copied one level deep (what
    they hold is never changed), and the second translation, for replanning, is left out. A test compares what is
    recorded in this way with what the untouched engine answers.
    """
    import fast_downward
    import textworld.logic
    from textworld.envs.pddl import textgen

    read_grammar, read_query = textgen._parse_and_convert, textworld.logic._parse_and_convert
    translate = fast_downward.pddl2sas
    symbols = lru_cache(maxsize=4096)(lambda text, rule: read_grammar(text, rule_name=rule))
    queries = lru_cache(maxsize=4096)(lambda text, rule: read_query(text, rule_name=rule))
    translations = lru_cache(maxsize=2)(lambda domain, problem: translate(domain, problem))

    def copy_context(context: dict[str, Any]) -> dict[str, Any]:
        return {**context, "variables": dict(context["variables"]), "mapping": dict(context["mapping"])}

    def pddl2sas(domain: str, problem: str, verbose: bool = False, optimize: bool = False) -> tuple[Any, str]:
        return translations(domain, problem)

    textgen._parse_and_convert = lambda text, rule_name, trace=False: deepcopy(symbols(text, rule_name))
    textworld.logic._parse_and_convert = lambda text, rule_name: queries(text, rule_name)
    textgen.copy_context = copy_context
    fast_downward.pddl2sas = pddl2sas
