"""Screens as text."""

from __future__ import annotations

import io
from collections.abc import Callable

from rich.console import Console, RenderableType

Draw = Callable[..., str]


def drawn(screen: RenderableType, width: int = 100, encoding: str = "utf-8") -> str:
    """Draw a screen without colours; a character that the encoding does not know becomes `?`."""
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, errors="replace", write_through=True)
    Console(file=file, width=width, color_system=None, legacy_windows=False).print(screen, crop=False)
    return raw.getvalue().decode(encoding)
