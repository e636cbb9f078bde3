"""The contract of an environment: three methods, text in, text out.

To add an environment, write one folder with a class that has these three methods, register it, and let
`roleagent.environments.checker.check_environment` pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from roleagent.types import Split, Task


class Observation:
    """What the agent sees: `text`, and the commands that are possible now, if the environment can list them.

    `admissible` may be given as a function without arguments: it is called once, when somebody first asks.
    """

    __slots__ = ("_admissible", "text")

    def __init__(self, text: str, admissible: tuple[str, ...] | Callable[[], tuple[str, ...]] = ()) -> None:
        self.text = text
        self._admissible = admissible

    @property
    def admissible(self) -> tuple[str, ...]:
        """Return the commands that are possible now; empty where the environment has no such list."""
        if not isinstance(self._admissible, tuple):
            self._admissible = self._admissible()
        return self._admissible

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Observation):
            return NotImplemented
        return self.text == other.text and self.admissible == other.admissible

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Observation({self.text!r})"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one action led to."""

    observation: Observation
    reward: float  #: r_t, within the environment's `reward_range`
    done: bool  #: the episode is over; a further step is an error
    success: bool  #: the task is solved
    score: float  #: the environment's outcome so far: 1/0, or its own score
    valid: bool  #: the action was understood and possible


@runtime_checkable
class Environment(Protocol):
    """One instance plays one episode at a time. The step limit is the caller's matter.

    Rollouts call an instance from one thread at a time, not always the same one, and give it up when it does not
    answer in time. A class with the attribute `inline = True` says that its steps take microseconds and always end: it
    is called without a thread, and without a time-out.
    """

    @property
    def name(self) -> str:
        """Name in the registry."""
        ...

    @property
    def reward_range(self) -> tuple[float, float]:
        """Lowest and highest reward of a single step."""
        ...

    @property
    def guide(self) -> str:
        """The action grammar, for a model that was never trained on it."""
        ...

    def tasks(self, split: Split) -> Sequence[Task]:
        """Return the tasks of a split. Cheap: no game is built."""
        ...

    def reset(self, task_id: str) -> tuple[str, Observation]:
        """Begin the task and return (goal sentence, first observation s_1).

        Raises:
            ConfigError: the task id is unknown.
        """
        ...

    def step(self, action: str) -> Outcome:
        """Do the action and return what it led to.

        Raises:
            EnvironmentFault: no episode is running.
        """
        ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why an episode failed, as far as the environment knows. It is for measuring diagnoses, never for making them."""

    failure_type: str  #: in the words of diagnoses; "" where none of the environment's types holds
    critical_step: int  #: t in 1..T: the decisive mistake
    acceptable: tuple[int, ...]  #: steps that may be called critical as well, in order; `critical_step` is among them
    also: tuple[str, ...] = ()  #: other types that hold of the same episode


@runtime_checkable
class Explains(Protocol):
    """What an environment may offer beside its contract: it says why an episode failed.

    The loop compares diagnoses with it and reports how often they agree. Nothing else may use it: no prompt, no reward,
    no record of the failure bank and no task distribution depends on it.
    """

    def explain(self, task_id: str, actions: Sequence[str]) -> Verdict | None:
        """Return why these actions failed in this task; None if they solved it. Pure: no running episode is touched.

        Args:
            task_id: a task of any split.
            actions: T >= 1 actions as they were sent to `step`, an empty text for a turn without a readable action.

        Raises:
            ConfigError: the task id is unknown.
            ValueError: there are no actions.
        """
        ...
