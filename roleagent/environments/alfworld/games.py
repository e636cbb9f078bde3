"""The games of a split, loaded when first played and kept: shared by all environments of the process."""

from __future__ import annotations

from functools import cache
from zlib import crc32

from roleagent.environments.alfworld.records import SPLITS, RealGame, build, task_type
from roleagent.environments.alfworld.sources import Source, find_split, open_source
from roleagent.errors import ConfigError
from roleagent.types import Split, Task

DEV_SHARE = 25  #: one in so many of the training tasks is a development task
KEPT = 4096  #: games of a split that stay in memory, about 40 kB each

_shared: dict[tuple[str, int, int], SplitGames] = {}


class SplitGames:
    """The games of one of ALFWorld's splits. A task id is `<split>/<task>/<trial>`."""

    def __init__(self, split: str, source: Source) -> None:
        self.split = split
        self.source = source
        self._known = frozenset(source.games)
        self._loaded: dict[str, RealGame] = {}

    def tasks(self, side: Split) -> tuple[Task, ...]:
        """Return the tasks, as those of the project's split `side`; no game is built."""
        return tuple(Task(f"{self.split}/{game}", "alfworld", task_type(game), side) for game in self.source.games)

    def load(self, game: str) -> RealGame:
        """Return a game, built at most once while it is kept.

        Raises:
            ConfigError: there is no such game.
            EnvironmentFault: it is damaged.
        """
        found = self._loaded.get(game)
        if found is None:
            if game not in self._known:
                raise ConfigError(f"unknown task id '{self.split}/{game}': the {self.split} games have no such trial")
            found = build(self.source.record(game))
            if len(self._loaded) >= KEPT:
                self._loaded.pop(next(iter(self._loaded)))
            self._loaded[game] = found
        return found


def open_games(split: str, folder: str = "") -> SplitGames:
    """Return the games of a split, the same object for the same files.

    Raises:
        ConfigError: there are none on this machine, or they cannot be read.
    """
    path = find_split(split, folder)
    state = path.stat()
    key = (str(path), state.st_mtime_ns, state.st_size)
    if key not in _shared:
        for stale in [other for other in _shared if other[0] == key[0]]:
            del _shared[stale]
        _shared[key] = SplitGames(split, open_source(path))
    return _shared[key]


def split_of(task_id: str) -> tuple[str, str]:
    """Return (split, "<task>/<trial>") of a task id.

    Raises:
        ConfigError: it is of another form.
    """
    split, _, game = task_id.partition("/")
    if split not in SPLITS or not game:
        raise ConfigError(
            f"unknown task id '{task_id}': ALFWorld's are <split>/<task>/<trial>, split one of {', '.join(SPLITS)}"
        )
    return split, game


def is_development(game: str) -> bool:
    """Tell whether a training game belongs to the development games.

    They are for choosing recipes and settings, which must not be done on a validation split. All trials of a task
    go together, so a development game's task is one that the other training games do not have.
    """
    return crc32(game.partition("/")[0].encode()) % DEV_SHARE == 0


def training_games(folder: str = "") -> tuple[str, ...]:
    """Return the task ids of the training games without the development games, in the order of their names.

    Raises:
        ConfigError: there are no games on this machine.
    """
    return _training_ids(open_games("train", folder))


@cache
def _training_ids(games: SplitGames) -> tuple[str, ...]:
    return tuple(f"train/{game}" for game in games.source.games if not is_development(game))
