"""Where games come from: this machine's store, an official folder, or compact files.

A source knows the games of one split and gives the record of each. Looked for, in this order: the environment's option
`folder`; the store that `roleagent data` writes into the home folder; `$ALFWORLD_DATA`, by default `~/.cache/alfworld`
as for the alfworld package.
"""

from __future__ import annotations

import json
import lzma
import os
import zlib
from collections.abc import Iterator, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Protocol, cast
from zipfile import BadZipFile, ZipFile

from roleagent.environments.alfworld.records import Record, is_game, read_game_file, read_line
from roleagent.errors import ConfigError, EnvironmentFault
from roleagent.home import home
from roleagent.json_text import read_json_text

GAME_FILE = "game.tw-pddl"
OFFICIAL = "json_2.1.1"  #: folder of the official layout: <this>/<split>/<task>/<trial>/game.tw-pddl
STORE_FORMAT = 1
_TAIL = 65536  # bytes: the end of a game file, with "solvable" and the walkthrough


class Source(Protocol):
    """The games of one split."""

    @property
    def games(self) -> Sequence[str]:
        """All games, as "<task>/<trial>"."""
        ...

    def record(self, game: str) -> Record:
        """Return a game's record.

        Raises:
            ConfigError: there is no such game.
            EnvironmentFault: it cannot be read.
        """
        ...


def data_folder() -> Path:
    """Return the folder of the store in the home folder."""
    return home() / "data" / "alfworld"


def find_split(split: str, folder: str = "") -> Path:
    """Return where the games of a split are: "train", "valid_seen" or "valid_unseen".

    Raises:
        ConfigError: there are none on this machine; the message says how to get them.
    """
    official = Path(os.environ.get("ALFWORLD_DATA") or "~/.cache/alfworld").expanduser()
    places = [Path(folder)] if folder else [data_folder(), official]
    for place in places:
        for name in (f"{split}.zip", f"games_{split}.jsonl.xz", f"games_{split}.jsonl"):
            if (file := place / name).is_file():
                return file
        for official in (place / OFFICIAL / split, place / split):
            if official.is_dir():
                return official
    raise ConfigError(
        f"no ALFWorld games of split {split} in {' or '.join(map(str, places))}; get them with `roleagent data fetch "
        "alfworld`, or take a copy of yours with `roleagent data add alfworld PATH`"
    )


def open_source(path: Path) -> Source:
    """Open what :func:`find_split` found.

    Raises:
        ConfigError, EnvironmentFault: it cannot be read.
    """
    if path.is_dir():
        return OfficialFolder(path)
    return Store(path) if path.suffix == ".zip" else Compact(path)


class Store:
    """The store: one ZIP file a split, written by `adding.write_store`; any game is read without the others."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._archive = ZipFile(path)
            index = json.loads(self._archive.read("index.json"))
            if index["format"] != STORE_FORMAT:
                raise ValueError(f"its format is {index['format']}")
            self._games = {
                game: (number, sentence, logic) for number, (game, sentence, logic) in enumerate(index["games"])
            }
        except (OSError, BadZipFile, KeyError, ValueError, TypeError, zlib.error) as error:
            raise self._damaged(error) from error
        self.games: Sequence[str] = tuple(self._games)
        self._logic: dict[int, tuple[str, str]] = {}

    def record(self, game: str) -> Record:
        """Return a game's record."""
        if game not in self._games:
            raise ConfigError(f"unknown game {game!r} in {self.path}")
        number, sentence, logic = self._games[game]
        try:
            if logic not in self._logic:
                self._logic[logic] = (self._text(f"logic/{logic}.pddl"), self._text(f"logic/{logic}.twl2"))
            content = json.loads(self._text(f"games/{number}.json"))
            return Record(game, sentence, content["problem"], tuple(content["walkthrough"]), *self._logic[logic])
        except (OSError, BadZipFile, KeyError, ValueError, TypeError, zlib.error) as error:
            raise self._damaged(error) from error

    def _text(self, member: str) -> str:
        return self._archive.read(member).decode()

    def _damaged(self, error: Exception) -> ConfigError:
        return ConfigError(
            f"the games in {self.path} cannot be read ({error}); add them again with `roleagent data add`"
        )


class OfficialFolder:
    """A folder <task>/<trial>/game.tw-pddl."""

    def __init__(self, path: Path) -> None:
        self.path = path
        names = (f"{file.parent.parent.name}/{file.parent.name}" for file in sorted(path.glob(f"*/*/{GAME_FILE}")))
        self.games: Sequence[str] = tuple(game for game in names if is_game(game) and self._solvable(game))
        self._known = frozenset(self.games)

    def _solvable(self, game: str) -> bool:
        path = self.path / game / GAME_FILE
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL))
            if b'"solvable": true' in file.read():
                return True
        return read_game_file(game, path.read_text(encoding="utf-8")) is not None

    def record(self, game: str) -> Record:
        """Return a game's record."""
        path = self.path / game / GAME_FILE
        if game not in self._known:
            raise ConfigError(f"unknown game {game!r} in {self.path}")
        try:
            record = read_game_file(game, path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the game in {path} cannot be read: {error}") from error
        if record is None:
            raise ConfigError(f"the game in {path} cannot be solved, so it is not played")
        return record


class Compact:
    """A compact file: one game a line, domain and grammar beside it. Read as a whole: a store is opened faster."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._records: dict[str, tuple[bytes, str, str]] = {}
        for record in read_compact(path):
            body = json.dumps([record.sentence, record.problem, record.walkthrough])
            self._records[record.game] = (zlib.compress(body.encode(), 1), record.domain, record.grammar)
        self.games: Sequence[str] = tuple(self._records)

    def record(self, game: str) -> Record:
        """Return a game's record."""
        if game not in self._records:
            raise ConfigError(f"unknown game {game!r} in {self.path}")
        body, domain, grammar = self._records[game]
        sentence, problem, walkthrough = json.loads(zlib.decompress(body))
        return Record(game, sentence, problem, tuple(walkthrough), domain, grammar)


def read_compact(path: Path) -> Iterator[Record]:
    """Yield the records of a compact file, `.jsonl` or `.jsonl.xz`.

    Raises:
        ConfigError: the file, or domain and grammar beside it, cannot be read.
        EnvironmentFault: a line is no game.
    """
    try:
        domain = (path.parent / "domain.pddl").read_text(encoding="utf-8")
        grammar = (path.parent / "grammar_template.twl2").read_text(encoding="utf-8")
        with lzma.open(path) if path.suffix == ".xz" else path.open("rb") as lines:
            for number, line in enumerate(cast(BufferedReader, lines), start=1):
                try:
                    yield read_line(read_json_text(line), domain, grammar)
                except (ValueError, EnvironmentFault) as error:
                    raise EnvironmentFault(f"{path} line {number}: {error}") from error
    except (OSError, EOFError, UnicodeDecodeError, lzma.LZMAError) as error:
        raise ConfigError(f"compact games in {path} cannot be read: {error}") from error
