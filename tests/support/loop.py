"""The training flow without Prefect: its own code, with every Prefect task replaced by the plain function inside it.

A phase is called at once; `submit` runs it in a thread after what it waits for, as Prefect's task runner does. So the
diagnosis branch really runs beside the update, the order is that of `flows/train.py`, and a phase costs nothing extra.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from roleagent.config import TrainConfig
from roleagent.config.load import load_config

#: Called with (iteration, name of the phase) before every phase.
Before = Callable[[int, str], None]

POLICY = "roleagent:quickstart"
RUN_ID = "small-run"


class PlainPhase:
    """A Prefect task as the function that it wraps."""

    def __init__(self, task: Any, pool: ThreadPoolExecutor, before: Before) -> None:
        self.name = task.name
        self._function = task.fn
        self._signature = inspect.signature(task.fn)
        self._pool = pool
        self._before = before

    def __call__(self, *args: Any, **options: Any) -> Any:
        arguments = self._signature.bind(*args, **options)
        arguments.apply_defaults()
        self._before(arguments.arguments["n"], self.name)
        return self._function(*args, **options)

    def submit(self, *args: Any, wait_for: Sequence[Future[Any]] = (), **options: Any) -> Future[Any]:
        def run() -> Any:
            for future in wait_for:
                future.result()
            return self(*args, **options)

        return self._pool.submit(run)


@contextmanager
def plain_flow(before: Before = lambda n, name: None) -> Iterator[Any]:
    """Yield the training flow's function, for calls without Prefect."""
    os.environ.setdefault("PREFECT_HOME", str(Path(os.environ["ROLEAGENT_HOME"]) / "prefect"))
    from prefect import Task

    import flows.train as module

    with ThreadPoolExecutor(max_workers=4) as pool:
        changed: dict[str, Any] = {
            name: PlainPhase(value, pool, before) for name, value in vars(module).items() if isinstance(value, Task)
        }
        changed["iteration"] = module.iteration.fn
        for name in vars(module):
            if name.endswith("_artifact"):
                changed[name] = lambda *args, **options: None
        with patch.multiple(module, **changed):
            yield module.train.fn


def train(config: TrainConfig, run_id: str = RUN_ID, before: Before = lambda n, name: None) -> dict[str, Any]:
    """Train, or go on with a run that exists; return its summary."""
    with plain_flow(before) as flow:
        summary: dict[str, Any] = flow(config, run_id)
    return summary


def small_config(*overrides: str) -> TrainConfig:
    """The preset `smoke`, a little smaller: 3 iterations of 2 tasks x 4 episodes of at most 20 steps, everything on."""
    return load_config(
        "smoke",
        [
            f"policy.model={POLICY}",
            "iterations=3",
            "environment.max_steps=20",
            "evaluation.every=2",
            "evaluation.tasks=4",
            "evaluation.final_tasks=4",
            "storage.keep_checkpoints=1",
            "agent_in_world.mixture=0.9",
            "agent_in_world.max_probability=0.5",
            "tracking.traces=1",
            "tracking.traces_every=1",
            *overrides,
        ],
    )
