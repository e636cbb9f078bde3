"""Training again every night: start from the champion, keep the better policy."""

from __future__ import annotations

from typing import Any

from prefect import flow, task
from prefect.artifacts import create_markdown_artifact

from flows.keys import artifact_key
from flows.train import train
from roleagent.config import TrainConfig
from roleagent.loop import promotion


@task(name="choose start", retries=2, retry_delay_seconds=5)
def choose_start(config: TrainConfig, model_name: str) -> TrainConfig:
    """Return the configuration that starts from the champion, if there is one."""
    return promotion.start_from_champion(config, model_name)


@task(name="compare and promote", retries=1, retry_delay_seconds=5)
def compare_and_promote(run_id: str, model_name: str, tasks: int, significance: float) -> dict[str, Any]:
    """Evaluate challenger and champion on the same held-out tasks; move the alias if the gain is significant."""
    return promotion.compare_and_promote(run_id, model_name, tasks=tasks, significance=significance).as_dict()


@flow(name="nightly", flow_run_name="nightly {model_name}", persist_result=False)
def nightly(
    config: TrainConfig, model_name: str = "role-agent", tasks: int = 200, significance: float = 0.05
) -> dict[str, Any]:
    """Train from the registry's champion and promote the result only if it is significantly better.

    Args:
        config: How to train; its `policy.model` is used when the registry has no champion yet.
        model_name: The registered model in MLflow whose alias `champion` is kept.
        tasks: Held-out tasks on which both are compared.
        significance: Bound of the one-sided p-value of the paired test.
    """
    summary = train(choose_start(config, model_name))
    verdict = compare_and_promote(summary["run_id"], model_name, tasks, significance)
    create_markdown_artifact(
        promotion.report(verdict),
        key=artifact_key("nightly", summary["run_id"]),
        description="Champion and challenger",
    )
    return verdict
