"""Shared by the ALFWorld tests: a small home folder with real games, added as a user adds them."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

from household_games import DATA

from roleagent.environments.alfworld.adding import Added, add

TRAIN_GAMES = 36


def compact_folder(target: Path, train: int = TRAIN_GAMES) -> Path:
    """Write a folder of compact files: all valid_seen games, and the first train games of every hundred."""
    target.mkdir(parents=True)
    for name in ("domain.pddl", "grammar_template.twl2"):
        (target / name).write_bytes((DATA / name).read_bytes())
    (target / "games_valid_seen.jsonl.xz").write_bytes((DATA / "games_valid_seen.jsonl.xz").read_bytes())
    with lzma.open(DATA / "games_train.jsonl.xz", "rt", encoding="utf-8") as lines:
        kept = [line for number, line in enumerate(lines) if number % 98 == 0][:train]
    (target / "games_train.jsonl").write_text("".join(kept), encoding="utf-8")
    return target


def official_folder(target: Path, split: str, files: dict[str, str]) -> Path:
    """Write `json_2.1.1/<split>/<task>/<trial>/game.tw-pddl`."""
    for game, text in files.items():
        path = target / "json_2.1.1" / split / game / "game.tw-pddl"
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
    return target


def first_records(count: int) -> list[dict[str, object]]:
    """Return the first valid_seen records as they are in the compact file."""
    with lzma.open(DATA / "games_valid_seen.jsonl.xz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line, _ in zip(lines, range(count), strict=False)]


def filled(home: Path, folder: Path) -> list[Added]:
    """Add the compact files of a folder to a home folder (ROLEAGENT_HOME must name it)."""
    added = add(folder)
    assert all(split.path.is_relative_to(home) for split in added)
    return added
