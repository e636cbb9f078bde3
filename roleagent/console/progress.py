"""Progress of a run: two live lines on a terminal, one line an iteration elsewhere."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from roleagent.console.live import LiveDisplay

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

_WINDOW = 8  # iterations whose mean duration the time left is read from
_BAR = 24
_NARROW, _WIDE = 40, 70  # characters from which a line has words, and from which it has a bar
_NUMBER = re.compile(r"\d[\d.,%]*")


def clock(seconds: float) -> str:
    """Write a duration as m:ss, or h:mm:ss."""
    whole = max(0, round(seconds))
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class ProgressDisplay(LiveDisplay):
    """A listener of the loop that draws on a console. Use it as a context manager.

    Events may come from several threads. A notice that differs from an earlier one in its numbers only is not shown
    again: a condition that lasts would say so in every iteration.
    """

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._moments: list[float] = []  # ends of iterations, after the moment at which the first began
        self._done = self._iterations = 0
        self._phase, self._share = "starting Prefect", 0.0
        self._metrics: dict[str, float] = {}  # the newest value of each
        self._told: set[str] = set()
        self.run_id = ""  #: of the run that is shown; empty before it has begun

    def run_started(self, run_id: str, iterations: int, first: int) -> None:
        """Say which run it is and where it begins."""
        from roleagent.console.screen import escape

        with self._lock:
            self.run_id, self._iterations, self._done = run_id, iterations, max(0, first - 1)
            self._moments = [time.monotonic()]
        if first > iterations:
            begins = "has finished: summary and report are made again"
        else:
            begins = "begins" if first == 0 else f"goes on at iteration {first} of {iterations}"
        self._console.print(f"Run [bold]{escape(run_id)}[/bold] {begins}")

    def phase_started(self, iteration: int, phase: str) -> None:
        """Show the phase; off a terminal only those before the first iteration are worth a line."""
        with self._lock:
            self._phase, self._share = phase, 0.0
        if not self._live and iteration == 0:
            self._console.print(f"  before training: {phase}")

    def phase_progress(self, iteration: int, phase: str, done: int, total: int) -> None:
        """Show how far a long phase is."""
        with self._lock:
            self._share = done / total if total else 0.0

    def iteration_finished(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Count the iteration; print its line where nothing is live, or where held-out tasks were played."""
        now = time.monotonic()
        with self._lock:
            self._done = iteration
            self._phase, self._share = "", 0.0  # the next one has not begun any
            seconds = now - self._moments[-1] if self._moments else 0.0
            # What comes before training is no measure of an iteration.
            self._moments = [now] if iteration == 0 else [*self._moments[-_WINDOW:], now]
            numbers = _numbers(metrics)
            self._metrics |= metrics
            left = self._left()
        if "success/heldout" in metrics:
            low, high = metrics["heldout/low"], metrics["heldout/high"]
            numbers["success/heldout"] = f"[bold]{numbers['success/heldout']}[/bold] ({low:.0%} to {high:.0%})"
        parts = [*numbers.values(), f"{seconds:.1f} s"]
        if not self._live and left is not None and left > 0:
            parts.append(f"about {clock(left)} left")
        if not self._live or "success/heldout" in metrics:
            width = len(str(self._iterations))
            name = "before training:" if iteration == 0 else f"{iteration:>{width}}/{self._iterations}"
            self._console.print(f"  {name}  " + "  ".join(parts))

    def notice(self, text: str) -> None:
        """Print a notice above the live lines."""
        from roleagent.console.screen import escape

        kind = _NUMBER.sub("#", text)
        with self._lock:
            if kind in self._told:
                return
            self._told.add(kind)
        self._console.print(f"[yellow]note[/yellow] {escape(' '.join(text.split()))}")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.progress_bar import ProgressBar
        from rich.spinner import Spinner
        from rich.table import Table
        from rich.text import Text

        with self._lock:
            share = f" {self._share:.0%}" if self._share else ""
            done, total, left = self._done, self._iterations, self._left()
            time_text = clock(time.monotonic() - self._began)
            numbers = "  ".join(" ".join(text.split()) for text in _numbers(self._metrics).values())
            phase = f"{self._phase}{share}"
        if left is not None:
            time_text += f", about {clock(left)} left"
        first = Table.grid(padding=(0, 1))
        cells: list[object] = [self._spinner(Spinner)]
        if total:
            place = min(done + 1, total)
            name = f"iteration {place} of {total}" if options.max_width >= _NARROW else f"{place}/{total}"
            cells.append(Text(name, style="bold", no_wrap=True))
            if options.max_width >= _WIDE:
                cells.append(ProgressBar(total=total, completed=done, width=_BAR, complete_style="cyan"))
        cells.append(Text(phase, style="cyan", no_wrap=True, overflow="ellipsis"))
        first.add_row(*cells)  # type: ignore[arg-type]
        yield first
        yield Text("  " + "   ".join(part for part in (numbers, time_text) if part), no_wrap=True, overflow="ellipsis")

    def _spinner(self, make: type) -> object:
        if not hasattr(self, "_turning"):
            self._turning = make("dots" if (self._console.encoding or "").startswith("utf") else "line", style="cyan")
        return self._turning

    def _left(self) -> float | None:
        if len(self._moments) < 2:
            return None
        pace = (self._moments[-1] - self._moments[0]) / (len(self._moments) - 1)
        return pace * (self._iterations - self._done)


def _numbers(metrics: Mapping[str, float]) -> dict[str, str]:
    """Return what is worth seeing of an iteration, by name."""
    formats = {
        "success/train": "success {:>4.0%}",
        "success/heldout": "held-out {:.1%}",
        "match/mean": "match {:.2f}",
        "bank/size": "failures {:.0f}",
    }
    if "success/relevance" in metrics and "success/uniform" in metrics:
        formats["success/train"] += f" ({metrics['success/uniform']:.0%} uniform)"
    return {name: form.format(metrics[name]) for name, form in formats.items() if name in metrics}
