"""Dynamic sampling: groups whose outcomes are all equal are not trained on, and other tasks are played in their place.

A group in which every episode earned the same R_E has no outcome advantage (DAPO, arXiv 2503.14476, section 3.2). K
groups are wanted that have one. A round plays as many new tasks as are missing, the next ones of the draw, until there
are K or `rollout.max_sampling_rounds` are over. What was played stays in the records: success rates, diagnoses and the
curriculum see every group, the update those with a difference. If there is none at all, it sees all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from roleagent.config import TrainConfig
from roleagent.learning.advantages.base import SPAN
from roleagent.types import DrawnTask, Trajectory


def tasks_to_draw(config: TrainConfig, pool: int) -> int:
    """Return how many tasks an iteration draws from a pool of `pool` tasks: K, and with refill those in reserve."""
    wanted = config.rollout.tasks_per_iteration
    if not config.rollout.dynamic_sampling:
        return wanted
    return max(wanted, min(wanted * config.rollout.max_sampling_rounds, pool))


def play_rounds(
    drawn: Sequence[DrawnTask], play: Callable[[Sequence[DrawnTask]], list[Trajectory]], config: TrainConfig
) -> list[Trajectory]:
    """Play K drawn tasks in order, and with dynamic sampling the next ones for groups without a difference.

    Args:
        drawn: K tasks, then those in reserve.
        play: plays the whole groups of some tasks.
        config: reads `rollout`.
    """
    wanted = config.rollout.tasks_per_iteration
    played = play(drawn[:wanted])
    if not config.rollout.dynamic_sampling:
        return played
    done = wanted
    for _ in range(config.rollout.max_sampling_rounds - 1):
        missing = wanted - len(informative_tasks(played))
        following = drawn[done : done + missing]
        if not following:
            break
        played += play(following)
        done += len(following)
    return played


def informative_tasks(trajectories: Sequence[Trajectory]) -> set[str]:
    """Return the ids of the tasks whose episodes did not all earn the same R_E."""
    scores: dict[str, list[float]] = {}
    for run in trajectories:
        scores.setdefault(run.task.task_id, []).append(run.score)
    return {task_id for task_id, values in scores.items() if max(values) - min(values) > SPAN}


def trained(trajectories: Sequence[Trajectory], config: TrainConfig) -> list[Trajectory]:
    """Return the trajectories that the update learns from."""
    informative = informative_tasks(trajectories) if config.rollout.dynamic_sampling else set()
    return [run for run in trajectories if not informative or run.task.task_id in informative]
