"""The language of a game, read from its own grammar file: which words it knows, and how it answers.

Two grammars are in use. Games released since December 2024 (ALFWorld 0.4) say "move X to Y", "You arrive at desk 1."
and know `help`. Older ones say "put X in/on Y", "You arrive at loc 14." and do not. The language is a fact of the game
file, so it is read from there; whatever else a file says must be as in ALFWorld, because that is what the engine plays.

The engine speaks the present language. `Language.inward` and `outward` translate for a game that speaks the old one.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from roleagent.errors import EnvironmentFault
from roleagent.json_text import read_json_text

UNKNOWN_GOAL = "UNKNOWN GOAL"
_TASK = "Your task is to: "
_TOP = re.compile(r'\s*grammar\s*::\s*"""(.*?)"""\s*;', re.DOTALL)
_ACTION = re.compile(
    r'action\s+(\w+)\s*\{\s*template\s*::\s*"(.*?)"\s*;\s*feedback\s*::\s*"(.*?)"\s*;\s*'
    r'(?:grammar\s*::\s*"""(.*?)"""\s*;\s*)?\}',
    re.DOTALL,
)
#: Digests of what both grammars share, and of ALFWorld's domains without comments, white space and `help`. The second
#: domain is the one packed with alfworld 0.4.2: nothing is cleaned in a receptacle of type Sink, which no game has.
_SHARED_GRAMMAR = "56b8b343a17b9fca"
_DOMAINS = frozenset({"04e2d9d290a83405", "b0870e4520f091d2"})
_HELP_ACTION = "(:action help :parameters(?a - agent):precondition():effect(and(checked ?a)))"
_HELP_TEXT = "122ff4201221bf40"


@dataclass(frozen=True, slots=True)
class Language:
    """How a game's commands and answers differ from those of the engine."""

    put: bool = False  #: "put X in/on Y" instead of "move X to Y"
    numbered_locations: bool = False  #: "You arrive at loc 14." instead of the receptacle's name
    help: bool = True  #: there is a command `help`

    @property
    def native(self) -> bool:
        """Tell whether the engine speaks it as it is."""
        return self == NATIVE

    def inward(self, command: str) -> str:
        """Return the engine's words for a command of the game; nonsense for one that the game does not know."""
        if self.put:
            if command.startswith("move "):
                return ""
            if command.startswith("put "):
                thing, preposition, place = command[4:].partition(" in/on ")
                return f"move {thing} to {place}" if preposition else ""
        return "" if command == "help" and not self.help else command

    def outward(self, text: str, location: str) -> str:
        """Return the game's words for an answer of the engine; `location` is where the agent is now."""
        if self.put and text.startswith("You move the "):
            thing, _, place = text[len("You move the ") : -1].partition(" to the ")
            return f"You put the {thing} in/on the {place}."
        if self.numbered_locations and text.startswith("You arrive at "):
            return f"You arrive at {location}. {text.partition('. ')[2]}"
        return text

    def listed(self, commands: tuple[str, ...]) -> tuple[str, ...]:
        """Return the game's words for a list of commands, sorted."""
        return tuple(sorted(map(self._put, (c for c in commands if self.help or c != "help"))))

    def _put(self, command: str) -> str:
        if not self.put or not command.startswith("move "):
            return command
        thing, _, place = command[5:].partition(" to ")
        return f"put {thing} in/on {place}"


NATIVE = Language()
OLD = Language(put=True, numbered_locations=True, help=False)


def read_language(domain: str, grammar: str) -> tuple[Language, str]:
    """Return (language, goal sentence) of a game file's domain and grammar.

    Raises:
        EnvironmentFault: they are not ALFWorld's, old or present.
    """
    start = grammar.find(_TASK)
    end = grammar.find('"', start)
    if start < 0 or end < 0:
        raise EnvironmentFault(f"grammar without the sentence {_TASK!r}: this is not an ALFWorld game")
    sentence = grammar[start + len(_TASK) : end]
    rest = f"{grammar[: start + len(_TASK)]}{UNKNOWN_GOAL}{grammar[end:]}"
    try:
        goal = json.loads(f'"{sentence}"')
    except ValueError as error:
        raise EnvironmentFault(f"grammar whose goal sentence is no JSON text: {error}") from error
    return _language(domain, rest), goal


@lru_cache(maxsize=16)
def _language(domain: str, grammar: str) -> Language:
    rules, actions = _parse(grammar)
    language = Language(
        put=actions.get("PutObject", ("", ""))[0].startswith("put "),
        numbered_locations="{lend.name}" in str(rules.get("GotoLocation.feedback")),
        help="help" in actions,
    )
    if language.help:
        _, feedback = actions.pop("help")
        rule = rules.pop("help.feedback", None)
        text = str(rule[0]["rhs"]) if feedback == "#help.feedback#" and rule else feedback
        if _digest(text.strip().replace("\\n", "\n")) != _HELP_TEXT:
            raise EnvironmentFault("grammar with an unknown text of `help`: this is not an ALFWorld game")
    text = json.dumps([rules, actions], sort_keys=True)
    if language.put:
        text = text.replace("put {o} in/on {r}", "move {o} to {r}")
        text = text.replace("You put the {o.name} in/on the {r.name}.", "You move the {o.name} to the {r.name}.")
    text = text.replace("You arrive at {lend.name}.", "You arrive at {r.name}.")
    if _digest(text) != _SHARED_GRAMMAR:
        raise EnvironmentFault(
            "grammar that is neither ALFWorld's present nor its old one: it cannot be played exactly"
        )
    known, helped = _read_domain(domain)
    if not known or (helped and not language.help):
        raise EnvironmentFault("PDDL domain that is not ALFWorld's: it cannot be played exactly")
    return Language(language.put, language.numbered_locations, helped)


def _parse(grammar: str) -> tuple[dict[str, Any], dict[str, tuple[str, str]]]:
    """Return (rule name -> alternatives, action -> (template, feedback)) of a grammar file."""
    top = _TOP.match(grammar)
    if top is None:
        raise EnvironmentFault("grammar that does not begin with its rules: this is not an ALFWorld game")
    rules: dict[str, Any] = {}
    actions = {}
    try:
        rules.update(read_json_text(top[1]))
        for name, template, feedback, own in _ACTION.findall(grammar, top.end()):
            actions[name] = (template, feedback)
            rules.update(read_json_text(own or "{}"))
    except (ValueError, TypeError) as error:
        raise EnvironmentFault(f"grammar whose rules are no JSON object: {error}") from error
    rules.pop("task", None)
    return rules, actions


def _read_domain(domain: str) -> tuple[bool, bool]:
    """Return (whether it is ALFWorld's, whether it has `help`)."""
    text = re.sub(r"\s+", " ", re.sub(r";[^\n]*", "", domain)).strip()
    text = re.sub(r" ?([()]) ?", r"\1", text)
    return _digest(text.replace(_HELP_ACTION, "", 1)) in _DOMAINS, _HELP_ACTION in text


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
