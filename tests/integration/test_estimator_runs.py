"""Algorithms through the whole loop: PPO's value head comes back with a resumed run, DAPO plays more where it must."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.support import processes
from tests.support.faults import KillAt
from tests.support.loop import RUN_ID, small_config, train
from tests.support.results import committed, comparable, store_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # a busy machine takes its time

TINY = ("iterations=2", "evaluation.every=0", "evaluation.tasks=1", "evaluation.final_tasks=1", "tracking.traces=0")


def go_on(overrides: tuple[str, ...], phase: str = "") -> None:
    """Train or go on; die in the second iteration before a phase. Runs in a child."""
    with ExitStack() as stack:
        stack.enter_context(patch("roleagent.tracking.figures.draw_figures", lambda history: {}))
        train(small_config(*TINY, *overrides), before=KillAt(2 if phase else -1, phase))


def run(home: Path, *overrides: str, phase: str = "") -> None:
    ended = processes.run(go_on, overrides, phase, environment={"ROLEAGENT_HOME": str(home)})
    if phase:
        assert ended.killed, ended.trace
    else:
        ended.result()


def records(home: Path) -> dict[int, Any]:
    store = store_of(home)
    return {n: json.loads(store.read(RUN_ID, n, "metrics.json")) for n in committed(home)}


def test_ppo_killed_and_resumed_equals_uninterrupted(tmp_path: Path) -> None:
    options = ("advantage.estimator=ppo", "learner.value_learning_rate=0.01")
    run(tmp_path / "whole", *options)
    run(tmp_path / "cut", *options, phase="update")  # after scoring, which asked the value head
    assert committed(tmp_path / "cut") == [0, 1]
    run(tmp_path / "cut", *options)

    whole, cut = records(tmp_path / "whole"), records(tmp_path / "cut")
    for n in range(3):
        assert comparable(whole[n]["metrics"]) == comparable(cut[n]["metrics"])
    digests = [
        {item.name: item.sha256 for item in store_of(tmp_path / name).manifest(RUN_ID, 2).objects}
        for name in ("whole", "cut")
    ]
    for name in ("checkpoint/value_head.safetensors", "checkpoint/optimizer.safetensors"):
        assert digests[0][name] == digests[1][name]
    assert whole[2]["metrics"]["value/loss"] > 0
    assert whole[2]["metrics"]["update/optimizer_steps"] > 3  # three epochs of its recipe


def test_dapo_plays_other_tasks_for_groups_without_a_difference(tmp_path: Path) -> None:
    run(tmp_path, "advantage.estimator=dapo", "iterations=1", "rollout.max_sampling_rounds=3")
    record = records(tmp_path)[1]
    metrics = record["metrics"]
    informative = round(metrics["rollout/informative_share"] * metrics["rollout/tasks"])
    assert len(record["tasks"]) == metrics["rollout/tasks"] == metrics["groups/count"]
    assert informative < 2 or metrics["rollout/tasks"] == 6 or informative == 2
    assert 2 < metrics["rollout/tasks"] <= 6, "with this seed the first two groups do not both have a difference"
    if informative:
        assert metrics["update/generated_tokens"] < metrics["rollout/tokens_generated"]
