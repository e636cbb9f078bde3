"""The checker passes a good environment and catches each fault of a broken one."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from roleagent.environments.base import Environment, Observation, Outcome
from roleagent.environments.checker import CheckReport, Finding, check_environment
from roleagent.errors import ConfigError, EnvironmentFault
from roleagent.types import Split, Task

PRIMES = {"train": (2, 3, 5, 7), "heldout": (11, 13, 17, 19)}


class Toy:
    """Say "add" until the sum reaches the task's number; every add gives the number of adds so far."""

    name = "toy"
    reward_range = (0.0, 1.0)
    guide = "add or wait"

    def __init__(self) -> None:
        self.total: int | None = None
        self.aim = 0

    def tasks(self, split: Split) -> Sequence[Task]:
        return [Task(f"toy-{number}", self.name, "sum", split) for number in PRIMES[split]]

    def numbers(self) -> dict[str, int]:
        return {f"toy-{number}": number for split in PRIMES.values() for number in split}

    def reset(self, task_id: str) -> tuple[str, Observation]:
        if task_id not in self.numbers():
            raise ConfigError(f"unknown toy task {task_id}")
        self.aim, self.total = self.numbers()[task_id], 0
        return f"reach {self.aim}.", self.observe("You have 0.")

    def observe(self, text: str) -> Observation:
        return Observation(text, ("add", "wait"))

    def step(self, action: str) -> Outcome:
        if self.total is None:
            raise EnvironmentFault("toy step without an episode")
        valid = action in ("add", "wait")
        self.total += action == "add"
        won = self.total >= self.aim
        outcome = Outcome(self.observe(f"You have {self.total}."), float(won), won, won, float(won), valid)
        if won:
            self.total = None
        return outcome


def check(factory: Callable[[], Environment]) -> CheckReport:
    aims = {f"toy-{number}": number for split in PRIMES.values() for number in split}
    return check_environment(factory, episodes=8, max_steps=25, solve=lambda task: ["add"] * aims[task.task_id])


class OneTaskId(Toy):
    """Its second split lists an id twice."""

    def tasks(self, split: Split) -> Sequence[Task]:
        return [*super().tasks(split), super().tasks(split)[0]]


class SharedPools(Toy):
    def tasks(self, split: Split) -> Sequence[Task]:
        return [Task(f"toy-{number}", self.name, "sum", split) for number in PRIMES["train"]]


class EmptyPool(Toy):
    def tasks(self, split: Split) -> Sequence[Task]:
        return super().tasks(split) if split == "train" else []


class RestlessPool(Toy):
    calls = 0

    def tasks(self, split: Split) -> Sequence[Task]:
        RestlessPool.calls += 1
        return [Task(f"toy-{n}", self.name, f"sum{RestlessPool.calls}", split) for n in PRIMES[split]]


class WrongSplit(Toy):
    def tasks(self, split: Split) -> Sequence[Task]:
        return [Task(f"toy-{number}", self.name, "sum", "train") for number in PRIMES[split]]


class AcceptsUnknown(Toy):
    def reset(self, task_id: str) -> tuple[str, Observation]:
        return super().reset(task_id if task_id in self.numbers() else "toy-2")


class UnclearError(Toy):
    def reset(self, task_id: str) -> tuple[str, Observation]:
        self.numbers()[task_id]
        return super().reset(task_id)


class NamelessError(Toy):
    def reset(self, task_id: str) -> tuple[str, Observation]:
        if task_id not in self.numbers():
            raise ConfigError("bad task")
        return super().reset(task_id)


class OnlyAFault(Toy):
    """What ends an episode does not stop a run of a mistaken task."""

    def reset(self, task_id: str) -> tuple[str, Observation]:
        if task_id not in self.numbers():
            raise EnvironmentFault(f"unknown toy task {task_id}")
        return super().reset(task_id)


class IgnoresId(Toy):
    def reset(self, task_id: str) -> tuple[str, Observation]:
        super().reset(task_id)
        return super().reset("toy-19")


class Remembers(Toy):
    """The sum of the episode before stays."""

    left = 0

    def reset(self, task_id: str) -> tuple[str, Observation]:
        goal, first = super().reset(task_id)
        self.left += 1
        return goal, self.observe(f"You have {first.text[9:-1]} after {self.left} games.")


class Shared(Toy):
    """Instances share a random generator."""

    source = random.Random(3)

    def observe(self, text: str) -> Observation:
        return Observation(f"{text} {self.source.random()}", ("add", "wait"))


class HugeReward(Toy):
    def step(self, action: str) -> Outcome:
        outcome = super().step(action)
        return Outcome(outcome.observation, 7.0, outcome.done, outcome.success, outcome.score, outcome.valid)


class NotANumber(Toy):
    def step(self, action: str) -> Outcome:
        outcome = super().step(action)
        return Outcome(outcome.observation, outcome.reward, outcome.done, outcome.success, float("nan"), outcome.valid)


class NeverDone(Toy):
    def step(self, action: str) -> Outcome:
        if self.total is None:
            self.total = self.aim
        outcome = super().step(action)
        return Outcome(outcome.observation, 0.0, False, False, 0.0, outcome.valid)


class SuccessGoesOn(Toy):
    def step(self, action: str) -> Outcome:
        outcome = super().step(action)
        self.total = self.total or 0
        return Outcome(outcome.observation, outcome.reward, False, outcome.success, outcome.score, outcome.valid)


class GoesOnAfterDone(Toy):
    def step(self, action: str) -> Outcome:
        if self.total is None:
            self.total = self.aim
        return super().step(action)


class CrashesAfterDone(Toy):
    def step(self, action: str) -> Outcome:
        if self.total is None:
            raise IndexError("no episode")
        return super().step(action)


class LyingList(Toy):
    def observe(self, text: str) -> Observation:
        return Observation(text, ("add", "wait", "fly"))


class DoubleList(Toy):
    def observe(self, text: str) -> Observation:
        return Observation(text, ("add", "wait", "wait"))


class AllValid(Toy):
    def step(self, action: str) -> Outcome:
        outcome = super().step(action)
        return Outcome(outcome.observation, outcome.reward, outcome.done, outcome.success, outcome.score, True)


class ControlCharacter(Toy):
    def observe(self, text: str) -> Observation:
        return super().observe(text + "\x1b[0m")


class Bytes(Toy):
    def observe(self, text: str) -> Observation:
        return super().observe(text.encode())  # type: ignore[arg-type]


class Crashes(Toy):
    def step(self, action: str) -> Outcome:
        if self.total == 1:
            raise ZeroDivisionError("one")
        return super().step(action)


def test_a_good_environment_passes() -> None:
    report = check(Toy)
    assert report.findings == ()
    report.raise_for_findings()


@pytest.mark.parametrize(
    ("factory", "rule"),
    [
        (OneTaskId, "unique_ids"),
        (SharedPools, "disjoint"),
        (EmptyPool, "tasks"),
        (RestlessPool, "tasks"),
        (WrongSplit, "tasks"),
        (AcceptsUnknown, "unknown_task"),
        (UnclearError, "unknown_task"),
        (NamelessError, "unknown_task"),
        (OnlyAFault, "unknown_task"),
        (IgnoresId, "task_id"),
        (Remembers, "determinism"),
        (Shared, "determinism"),
        (HugeReward, "reward_range"),
        (NotANumber, "reward_range"),
        (NeverDone, "termination"),
        (SuccessGoesOn, "termination"),
        (GoesOnAfterDone, "step_after_done"),
        (CrashesAfterDone, "step_after_done"),
        (LyingList, "admissible"),
        (DoubleList, "admissible"),
        (AllValid, "garbage"),
        (ControlCharacter, "text_only"),
        (Bytes, "text_only"),
        (Crashes, "crash"),
    ],
)
def test_each_fault_is_found(factory: Callable[[], Environment], rule: str) -> None:
    report = check(factory)
    assert rule in report.rules
    with pytest.raises(EnvironmentFault, match="breaks its contract"):
        report.raise_for_findings()


def test_every_finding_is_told() -> None:
    two = CheckReport("toy", (Finding("tasks", "none"), Finding("crash", "at 'x'")))
    with pytest.raises(EnvironmentFault, match=r"'toy' breaks its contract: 1\. tasks: none; 2\. crash: at 'x' \(docs"):
        two.raise_for_findings()
    many = CheckReport("toy", tuple(Finding("crash", str(n)) for n in range(12)))
    with pytest.raises(EnvironmentFault, match=r"; 10\. crash: 9; and 2 more \("):
        many.raise_for_findings()


def test_admissible_commands_are_computed_once_and_only_when_asked_for() -> None:
    calls = []
    observation = Observation("text", lambda: (calls.append(1), ("a",))[1])
    assert calls == []
    assert observation.admissible == observation.admissible == ("a",)
    assert calls == [1]
    assert observation == Observation("text", ("a",))
    assert observation != Observation("text", ("b",))
