"""The policy update."""

from __future__ import annotations

from roleagent.loop import phases
from roleagent.loop.phases import PhaseResult
from tasks.common import RunRef, phase


@phase("update")
def update(run: RunRef, n: int) -> PhaseResult:
    """Update the policy on the trajectories of iteration n."""
    return phases.update(run.worker(), n)
