"""Bringing games onto this machine from a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from roleagent.console.screen import escape
from roleagent.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from roleagent.environments.alfworld.adding import Added, Progress

DATASETS = ("alfworld",)
_TOLD = 500  # games: how often a long check tells how far it is


def add_games(console: Console, dataset: str, path: Path, split: str) -> None:
    """Check the games of a copy, store them, and show what is there now."""
    _know(dataset)
    from roleagent.environments.alfworld.adding import add

    console.print(added_table(add(path, split, _progress(console))))


def fetch_games(console: Console, dataset: str, url: str, sha256: str) -> None:
    """Download games, show the archive's digest, check them, store them, and show what is there now."""
    _know(dataset)
    from roleagent.environments.alfworld.fetching import fetch

    def archive(address: str, digest: str, size: int) -> None:
        console.print(f"{escape(address)}: {size / 1e6:.1f} MB, SHA-256 {digest}", soft_wrap=True)

    console.print(added_table(fetch(url, sha256, archive, _progress(console)).added))


def added_table(added: list[Added]) -> Table:
    """Return what was stored, one row a split."""
    types = sorted({name for split in added for name in split.types})
    table = Table(title="ALFWorld games on this machine", title_justify="left")
    table.add_column("split")
    for name in ("games", *types, "MB"):
        table.add_column(name, justify="right")
    table.add_column("SHA-256")
    table.add_column("file", overflow="fold")
    for split in added:
        counts = [str(split.types.get(name, 0)) for name in types]
        row = [split.split, str(split.games), *counts, f"{split.size / 1e6:.1f}", split.sha256[:16], str(split.path)]
        table.add_row(*row)
    return table


def _know(dataset: str) -> None:
    if dataset not in DATASETS:
        raise ConfigError(f"unknown data set {dataset!r}: choose among {', '.join(DATASETS)}")


def _progress(console: Console) -> Progress:
    def report(split: str, games: int) -> None:
        if games % _TOLD == 0:
            console.print(f"{split}: {games} games checked", style="dim")

    return report
