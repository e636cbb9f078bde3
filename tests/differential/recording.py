"""What the stock engine answered: units to be recorded, raw answers, and the digests that are kept.

A unit is one game, loaded once by the stock engine, and the episodes that are played in it: the game's own walkthrough,
and play by `Player`. Raw answers go to one file a unit, so that an interrupted recording goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import lzma
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.differential.games import Source, names_of
from tests.differential.player import Player
from tests.differential.stock import Answer, StockGame

GOLDEN = Path(__file__).with_name("alfworld_answers.jsonl.xz")


@dataclass(frozen=True, slots=True)
class Unit:
    """One game and what is played in it: the walkthrough, `seeds` for play of `steps` commands."""

    source: Source
    walkthrough: bool
    seeds: tuple[int, ...] = ()
    steps: int = 60

    @property
    def key(self) -> str:
        """Return the name of the unit's raw file."""
        text = json.dumps([self.source.kind, self.source.game, self.walkthrough, self.seeds, self.steps])
        return f"{self.source.kind}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def record(unit: Unit, folder: Path) -> Path:
    """Play a unit on the stock engine and write its raw answers, unless this was done before."""
    target = folder / f"{unit.key}.json"
    if target.is_file():
        return target
    file = unit.source.game_file()
    episodes = []
    game = StockGame(file)
    if unit.walkthrough:
        episodes.append(_play(game, iter(file["walkthrough"]), "walkthrough"))
    for seed in unit.seeds:
        game.restart()
        player = Player(seed, unit.source.game, names_of(file), file["walkthrough"])
        episodes.append(_play(game, _choices(player, game, unit.steps), f"play {seed}"))
    game.close()
    folder.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(".part")
    text = {"kind": unit.source.kind, "game": unit.source.game, "episodes": episodes}
    part.write_text(json.dumps(text), encoding="utf-8")
    part.rename(target)
    return target


def _choices(player: Player, game: StockGame, steps: int) -> Iterator[str]:
    for _ in range(steps):
        if game.latest.done:
            return
        yield player.choose(game.latest.admissible)


def _play(game: StockGame, commands: Iterator[str], how: str) -> dict[str, Any]:
    answers = [_as_list(game.latest)]
    given = []
    for command in commands:
        given.append(command)
        answers.append(_as_list(game.step(command)))
        if game.latest.done:
            break
    return {"how": how, "commands": given, "answers": answers}


def _as_list(answer: Answer) -> list[Any]:
    return [answer.feedback, list(answer.admissible), answer.score, answer.done, answer.won]


def from_list(values: list[Any]) -> Answer:
    """Return an answer as it was recorded."""
    feedback, admissible, score, done, won = values
    return Answer(feedback, tuple(admissible), score, done, won)


def digests(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is kept of a unit: commands (a real game's walkthrough is in the game) and a digest an answer."""
    episodes = []
    for episode in raw["episodes"]:
        kept = {"how": episode["how"], "digests": "".join(from_list(a).digest() for a in episode["answers"])}
        if episode["how"] != "walkthrough" or raw["kind"] == "household":
            kept["commands"] = "\r".join(episode["commands"])
        episodes.append(kept)
    return {"kind": raw["kind"], "game": raw["game"], "episodes": episodes}


def publish(units: Iterable[Mapping[str, Any]]) -> None:
    """Write the digests that the test suite replays."""
    lines = [json.dumps(digests(raw)) for raw in units]
    GOLDEN.write_bytes(lzma.compress(("\n".join(lines) + "\n").encode(), preset=9))


def published() -> list[dict[str, Any]]:
    """Read the kept digests."""
    return [json.loads(line) for line in lzma.decompress(GOLDEN.read_bytes()).decode().split("\n") if line]
