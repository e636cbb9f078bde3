"""What a person watching a run is told, as it happens.

The phases report to the process's listener; the command line installs one that draws progress. Without one,
events go nowhere: a worker on another machine shows its progress through its orchestrator instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from roleagent.listening import Seat


class Listener(Protocol):
    """Receives the events of a run, possibly from several threads."""

    def run_started(self, run_id: str, iterations: int, first: int) -> None:
        """A run begins, or goes on, at iteration `first` of `iterations`."""

    def phase_started(self, iteration: int, phase: str) -> None:
        """A phase of an iteration begins."""

    def phase_progress(self, iteration: int, phase: str, done: int, total: int) -> None:
        """A long phase has done part of its work."""

    def iteration_finished(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """An iteration was committed."""

    def notice(self, text: str) -> None:
        """Something a person should know, which does not stop the run."""


class _Silent:
    def run_started(self, run_id: str, iterations: int, first: int) -> None: ...
    def phase_started(self, iteration: int, phase: str) -> None: ...
    def phase_progress(self, iteration: int, phase: str, done: int, total: int) -> None: ...
    def iteration_finished(self, iteration: int, metrics: Mapping[str, float]) -> None: ...
    def notice(self, text: str) -> None: ...


_seat: Seat[Listener] = Seat(_Silent())
listener = _seat.current
listening = _seat.taken
