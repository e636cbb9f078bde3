"""Speed of the household: the expert's actions of many games, and what a reset costs."""

from __future__ import annotations

import statistics
from functools import partial

from roleagent.environments.base import Environment
from roleagent.environments.household.demonstrations import demonstrate
from roleagent.environments.registry import make_environment
from tests.benchmarks.timing import spent

GAMES = 60
REPEATS = 5


def numbers() -> dict[str, float]:
    """`household_step_us` and `household_reset_us`: CPU microseconds, medians of means over fresh games."""
    environment = make_environment("household", level="small", train_tasks=512, heldout_tasks=512)
    tasks = [task.task_id for task in environment.tasks("train")]
    steps, resets = [], []
    for repeat in range(REPEATS):
        games = tasks[repeat * GAMES : (repeat + 1) * GAMES]
        resets.append(1e6 * spent(partial(begin, environment, games)).cpu / GAMES)
        cpu, count = 0.0, 0
        for task_id in games:
            actions = [step.action for step in demonstrate(task_id, max_steps=50).steps]
            environment.reset(task_id)
            cpu += spent(partial(play, environment, actions)).cpu
            count += len(actions)
        steps.append(1e6 * cpu / count)
    return {"household_step_us": statistics.median(steps), "household_reset_us": statistics.median(resets)}


def begin(environment: Environment, task_ids: list[str]) -> None:
    for task_id in task_ids:
        environment.reset(task_id)


def play(environment: Environment, actions: list[str]) -> None:
    for action in actions:
        environment.step(action)
