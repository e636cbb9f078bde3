"""Sampling tasks and playing them."""

from __future__ import annotations

from roleagent.loop import phases
from roleagent.loop.phases import PhaseResult
from roleagent.types import DrawnTask
from tasks.common import RunRef, phase


@phase("sample tasks", timeout_seconds=120)
def sample_tasks(run: RunRef, n: int) -> list[DrawnTask]:
    """Draw the tasks of iteration n."""
    return phases.draw_tasks(run.worker(), n)


@phase("roll out")
def roll_out(run: RunRef, n: int, drawn: list[DrawnTask]) -> PhaseResult:
    """Play the groups of the drawn tasks."""
    return phases.roll_out(run.worker(), n, drawn)
