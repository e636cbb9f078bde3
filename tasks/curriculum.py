"""Retrieval of similar failures and reshaping of the task distribution."""

from __future__ import annotations

from roleagent.loop import phases
from roleagent.loop.phases import PhaseResult
from tasks.common import RunRef, phase


@phase("reshape", timeout_seconds=None)
def reshape(run: RunRef, n: int) -> PhaseResult:
    """Reshape the task distribution after iteration n."""
    return phases.reshape(run.worker(), n)
