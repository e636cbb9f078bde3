"""Success on held-out tasks."""

from __future__ import annotations

from roleagent.loop import phases
from roleagent.loop.phases import PhaseResult
from tasks.common import RunRef, phase


@phase("evaluate")
def evaluate(run: RunRef, n: int, final: bool) -> PhaseResult:
    """Evaluate policy version n."""
    return phases.evaluate(run.worker(), n, final=final)


@phase("prepare")
def prepare(run: RunRef, n: int = 0) -> list[PhaseResult]:
    """Write the state before training and evaluate it."""
    return phases.prepare(run.worker())
