"""The training flow: what the command line, the UI and the schedule all start."""

from __future__ import annotations

import time
from typing import Any

from prefect import flow
from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.task_runners import ThreadPoolTaskRunner

from flows.keys import artifact_key
from roleagent.config import TrainConfig
from roleagent.loop import publishing, runs
from roleagent.loop.events import listener
from roleagent.loop.timing import Timing, record_timing
from roleagent.loop.worker import Stopwatch
from tasks.common import RunRef
from tasks.curriculum import reshape
from tasks.diagnosis import diagnose
from tasks.evaluation import evaluate, prepare
from tasks.publishing import commit, finish, publish
from tasks.rollout import roll_out, sample_tasks
from tasks.scoring import score
from tasks.update import update
from tasks.validation import validate_diagnoses, validate_trajectories


@flow(
    name="iteration",
    flow_run_name="{run.run_id} iteration {n}",
    task_runner=ThreadPoolTaskRunner(max_workers=4),  # type: ignore[arg-type]
    persist_result=False,
    validate_parameters=False,
)
def iteration(run: RunRef, n: int, config: TrainConfig) -> dict[str, float]:
    """Run one pass of the loop, from drawing tasks to publishing what was committed."""
    began = time.perf_counter()
    drawn = sample_tasks(run, n)
    results = [roll_out(run, n, drawn), validate_trajectories(run, n), score(run, n)]
    # Diagnosis needs no gradient: it runs beside the update, on the weights that played.
    beside = []
    if config.agent_in_world.enabled:
        beside.append(diagnose.submit(run, n))
        beside.append(validate_diagnoses.submit(run, n, wait_for=beside[-1:]))
    beside.append(reshape.submit(run, n, wait_for=beside[-1:]))
    results.append(update(run, n))
    with Stopwatch() as waiting:
        results += [future.result() for future in beside]
    last = n == config.iterations
    if last or (config.evaluation.every and n % config.evaluation.every == 0):
        results.append(evaluate(run, n, final=last))
    metrics = commit(run, n, results, drawn)
    seconds = publish(run, n, metrics)
    timing = Timing(wall=time.perf_counter() - began, publishing=seconds, waiting=waiting.seconds)
    record_timing(run.worker(), n, timing)
    listener().iteration_finished(n, metrics)
    return metrics


@flow(name="train", flow_run_name="train {config.name}", persist_result=False)
def train(config: TrainConfig, run_id: str = "") -> dict[str, Any]:
    """Train a policy, or go on with a run.

    Args:
        config: Every setting of the run. A run that exists keeps its own; this one is then ignored.
        run_id: Empty for a new run; the id of a run to go on with it from its last commit.

    Returns:
        The summary of the finished run.
    """
    handle = runs.open_run(config, run_id)
    run = RunRef(run_id=handle.run_id, store_uri=handle.store_uri, endpoint_url=handle.endpoint_url)
    worker = run.worker()
    config = worker.config
    first = runs.first_iteration(worker)
    listener().run_started(run.run_id, config.iterations, first)
    with runs.running(worker, warm=first <= config.iterations):
        if first == 0:
            began = time.perf_counter()
            metrics = commit(run, 0, prepare(run, 0), [])
            seconds = publish(run, 0, metrics)
            timing = Timing(wall=time.perf_counter() - began, publishing=seconds)
            record_timing(worker, 0, timing)
            listener().iteration_finished(0, metrics)
            first = 1
        else:
            publishing.republish(worker, first - 1)
        if worker.tracker.run_url:
            create_link_artifact(
                worker.tracker.run_url,
                "The run in MLflow",
                key=artifact_key("mlflow", run.run_id),
                description="Its metrics as they come, traces of episodes, and figures at the end",
            )
        progress = create_progress_artifact(
            100.0 * (first - 1) / config.iterations,
            key=artifact_key("progress", run.run_id),
            description=f"Of {config.iterations} iterations",
        )
        for n in range(first, config.iterations + 1):
            iteration(run, n, config)
            update_progress_artifact(progress, 100.0 * n / config.iterations)  # type: ignore[arg-type]
        summary = finish(run, config.iterations)
    for key, description, table in publishing.tables(worker, summary):
        create_table_artifact(table, key=artifact_key(key, run.run_id), description=description)
    create_markdown_artifact(
        publishing.report_text(worker), key=artifact_key("report", run.run_id), description="What the run did"
    )
    return summary
