"""The household environment: the engine played under the three-method contract."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import get_args

from roleagent.environments.base import Observation, Outcome, Verdict
from roleagent.environments.household.engine import admissible, apply, is_won
from roleagent.environments.household.game import Game, State
from roleagent.environments.household.generator import (
    LEVELS,
    SPACE_SIZE,
    LevelName,
    generate,
    parse_task_id,
    task_id,
    task_type_of,
)
from roleagent.environments.household.oracle import explain
from roleagent.environments.household.words import room_text
from roleagent.errors import ConfigError, EnvironmentFault
from roleagent.types import Split, Task

GUIDE = """You act in a house. Each turn, give one command:
  go to (receptacle), open (receptacle), close (receptacle), look, inventory
  take (object) from (receptacle), move (object) to (receptacle), examine (something), use (object)
  clean (object) with (sinkbasin), heat (object) with (microwave), cool (object) with (fridge)
  slice (object) with (knife)
Write names with their number, for example: take mug 1 from shelf 2. Go to a receptacle before you act there.
Open a closed receptacle to see what is in it. You can hold one object.
To look at an object under a lamp, hold the object and use the lamp."""


class Household:
    """Generated homes in ALFWorld's words. `success` and a reward of 1 come with the step that wins."""

    name = "household"
    reward_range = (0.0, 1.0)
    guide = GUIDE
    inline = True  # a step takes microseconds: rollouts call it directly instead of through a thread

    def __init__(self, level: str = "small", train_tasks: int = 512, heldout_tasks: int = 512) -> None:
        """Choose the size of the homes and of the task pools.

        Args:
            level: "small" (6 receptacles, 6 objects), "medium" (12 and 12) or "large" (rooms as in ALFWorld).
            train_tasks: number of training tasks.
            heldout_tasks: number of held-out tasks.

        Raises:
            ConfigError: the level is unknown or a pool size is out of bounds.
        """
        if level not in LEVELS:
            raise ConfigError(f"household option level={level!r} is unknown: choose among {', '.join(LEVELS)}")
        for option, size in (("train_tasks", train_tasks), ("heldout_tasks", heldout_tasks)):
            if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= SPACE_SIZE:
                raise ConfigError(f"household option {option}={size!r}: give a whole number from 1 to {SPACE_SIZE}")
        self.level: LevelName = level  # type: ignore[assignment]
        self._sizes: dict[Split, int] = {"train": train_tasks, "heldout": heldout_tasks}
        self._pools: dict[Split, tuple[Task, ...]] = {}
        self._game: Game | None = None
        self._state: State | None = None

    def tasks(self, split: Split) -> Sequence[Task]:
        """Return the pool of a split; every six tasks in a row hold the six task types."""
        if split not in get_args(Split):
            raise ConfigError(f"unknown split {split!r}: choose train or heldout")
        if split not in self._pools:
            self._pools[split] = tuple(
                Task(task_id(self.level, split, index), self.name, task_type_of(self.level, split, index), split)
                for index in range(self._sizes[split])
            )
        return self._pools[split]

    def reset(self, task_id: str) -> tuple[str, Observation]:
        """Begin a task of a pool, or of the pretraining space, which no pool lists."""
        level, space, index = parse_task_id(task_id)
        if level != self.level:
            raise ConfigError(f"unknown task id {task_id!r}: this household has level {self.level}")
        if space != "pretrain" and index >= self._sizes[space]:
            raise ConfigError(f"unknown task id {task_id!r}: the {space} pool has {self._sizes[space]} tasks")
        return self.begin(generate(task_id))

    def explain(self, task_id: str, actions: Sequence[str]) -> Verdict | None:
        """Return why these actions failed in any home; see :class:`roleagent.environments.base.Explains`."""
        return explain(generate(task_id), [" ".join(action.split()).lower() for action in actions])

    def begin(self, game: Game) -> tuple[str, Observation]:
        """Begin a given game."""
        self._game, self._state = game, game.start
        return game.goal_text, Observation(room_text(game), partial(admissible, game, game.start))

    def step(self, action: str) -> Outcome:
        """Do a command. Letter case and surplus white space do not matter."""
        game, state = self._game, self._state
        if game is None or state is None:
            raise EnvironmentFault("household step without a running episode: call reset first")
        state, text, valid = apply(game, state, " ".join(action.split()).lower())
        won = is_won(game, state)
        self._state = None if won else state
        reward = 1.0 if won else 0.0
        return Outcome(Observation(text, partial(admissible, game, state)), reward, won, won, reward, valid)
