"""ALFWorld under the three-method contract."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import get_args

from roleagent.environments.alfworld.games import SplitGames, is_development, open_games, split_of
from roleagent.environments.alfworld.records import SPLITS, RealGame, act, commands, first_text, won
from roleagent.environments.base import Observation, Outcome, Verdict
from roleagent.environments.household.engine import State
from roleagent.environments.household.household import GUIDE
from roleagent.environments.household.oracle import explain
from roleagent.errors import ConfigError, EnvironmentFault
from roleagent.types import Split, Task


class AlfWorld:
    """ALFWorld's text games. `success` and a reward of 1 come with the step that wins; there are no other rewards."""

    name = "alfworld"
    reward_range = (0.0, 1.0)
    inline = True  # a step takes microseconds: rollouts call it directly instead of through a thread

    def __init__(self, heldout: str = "valid_seen", folder: str = "") -> None:
        """Choose the games. The project's split `train` is ALFWorld's.

        Args:
            heldout: ALFWorld's split that is the held-out one: "valid_seen" or "valid_unseen"; or "dev", every 25th
                task of the training games, which `train` then lacks.
            folder: where the games are; empty for the store in the home folder, else `$ALFWORLD_DATA`.

        Raises:
            ConfigError: the split is unknown.
        """
        if heldout not in (*SPLITS[1:], "dev"):
            raise ConfigError(f"alfworld option heldout={heldout!r}: choose valid_seen, valid_unseen or dev")
        self._development = heldout == "dev"
        self._splits: dict[Split, str] = {"train": "train", "heldout": "train" if self._development else heldout}
        self._folder = folder
        self._games: dict[str, SplitGames] = {}
        self._tasks: dict[Split, tuple[Task, ...]] = {}
        self._real: RealGame | None = None
        self._state: State | None = None

    @property
    def guide(self) -> str:
        """The commands, in the language of the training games: "move X to Y", or "put X in/on Y" in old releases."""
        games = self._open("train")
        old = bool(games.source.games) and games.load(games.source.games[0]).language.put
        return GUIDE.replace("move (object) to (receptacle)", "put (object) in/on (receptacle)") if old else GUIDE

    def tasks(self, split: Split) -> Sequence[Task]:
        """Return the tasks of a split, in the order of their names."""
        if split not in get_args(Split):
            raise ConfigError(f"unknown split {split!r}: choose train or heldout")
        if split not in self._tasks:
            found = self._open(self._splits[split]).tasks(split)
            if self._development:
                wanted = split == "heldout"
                found = tuple(task for task in found if is_development(split_of(task.task_id)[1]) == wanted)
            self._tasks[split] = found
        return self._tasks[split]

    def reset(self, task_id: str) -> tuple[str, Observation]:
        """Begin a game of the training or the held-out split."""
        split, game = split_of(task_id)
        if split not in self._splits.values():
            allowed = " and ".join(dict.fromkeys(self._splits.values()))
            raise ConfigError(f"unknown task id '{task_id}': the games played here are those of {allowed}")
        return self.begin(self._open(split).load(game))

    def explain(self, task_id: str, actions: Sequence[str]) -> Verdict | None:
        """Return why these actions failed in any game; see :class:`roleagent.environments.base.Explains`."""
        split, game = split_of(task_id)
        real = self._open(split).load(game)
        return explain(real.game, [real.language.inward(action.strip()) for action in actions])

    def begin(self, real: RealGame) -> tuple[str, Observation]:
        """Begin a given game."""
        self._real, self._state = real, real.game.start
        return real.game.goal_text, Observation(first_text(real), partial(commands, real, real.game.start))

    def step(self, action: str) -> Outcome:
        """Give a command, as the stock engine takes it: white space around it does not matter, letter case does."""
        real, state = self._real, self._state
        if real is None or state is None:
            raise EnvironmentFault("alfworld step without a running episode: call reset first")
        state, text, valid = act(real, state, action)
        success = won(real, state)
        self._state = None if success else state
        reward = 1.0 if success else 0.0
        return Outcome(Observation(text, partial(commands, real, state)), reward, success, success, reward, valid)

    def _open(self, split: str) -> SplitGames:
        if split not in self._games:
            self._games[split] = open_games(split, self._folder)
        return self._games[split]
