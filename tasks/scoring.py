"""Rewards and advantages."""

from __future__ import annotations

from roleagent.loop import phases
from roleagent.loop.phases import PhaseResult
from tasks.common import RunRef, phase


@phase("score", timeout_seconds=300)
def score(run: RunRef, n: int) -> PhaseResult:
    """Score the trajectories of iteration n."""
    return phases.score(run.worker(), n)
