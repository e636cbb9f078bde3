"""Speed of the household: the expert's actions of many games, and what a reset costs."""

from __future__ import annotations

import statistics

from roleagent.environments.household.demonstrations import demonstrate
from roleagent.environments.registry import make_environment
from tests.benchmarks.timing import spent

GAMES = 60
REPEATS = 5


def numbers() -> dict[str, float]:
    """`household_step_us` and `household_reset_us`: CPU microseconds, medians over repeats of the mean."""
    environment = make_environment("household", level="small", train_tasks=512, heldout_tasks=512)
    played = {task.task_id: demonstrate(task.task_id, max_steps=50) for task in environment.tasks("train")[:GAMES]}
    steps, resets = [], []
    for _ in range(REPEATS):
        cpu, count, reset = 0.0, 0, 0.0
        for task_id, demonstration in played.items():
            reset += spent(lambda task_id=task_id: environment.reset(task_id)).cpu  # type: ignore[misc]

            def play(actions: list[str]) -> None:
                for action in actions:
                    environment.step(action)

            actions = [step.action for step in demonstration.steps]
            cpu += spent(lambda actions=actions: play(actions)).cpu  # type: ignore[misc]
            count += len(actions)
        steps.append(1e6 * cpu / count)
        resets.append(1e6 * reset / len(played))
    return {"household_step_us": statistics.median(steps), "household_reset_us": statistics.median(resets)}
