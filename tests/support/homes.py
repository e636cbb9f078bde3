"""A home folder of its own for every test of a room: its conftest imports the fixture."""

from __future__ import annotations

from pathlib import Path

import pytest

from roleagent.loop.worker import drop_workers


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home folder; nothing of an earlier test stays warm."""
    monkeypatch.setenv("ROLEAGENT_HOME", str(tmp_path / "home"))
    drop_workers()
    return tmp_path / "home"
