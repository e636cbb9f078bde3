"""Runs whose commits are written by hand: metrics and timings without any training."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from roleagent.config import TrainConfig, load_config
from roleagent.loop import runs
from roleagent.loop.timing import Timing, record_timing
from roleagent.loop.worker import Worker

MakeRun = Callable[..., Worker]


def committed_run(
    metrics: Sequence[dict[str, float]] = (),
    walls: Sequence[Timing | None] = (),
    failures: Sequence[dict[str, int]] = (),
    run_id: str = "a-run",
    config: TrainConfig | None = None,
) -> Worker:
    """Make a run with these metrics and timings committed, one an iteration: of the preset `smoke`, seed 3, or another.

    What is checked before a run begins is checked here too.
    """
    worker = runs.open_run(config or load_config("smoke", ["seed=3"]), run_id).worker()
    for n, row in enumerate(metrics):
        record: dict[str, Any] = {
            "metrics": {"iteration": float(n), "memory/peak_mb": 100.0 + n, **row},
            "failure_types": failures[n] if n < len(failures) else {},
            "tasks": [],
        }
        writer = worker.writer(n)
        writer.put("metrics.json", json.dumps(record).encode())
        writer.commit(policy_version=n, seed=3)
    for n, timing in enumerate(walls):
        if timing is not None:
            record_timing(worker, n, timing)
    return worker
