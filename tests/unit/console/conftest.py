"""Consoles that are read by tests, and a home folder of its own for every test."""

from __future__ import annotations

from pathlib import Path

import pytest

from roleagent.loop.worker import drop_workers
from tests.support.screens import Draw, drawn


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home folder; nothing of an earlier test stays warm."""
    monkeypatch.setenv("ROLEAGENT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("NO_COLOR", raising=False)
    drop_workers()
    return tmp_path / "home"


@pytest.fixture
def draw() -> Draw:
    """Draw a screen without colours and return its text."""
    return drawn
