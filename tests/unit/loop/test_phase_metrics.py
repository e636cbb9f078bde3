"""The names of a run's metrics, and the success of each source of tasks."""

from __future__ import annotations

from roleagent.loop.phase_metrics import named, played_tasks, success_by_source
from roleagent.types import DrawnTask, Task
from tests.support.episodes import make_episode


def test_success_has_a_name_of_its_own() -> None:
    metrics = {"success_rate": 0.5, "success_rate/put": 0.25, "steps_mean": 7.0}
    assert named(metrics, "heldout", "play") == {
        "success/heldout": 0.5,
        "success/heldout/put": 0.25,
        "play/steps_mean": 7.0,
    }


def test_success_by_source_leaves_the_reserve_out() -> None:
    drawn = [
        DrawnTask(Task(name, "household", "pick", "train"), source, 0.25)
        for name, source in (("a", "uniform"), ("b", "relevance"), ("c", "relevance"), ("reserve", "uniform"))
    ]
    episodes = [make_episode((), task=name, success=won) for name, won in (("a", True), ("b", True), ("b", False))]
    episodes += [make_episode((), task="c"), make_episode((), task="a", success=True)]
    played = played_tasks(drawn, episodes)
    assert [item.task.task_id for item in played] == ["a", "b", "c"]
    assert success_by_source(played, episodes) == {"success/uniform": 1.0, "success/relevance": 1 / 3}
