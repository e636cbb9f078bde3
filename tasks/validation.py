"""Holding what passes between phases against its expectations."""

from __future__ import annotations

from roleagent.loop import phases
from roleagent.loop.phases import PhaseResult
from tasks.common import RunRef, phase


@phase("validate trajectories", timeout_seconds=300)
def validate_trajectories(run: RunRef, n: int) -> PhaseResult:
    """Validate the trajectories of iteration n."""
    return phases.validate_rollout(run.worker(), n)


@phase("validate diagnoses", timeout_seconds=None)
def validate_diagnoses(run: RunRef, n: int) -> PhaseResult:
    """Validate the diagnoses of iteration n."""
    return phases.validate_diagnoses(run.worker(), n)
