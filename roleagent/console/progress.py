"""Progress of a run: a live line on a terminal, one line an iteration elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_WINDOW = 8  # iterations whose mean duration the time left is read from


def clock(seconds: float) -> str:
    """Write a duration as m:ss, or h:mm:ss."""
    whole = max(0, round(seconds))
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class ProgressDisplay:
    """A listener of the loop that draws on a console. Use it as a context manager."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

        self._console = console
        self._lock = threading.Lock()
        self._live = console.is_terminal
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[status]}"),
            console=console,
            transient=True,
            disable=not self._live,
        )
        self._task = self._progress.add_task("starting", total=1, status="")
        self._iterations = 1
        self._done = 0
        self._phase = "starting"
        self._share = 0.0
        self._heldout: float | None = None
        self._success: float | None = None
        self._began = time.monotonic()
        self._moments: list[float] = []

    def __enter__(self) -> ProgressDisplay:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def run_started(self, run_id: str, iterations: int, first: int) -> None:
        """Say which run it is and where it begins."""
        from rich.markup import escape

        with self._lock:
            self._iterations, self._done = iterations, max(0, first - 1)
            self._moments = [time.monotonic()]
        begins = "begins" if first == 0 else f"goes on at iteration {first} of {iterations}"
        self._console.print(f"Run [bold]{escape(run_id)}[/bold] {begins}", highlight=False)
        self._draw()

    def phase_started(self, iteration: int, phase: str) -> None:
        """Show the phase; off a terminal only the slow ones before the first iteration are worth a line."""
        with self._lock:
            self._phase, self._share = phase, 0.0
        if not self._live and iteration == 0:
            self._console.print(f"  before training: {phase}", highlight=False)
        self._draw()

    def phase_progress(self, iteration: int, phase: str, done: int, total: int) -> None:
        """Show how far a long phase is."""
        with self._lock:
            self._share = done / total if total else 0.0
        self._draw()

    def iteration_finished(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Count the iteration and print its line."""
        now = time.monotonic()
        with self._lock:
            self._done = iteration
            self._success = metrics.get("success/train", self._success)
            self._heldout = metrics.get("success/heldout", self._heldout)
            seconds = now - self._moments[-1] if self._moments else 0.0
            self._moments = [*self._moments[-_WINDOW:], now]
            left = self._left()
        parts = [f"{iteration:>4}/{self._iterations}"]
        if "success/train" in metrics:
            parts.append(f"success {metrics['success/train']:>4.0%}")
        if "match/mean" in metrics:
            parts.append(f"prediction match {metrics['match/mean']:.2f}")
        if "bank/size" in metrics:
            parts.append(f"failures known {metrics['bank/size']:.0f}")
        parts.append(f"{seconds:.1f} s")
        if "success/heldout" in metrics:
            low, high = metrics["heldout/low"], metrics["heldout/high"]
            parts.append(f"[bold]held-out {metrics['success/heldout']:.1%}[/bold] ({low:.0%} to {high:.0%})")
        if not self._live and left is not None:
            parts.append(f"left {clock(left)}")
        if not self._live or "success/heldout" in metrics:
            self._console.print("  " + "  ".join(parts), highlight=False)
        self._draw()

    def notice(self, text: str) -> None:
        """Print a notice above the live line."""
        from rich.markup import escape

        self._console.print(f"[yellow]note[/yellow] {escape(text)}", highlight=False)

    def _left(self) -> float | None:
        if len(self._moments) < 2:
            return None
        pace = (self._moments[-1] - self._moments[0]) / (len(self._moments) - 1)
        return pace * (self._iterations - self._done)

    def _draw(self) -> None:
        if not self._live:
            return
        with self._lock:
            share = f" {self._share:.0%}" if self._share else ""
            description = (
                f"iteration {min(self._done + 1, self._iterations)} of {self._iterations}: {self._phase}{share}"
            )
            parts = []
            if self._success is not None:
                parts.append(f"success {self._success:.0%}")
            if self._heldout is not None:
                parts.append(f"held-out {self._heldout:.0%}")
            parts.append(clock(time.monotonic() - self._began))
            left = self._left()
            if left is not None:
                parts.append(f"about {clock(left)} left")
            self._progress.update(
                self._task,
                description=f"{description:<36}",
                completed=self._done,
                total=self._iterations,
                status="  ".join(parts),
            )
