"""Bring games onto this machine: read, check every one, and write the store.

A copy may be an official folder, its ZIP archive, or compact files. Every game must be playable and its walkthrough
must win on the engine, else the split is not stored. The store is one ZIP file a split, a few kilobytes a game, with
all that an official `game.tw-pddl` holds. The same games give the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path, PurePosixPath
from zipfile import ZIP_DEFLATED, BadZipFile, ZipFile, ZipInfo
from zlib import error as ZlibError  # noqa: N812 (an exception class with a lower-case name)

from roleagent.environments.alfworld.records import SPLITS, Record, check, is_game, read_game_file, task_type
from roleagent.environments.alfworld.sources import (
    GAME_FILE,
    STORE_FORMAT,
    OfficialFolder,
    data_folder,
    read_compact,
)
from roleagent.errors import ConfigError, EnvironmentFault

_LARGEST = 8_000_000  # bytes of a game file; ALFWorld's have about 100,000
Progress = Callable[[str, int], None]


@dataclass(frozen=True, slots=True)
class Added:
    """One split in the store."""

    split: str
    path: Path
    games: int
    types: dict[str, int]  #: task type -> games
    size: int  #: bytes
    sha256: str


def add(path: Path, split: str = "", on_progress: Progress | None = None) -> list[Added]:
    """Check the games of a copy and write them into the store of the home folder.

    Args:
        path: a folder with `<split>/<task>/<trial>/game.tw-pddl` below it, a ZIP archive of one, a folder of compact
            files, or one compact file.
        split: of a compact file whose name does not tell: "train", "valid_seen" or "valid_unseen".
        on_progress: called with (split, games so far).

    Raises:
        ConfigError: there are no games, or they cannot be read.
        EnvironmentFault: a game is damaged or no game of ALFWorld; the message names it.
    """
    if split and split not in SPLITS:
        raise ConfigError(f"unknown split {split!r}: choose among {', '.join(SPLITS)}")
    if not path.exists():
        raise ConfigError(f"no such file or folder: {path}")
    added: list[Added] = []
    for name, records in groupby(_read(path, split), key=lambda item: item[0]):
        if any(before.split == name for before in added):
            raise ConfigError(f"{path} holds two sets of {name} games; add them one at a time")
        added.append(write_store(name, (record for _, record in records), on_progress))
    if not added:
        raise ConfigError(
            f"no ALFWorld games in {path}: expected <split>/<task>/<trial>/{GAME_FILE} or games_<split>.jsonl.xz"
        )
    return added


def write_store(split: str, records: Iterable[Record], on_progress: Progress | None = None) -> Added:
    """Check records and write them as the store of a split; see :func:`add`."""
    folder = data_folder()
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{split}.zip"
    part = target.with_suffix(".part")
    games: list[tuple[str, str, int]] = []
    logics: dict[tuple[str, str], int] = {}
    try:
        with ZipFile(part, "w", ZIP_DEFLATED, compresslevel=6) as file:
            archive = _Archive(file)
            for number, record in enumerate(records):
                check(record)
                logic = logics.setdefault((record.domain, record.grammar), len(logics))
                games.append((record.game, record.sentence, logic))
                content = {"problem": record.problem, "walkthrough": record.walkthrough}
                archive.write(f"games/{number}.json", json.dumps(content))
                if on_progress is not None:
                    on_progress(split, number + 1)
            doubles = [game for game, count in Counter(game for game, _, _ in games).items() if count > 1]
            if doubles:
                raise EnvironmentFault(f"game {doubles[0]} is there twice in the {split} games")
            for (domain, grammar), logic in logics.items():
                archive.write(f"logic/{logic}.pddl", domain)
                archive.write(f"logic/{logic}.twl2", grammar)
            index = {"format": STORE_FORMAT, "split": split, "games": games}
            archive.write("index.json", json.dumps(index))
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    types = Counter(task_type(game) for game, _, _ in games)
    return Added(split, target, len(games), dict(sorted(types.items())), target.stat().st_size, digest(target))


class _Archive:
    """Writes members without a date: the same games give the same file."""

    def __init__(self, file: ZipFile) -> None:
        self._file = file

    def write(self, name: str, text: str) -> None:
        self._file.writestr(ZipInfo(name), text, ZIP_DEFLATED)


def digest(path: Path) -> str:
    """Return a file's SHA-256, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(path: Path, split: str) -> Iterator[tuple[str, Record]]:
    """Yield (split, record), the games of a split one after another."""
    if path.is_dir():
        for name in SPLITS:
            for compact in sorted(path.glob(f"games_{name}.jsonl*")):
                yield from ((name, record) for record in read_compact(compact))
            folders = [folder for folder in (path, *sorted(path.glob("**/"))) if folder.name == name]
            for official in map(OfficialFolder, folders):
                yield from ((name, official.record(game)) for game in official.games)
    elif path.suffix == ".zip":
        yield from _read_archive(path)
    else:
        known = split or next((name for name in SPLITS if path.name.startswith(f"games_{name}.")), "")
        if not known:
            raise ConfigError(f"the name of {path} tells no split; give it with --split")
        yield from ((known, record) for record in read_compact(path))


def _read_archive(path: Path) -> Iterator[tuple[str, Record]]:
    try:
        with ZipFile(path) as archive:
            members = []
            for info in archive.infolist():
                parts = PurePosixPath(info.filename).parts
                if len(parts) >= 4 and parts[-1] == GAME_FILE and parts[-4] in SPLITS:
                    members.append((SPLITS.index(parts[-4]), f"{parts[-3]}/{parts[-2]}", info))
            for split, game, info in sorted(members, key=lambda member: member[:2]):
                if not is_game(game):
                    continue
                if info.file_size > _LARGEST:
                    raise EnvironmentFault(f"game {game}: its file in {path} is larger than any of ALFWorld's")
                record = read_game_file(game, archive.read(info).decode())
                if record is not None:
                    yield SPLITS[split], record
    except (OSError, BadZipFile, UnicodeDecodeError, ZlibError, NotImplementedError, RuntimeError) as error:
        # zipfile raises the last two for a compression that it does not know and for an encrypted member
        raise ConfigError(f"the archive {path} cannot be read: {error}") from error
