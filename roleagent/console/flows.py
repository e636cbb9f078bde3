"""Running a flow from a terminal: what happens is drawn meanwhile, and an interruption says how to go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roleagent.ablation.plan import Plan
    from roleagent.config import TrainConfig


def watched_training(config: TrainConfig, run_id: str) -> dict[str, Any]:
    """Train, showing progress; return the run's summary.

    Raises:
        Interrupted: by Ctrl-C or SIGTERM.
    """
    from roleagent.console.guard import going_on
    from roleagent.console.progress import ProgressDisplay
    from roleagent.console.screen import make_console
    from roleagent.loop.events import listening

    display = ProgressDisplay(make_console(stderr=True))

    def hint() -> str:
        return f"; go on with: roleagent resume {display.run_id}" if display.run_id else ""

    with going_on(hint), display, listening(display):
        summary: dict[str, Any] = _flow("train")(config, run_id)
    return summary


def watched_ablation(plan: Plan, *, parallel: int, threads: int) -> dict[str, Any]:
    """Run an ablation, showing progress; return what it found.

    Raises:
        Interrupted: by Ctrl-C or SIGTERM.
    """
    from roleagent.ablation.events import listening_to_ablation
    from roleagent.console.ablation import AblationDisplay
    from roleagent.console.guard import going_on
    from roleagent.console.screen import make_console

    display = AblationDisplay(make_console(stderr=True))

    def hint() -> str:
        return "; the same command goes on from here" if display.ablation_id else ""

    with going_on(hint), display, listening_to_ablation(display):
        results: dict[str, Any] = _flow("ablate")(plan.request, parallel=parallel, threads=threads)
    return results


def _flow(name: str) -> Callable[..., Any]:
    """Load a flow by its entry point: this package does not know the flows, which stand above it."""
    from importlib.metadata import entry_points

    (flow,) = entry_points(group="roleagent.flows", name=name)
    loaded: Callable[..., Any] = flow.load()
    return loaded
