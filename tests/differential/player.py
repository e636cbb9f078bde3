"""An adversarial player: it does what is rare, what is wrong, and what nearly fits.

Its choices are a function of (seed, game, step) and of what the engine under test has just listed. Commands are
recorded, so a change here makes new recordings different and leaves old ones valid.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

VERBS = ("open", "close", "use", "go to", "examine")
PAIRED = (("take", "from"), ("move", "to"), ("put", "in/on"), ("clean", "with"), ("heat", "with"), ("cool", "with"))
NONSENSE = (
    "",
    " ",
    "help me",
    "xyzzy",
    "go",
    "go to",
    "take",
    "look around",
    "examine room",
    "inventory 1",
    "put",
    "q",
)


@dataclass(frozen=True)
class Names:
    """The names that commands of a game can have."""

    places: tuple[str, ...]
    things: tuple[str, ...]


class Player:
    """Chooses the commands of one episode."""

    def __init__(self, seed: int, game: str, names: Names, walkthrough: Sequence[str]) -> None:
        self._draws = random.Random(f"{seed} {game}")
        self._names = names
        self._plan = list(walkthrough)
        self._last = "look"

    def choose(self, admissible: Sequence[str]) -> str:
        """Return the next command."""
        draw = self._draws.random()
        if draw < 0.42:
            command = self._rare(admissible)
        elif draw < 0.55:
            command = self._shuffled(admissible)
        elif draw < 0.66:
            command = self._draws.choice(("look", "look", "look", "inventory", self._examined(admissible), "help"))
        elif draw < 0.76:
            command = self._written()
        elif draw < 0.84:
            command = self._bent(self._rare(admissible))
        elif draw < 0.88:
            command = self._last
        else:
            command = self._planned(admissible)
        self._last = command
        return command

    def _rare(self, admissible: Sequence[str]) -> str:
        """Return a listed command, every verb as likely: there are many ways to go and few things to do."""
        verbs: dict[str, list[str]] = {}
        for command in admissible:
            verbs.setdefault(command.partition(" ")[0], []).append(command)
        for verb in ("look", "inventory", "help"):
            verbs.pop(verb, None)
        return self._draws.choice(verbs[self._draws.choice(sorted(verbs))])

    def _shuffled(self, admissible: Sequence[str]) -> str:
        """Return a way to move what is held, or to take something: things change place between neighbours."""
        moves = [command for command in admissible if command.startswith(("move ", "put ", "take ", "slice "))]
        return self._draws.choice(moves) if moves else self._rare(admissible)

    def _examined(self, admissible: Sequence[str]) -> str:
        found = [command for command in admissible if command.startswith("examine ")]
        return self._draws.choice(found) if found else "look"

    def _written(self) -> str:
        """Return any command that can be written with the game's names; most are impossible now."""
        draws, names = self._draws, self._names
        place, thing = draws.choice(names.places), draws.choice(names.things)
        kind = draws.randrange(10)
        if kind < 4:
            verb, preposition = draws.choice(PAIRED)
            return f"{verb} {thing} {preposition} {place}"
        if kind < 7:
            return f"{draws.choice(VERBS)} {draws.choice((place, place, thing))}"
        if kind < 8:
            return f"slice {thing} with {draws.choice(names.things)}"
        if kind < 9:
            return draws.choice(NONSENSE)
        return f"{draws.choice(VERBS)} {place.rpartition(' ')[0]} {draws.randrange(12)}"

    def _bent(self, command: str) -> str:
        """Return a listed command, spelt a little differently."""
        bends = (
            command.upper(),
            command.capitalize(),
            command.title(),
            f"  {command}",
            f"{command} ",
            f"\t{command}\n",
            command.replace(" ", "  ", 1),
            f"{command}.",
            f"> {command}",
            command.replace(" to ", " in/on "),
            command.replace("move", "put"),
            command.replace(" 1", " 01"),
            command.replace(" ", "\u00a0"),
            command + "\u00a0",
        )
        return self._draws.choice(bends)

    def _planned(self, admissible: Sequence[str]) -> str:
        """Return the next command of the solution that is possible now."""
        for index, command in enumerate(self._plan):
            if command in admissible:
                del self._plan[: index + 1]
                return command
        return self._rare(admissible)
