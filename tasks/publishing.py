"""The commit, and what follows it: bank, MLflow, retention, report."""

from __future__ import annotations

from typing import Any

from roleagent.loop import phases, publishing
from roleagent.loop.phases import PhaseResult
from roleagent.types import DrawnTask
from tasks.common import RunRef, phase


@phase("commit", timeout_seconds=600)
def commit(run: RunRef, n: int, results: list[PhaseResult], drawn: list[DrawnTask]) -> dict[str, float]:
    """Commit iteration n by the atomic write of its manifest."""
    return phases.commit(run.worker(), n, results, drawn)


@phase("publish", timeout_seconds=600)
def publish(run: RunRef, n: int, metrics: dict[str, float]) -> float:
    """Index, log and prune what iteration n committed; return the seconds that it took."""
    return publishing.publish(run.worker(), n, metrics)


@phase("finish", timeout_seconds=600)
def finish(run: RunRef, n: int) -> dict[str, Any]:
    """Write summary, figures and report of a finished run; return the summary."""
    return publishing.finish(run.worker(), n)
