"""What every live drawing has: a console, a lock, the moment at which it began, and live lines on a terminal only."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self

    from rich.console import Console, ConsoleOptions, RenderResult


class LiveDisplay(ABC):
    """A drawing that stays live while its block runs, and is gone afterwards. Off a terminal nothing is live.

    Events may come from several threads: what they change, and what is drawn, is read and written under `_lock`.
    """

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self._console = console
        self._lock = threading.Lock()
        self._live = Live(self, console=console, transient=True, refresh_per_second=4) if console.is_terminal else None
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    @abstractmethod
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines as they are now; each display has its own."""
