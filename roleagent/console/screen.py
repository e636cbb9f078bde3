"""Where screens are drawn: the terminal, or a file that is read by people too."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_FILE_WIDTH = 160  # characters of a line in a file or pipe, where nothing wraps by itself


def make_console(*, stderr: bool = False) -> Console:
    """Return a console. Off a terminal lines are wide, and there is no colour."""
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False, soft_wrap=stderr)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _FILE_WIDTH
    return console
