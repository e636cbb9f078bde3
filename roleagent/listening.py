"""Who watches this process: one listener at a time, installed for a while.

Code that has something to tell speaks to the current listener; the command line installs one that draws. Without one,
the silent listener takes every event and does nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

L = TypeVar("L")


class Seat(Generic[L]):
    """The place of a process's one listener, shared by its threads."""

    def __init__(self, silent: L) -> None:
        self._listener = silent

    def current(self) -> L:
        """Return the process's listener."""
        return self._listener

    @contextmanager
    def taken(self, by: L) -> Iterator[None]:
        """Install a listener for the time of a block; then the one before it has its seat again."""
        before, self._listener = self._listener, by
        try:
            yield
        finally:
            self._listener = before
