"""Dynamic sampling: which groups count, and what is played in the place of the others."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from roleagent.config import TrainConfig
from roleagent.loop.sampling import informative_tasks, play_rounds, tasks_to_draw, trained
from roleagent.types import DrawnTask, StopReason, Task, Trajectory


def config(tasks: int, rounds: int = 4, *, on: bool = True) -> TrainConfig:
    section = {"tasks_per_iteration": tasks, "dynamic_sampling": on, "max_sampling_rounds": rounds, "group_size": 2}
    return TrainConfig.model_validate({"rollout": section})


def drawn(count: int) -> list[DrawnTask]:
    return [DrawnTask(Task(f"t{place}", "household", "any", "train"), "uniform", 0.1) for place in range(count)]


def episodes(task: Task, scores: Sequence[float]) -> list[Trajectory]:
    return [
        Trajectory(f"{task.task_id}/{i}", task, "", 1, 0, i, (), "", score == 1.0, score, StopReason.FAILURE)
        for i, score in enumerate(scores)
    ]


class Game:
    """Plays whole groups and notes the rounds; the tasks named are those whose episodes differ."""

    def __init__(self, *differing: str) -> None:
        self.differing = differing
        self.rounds: list[list[str]] = []

    def __call__(self, items: Sequence[DrawnTask]) -> list[Trajectory]:
        self.rounds.append([item.task.task_id for item in items])
        return [
            run
            for item in items
            for run in episodes(item.task, (1.0, 0.0) if item.task.task_id in self.differing else (0.0, 0.0))
        ]


def test_a_group_counts_where_its_outcomes_differ() -> None:
    groups = {"lost": (0.0, 0.0), "won": (1.0, 1.0), "mixed": (1.0, 0.0), "rounding": (0.3, 0.1 + 0.2), "alone": (1.0,)}
    batch = [run for name, scores in groups.items() for run in episodes(Task(name, "e", "", "train"), scores)]
    assert informative_tasks(batch) == {"mixed"}


def test_as_many_new_tasks_are_played_as_groups_are_missing() -> None:
    game = Game("t1", "t4", "t5")
    played = play_rounds(drawn(12), game, config(3))
    # One of three differs; of the next two one; of the next one it does.
    assert game.rounds == [["t0", "t1", "t2"], ["t3", "t4"], ["t5"]]
    assert len(played) == 12
    assert {run.task.task_id for run in trained(played, config(3))} == {"t1", "t4", "t5"}


@pytest.mark.parametrize(("rounds", "tasks"), [(1, 3), (2, 6), (3, 9)])
def test_the_rounds_are_bounded(rounds: int, tasks: int) -> None:
    game = Game()
    assert len(play_rounds(drawn(tasks), game, config(3, rounds))) == 2 * tasks
    assert len(game.rounds) == rounds


def test_the_pool_may_be_smaller_than_the_reserve() -> None:
    assert tasks_to_draw(config(3, 4), pool=100) == 12
    assert tasks_to_draw(config(3, 4), pool=7) == 7
    assert tasks_to_draw(config(3, 4, on=False), pool=100) == 3
    game = Game()
    play_rounds(drawn(4), game, config(3, 4))
    assert game.rounds == [["t0", "t1", "t2"], ["t3"]]


def test_switched_off_it_plays_once_and_trains_on_everything() -> None:
    game = Game("t1")
    played = play_rounds(drawn(3), game, config(3, on=False))
    assert game.rounds == [["t0", "t1", "t2"]]
    assert trained(played, config(3, on=False)) == played


def test_without_any_difference_everything_is_kept() -> None:
    played = Game()(drawn(2))
    assert trained(played, config(2)) == played
