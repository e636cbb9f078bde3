"""Evaluating a run's policy as a flow of its own."""

from __future__ import annotations

from typing import Any

from prefect import flow, task
from prefect.artifacts import create_table_artifact

from flows.keys import artifact_key
from roleagent.loop import runs
from roleagent.loop.evaluating import evaluate_run


@task(name="evaluate policy", retries=1, retry_delay_seconds=5, timeout_seconds=3600)
def evaluate_policy(run_id: str, iteration: int, tasks: int) -> dict[str, Any]:
    """Play held-out tasks with a committed policy version."""
    return evaluate_run(runs.find_run(run_id).worker(), iteration=iteration, tasks=tasks).as_dict()


@flow(name="evaluate", flow_run_name="evaluate {run_id}", persist_result=False)
def evaluate(run_id: str = "latest", iteration: int = -1, tasks: int = 200) -> dict[str, Any]:
    """Evaluate a run's policy on held-out tasks.

    Args:
        run_id: A run that this machine knows, or `latest`.
        iteration: Policy version; -1 for the newest.
        tasks: Held-out tasks.
    """
    result = evaluate_policy(run_id, iteration, tasks)
    rows = [{"task type": name, **rate} for name, rate in {**result["by_type"], "all": result}.items() if name]
    table = [{key: row[key] for key in ("task type", "success", "low", "high", "n")} for row in rows]
    create_table_artifact(
        table, key=artifact_key("evaluation", result["run_id"]), description="Held-out success by task type"
    )
    return result
