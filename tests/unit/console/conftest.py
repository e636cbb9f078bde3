"""Consoles that are read by tests, and a home folder of its own for every test."""

from __future__ import annotations

import pytest

from tests.support.homes import home  # noqa: F401  a fixture
from tests.support.screens import Draw, drawn


@pytest.fixture(autouse=True)
def colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the person who runs the tests prefers has no effect."""
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.fixture
def draw() -> Draw:
    """Draw a screen without colours and return its text."""
    return drawn
