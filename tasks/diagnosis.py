"""The model, as the environment, diagnoses failures."""

from __future__ import annotations

from roleagent.loop import phases
from roleagent.loop.phases import PhaseResult
from tasks.common import RunRef, phase


@phase("diagnose", timeout_seconds=None)
def diagnose(run: RunRef, n: int) -> PhaseResult:
    """Diagnose the failures of iteration n."""
    return phases.diagnose(run.worker(), n)
