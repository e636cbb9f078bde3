"""Check that an environment keeps its contract. Every rule stands for a fault that once spoilt a training run.

The checker plays random episodes with the listed commands (or with `actions` where the environment lists none) and
reports findings instead of stopping at the first one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from roleagent.environments.base import Environment, Observation, Outcome
from roleagent.errors import ConfigError, EnvironmentFault, RoleAgentError
from roleagent.seeding import derive
from roleagent.types import Split, Task

GARBAGE = "xyzzy frobnicate 0"
UNKNOWN_TASK = "no-such-task-000000"
_TOLD = 10
_FIRST_COMMANDS = 40  #: at most this many commands of the first state are tried one by one


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken rule and where."""

    rule: str
    detail: str


@dataclass(frozen=True, slots=True)
class CheckReport:
    """All findings; empty means that the environment keeps its contract as far as was played."""

    environment: str
    findings: tuple[Finding, ...]

    @property
    def rules(self) -> frozenset[str]:
        """Return the names of the broken rules."""
        return frozenset(finding.rule for finding in self.findings)

    def raise_for_findings(self) -> None:
        """Raise if there is a finding.

        Raises:
            EnvironmentFault: names the findings, ten of them at most.
        """
        if self.findings:
            told = [f"{number}. {finding.rule}: {finding.detail}" for number, finding in enumerate(self.findings, 1)]
            more = f"; and {len(told) - _TOLD} more" if len(told) > _TOLD else ""
            raise EnvironmentFault(
                f"environment {self.environment!r} breaks its contract: {'; '.join(told[:_TOLD])}{more} "
                "(docs/environments.md has the rules)"
            )


@dataclass(frozen=True, slots=True)
class _Episode:
    """What was played and what came back; two episodes are compared as wholes."""

    goal: str
    first: tuple[str, tuple[str, ...]]
    actions: tuple[str, ...]
    outcomes: tuple[tuple[str, tuple[str, ...], float, bool, bool, float, bool], ...]


class _Checker:
    def __init__(self, factory: Callable[[], Environment], max_steps: int, seed: int, actions: Sequence[str]) -> None:
        self.factory, self.max_steps, self.seed, self.actions = factory, max_steps, seed, actions
        self.environment = factory()
        self.findings: list[Finding] = []

    def report(self, rule: str, detail: str) -> None:
        if all(finding.rule != rule or finding.detail != detail for finding in self.findings):
            self.findings.append(Finding(rule, detail))

    # -- tasks ---------------------------------------------------------------------------------------------------

    def pools(self) -> list[Task]:
        """Check both pools and return all tasks."""
        pools: dict[str, list[Task]] = {}
        for split in get_args(Split):
            tasks = list(self.environment.tasks(split))
            pools[split] = tasks
            if not tasks:
                self.report("tasks", f"split {split} has no tasks")
            if tasks != list(self.environment.tasks(split)) or tasks != list(self.factory().tasks(split)):
                self.report("tasks", f"split {split} lists other tasks when asked again")
            ids = [task.task_id for task in tasks]
            if len(set(ids)) < len(ids):
                self.report("unique_ids", f"split {split} lists a task id twice")
            for task in tasks:
                if task.split != split or task.environment != self.environment.name:
                    self.report("tasks", f"{task.task_id} says split {task.split}, environment {task.environment}")
                    break
        shared = {task.task_id for task in pools["train"]} & {task.task_id for task in pools["heldout"]}
        if shared:
            self.report("disjoint", f"{len(shared)} tasks are in train and heldout, for example {min(shared)}")
        return pools["train"] + pools["heldout"]

    def unknown_task(self) -> None:
        try:
            self.environment.reset(UNKNOWN_TASK)
        except ConfigError as error:  # any other error would end an episode, not the run
            if UNKNOWN_TASK not in str(error):
                self.report("unknown_task", f"the error for an unknown task id does not name it: {error}")
        except Exception as error:
            self.report("unknown_task", f"an unknown task id raises {type(error).__name__}, not a ConfigError")
        else:
            self.report("unknown_task", "an unknown task id is accepted")

    def step_without_episode(self, environment: Environment, when: str) -> None:
        try:
            environment.step(GARBAGE)
        except RoleAgentError:
            return
        except Exception as error:
            self.report("step_after_done", f"a step {when} raises {type(error).__name__}, not a RoleAgentError")
        else:
            self.report("step_after_done", f"a step {when} is accepted")

    # -- one episode ---------------------------------------------------------------------------------------------

    def text(self, text: object, where: str) -> None:
        if not isinstance(text, str):
            self.report("text_only", f"{where} is {type(text).__name__}, not str")
        elif any(not (character.isprintable() or character == "\n") for character in text):
            self.report("text_only", f"{where} has a control character: {text!r:.80}")

    def observation(self, observation: Observation, where: str) -> tuple[str, tuple[str, ...]]:
        self.text(observation.text, f"observation {where}")
        admissible = observation.admissible
        for command in admissible:
            self.text(command, f"command {where}")
        if len(set(admissible)) < len(admissible):
            self.report("admissible", f"a command is listed twice {where}")
        return observation.text, tuple(admissible)

    def outcome(self, outcome: Outcome, where: str) -> tuple[str, tuple[str, ...], float, bool, bool, float, bool]:
        text, admissible = self.observation(outcome.observation, where)
        low, high = self.environment.reward_range
        if not (math.isfinite(outcome.reward) and low <= outcome.reward <= high):
            self.report("reward_range", f"reward {outcome.reward} {where} is outside [{low}, {high}]")
        if not math.isfinite(outcome.score):
            self.report("reward_range", f"score {outcome.score} {where} is not finite")
        if outcome.success and not outcome.done:
            self.report("termination", f"success without done {where}")
        return text, admissible, outcome.reward, outcome.done, outcome.success, outcome.score, outcome.valid

    def play(self, environment: Environment, task: Task, script: Sequence[str] | None = None) -> _Episode:
        """Play one episode: a script, or listed commands chosen by a seeded draw with some garbage in between."""
        goal, first = environment.reset(task.task_id)
        self.text(goal, f"goal of {task.task_id}")
        start = self.observation(first, f"at the start of {task.task_id}")
        admissible = start[1]
        actions: list[str] = []
        outcomes = []
        for step in range(len(script) if script is not None else self.max_steps):
            where = f"at step {step + 1} of {task.task_id}"
            listed = False
            if script is not None:
                action = script[step]
            else:
                choices = admissible or self.actions
                draw = derive("check", self.seed, task.task_id, step)
                garbage = not choices or draw % 7 == 0
                action = GARBAGE if garbage else choices[draw // 7 % len(choices)]
                listed = not garbage and bool(admissible)
            actions.append(action)
            outcome = environment.step(action)
            outcomes.append(self.outcome(outcome, where))
            admissible = outcomes[-1][1]
            if listed and not outcome.valid:
                self.report("admissible", f"listed command {action!r} is not valid {where}")
            if action == GARBAGE and outcome.valid:
                self.report("garbage", f"{GARBAGE!r} is called valid {where}")
            if outcome.done:
                self.step_without_episode(environment, f"after done in {task.task_id}")
                break
        return _Episode(goal, start, tuple(actions), tuple(outcomes))

    def try_play(self, environment: Environment, task: Task, script: Sequence[str] | None = None) -> _Episode | None:
        try:
            return self.play(environment, task, script)
        except Exception as error:
            self.report("crash", f"{task.task_id} raised {type(error).__name__}: {error}")
            return None

    def honoured(self, tasks: Sequence[Task], played: Mapping[str, _Episode | None]) -> None:
        """Play the same commands in every task: equal answers everywhere mean that the id was not read."""
        script = next((episode.actions for episode in played.values() if episode is not None), ())
        games = [self.try_play(self.environment, task, script) for task in tasks]
        different = len({(game.goal, game.first, game.outcomes) for game in games if game is not None})
        if len(tasks) > 1 and different < 0.9 * len(tasks):
            self.report("task_id", f"{len(tasks)} task ids gave only {different} different games")

    def first_commands(self, task: Task) -> None:
        """Try every listed command of the first state."""
        _, first = self.environment.reset(task.task_id)
        for command in first.admissible[:_FIRST_COMMANDS]:
            self.environment.reset(task.task_id)
            if not self.environment.step(command).valid:
                self.report("admissible", f"listed command {command!r} is not valid at the start of {task.task_id}")


def check_environment(
    factory: Callable[[], Environment],
    *,
    episodes: int = 6,
    max_steps: int = 20,
    seed: int = 0,
    actions: Sequence[str] = (),
    solve: Callable[[Task], Sequence[str]] | None = None,
) -> CheckReport:
    """Play episodes and return what breaks the contract.

    Args:
        factory: makes a new instance of the environment.
        episodes: tasks that are played, half from each split.
        max_steps: step limit of a random episode; reaching it without `done` is fine.
        seed: chooses the tasks and the commands.
        actions: commands to choose from where the environment lists none.
        solve: returns actions that solve a task; with it the end of an episode is checked as well.
    """
    checker = _Checker(factory, max_steps, seed, actions)
    tasks = checker.pools()
    checker.unknown_task()
    checker.step_without_episode(factory(), "before the first reset")
    sample: list[Task] = []
    for split in get_args(Split):
        pool = {task.task_id: task for task in tasks if task.split == split}
        ranked = sorted(pool.values(), key=lambda task: derive("check", seed, task.task_id))
        sample.extend(ranked[: max(1, episodes // 2)])
    played = {task.task_id: checker.try_play(checker.environment, task) for task in sample}
    other = factory()
    for task in reversed(sample):  # again, after other tasks, and in a new instance
        for environment, where in ((checker.environment, "after other tasks"), (other, "in a new instance")):
            before = played[task.task_id]
            if before is not None and checker.try_play(environment, task, before.actions) != before:
                checker.report("determinism", f"{task.task_id} went otherwise {where}")
        if played[task.task_id] is not None:
            checker.first_commands(task)
    checker.honoured([task for task in sample if played[task.task_id] is not None], played)
    if solve is not None:
        for task in sample:
            episode = checker.try_play(checker.environment, task, solve(task))
            if episode is not None and not (episode.outcomes and episode.outcomes[-1][3] and episode.outcomes[-1][4]):
                checker.report("termination", f"the solution of {task.task_id} does not end in success")
    return CheckReport(checker.environment.name, tuple(checker.findings))
