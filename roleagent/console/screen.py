"""Where screens are drawn: the terminal, or a file that is read by people too; and texts that it is not to obey."""

from __future__ import annotations

import os
import unicodedata
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


def printable(text: str) -> str:
    """Return the text of a model or an environment with every character that a terminal would obey made visible.

    Rich passes escape sequences on as they come. Line breaks and tabs stay; other control and format characters, and
    what is no character, become the replacement character.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char in "\n\t" or not unicodedata.category(char).startswith("C") else "\ufffd" for char in text
    )


def escape(text: str) -> str:
    """Return untrusted text for a place where console markup is read: printable, and no markup."""
    from rich.markup import escape as escape_markup

    return escape_markup(printable(text))
