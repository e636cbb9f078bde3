"""Our engine, asked as the stock engine is."""

from __future__ import annotations

from collections.abc import Sequence

from roleagent.environments.alfworld import records
from tests.differential.games import Source
from tests.differential.stock import Answer


class OurGame:
    """One game of our engine, begun."""

    def __init__(self, source: Source) -> None:
        self.record = source.record()
        self._real = records.build(self.record)
        self._state = self._real.game.start
        self.latest = self._answer(records.opening(self._real), 0)

    def step(self, command: str) -> Answer:
        """Give a command."""
        self._state, text, valid = records.act(self._real, self._state, command)
        self.latest = self._answer(text, int(records.won(self._real, self._state)))
        assert valid == (text != "Nothing happens.")
        return self.latest

    def _answer(self, text: str, score: int) -> Answer:
        won = records.won(self._real, self._state)
        return Answer(text, records.commands(self._real, self._state), score, bool(score), won)


def replay(source: Source, commands: Sequence[str] | None = None) -> list[tuple[str, Answer]]:
    """Return (command, our answer) of an episode, the reset first; without commands, of the game's own walkthrough."""
    game = OurGame(source)
    given = [("", game.latest)]
    for command in game.record.walkthrough if commands is None else commands:
        given.append((command, game.step(command)))
    return given
