"""A home folder of its own for every test."""

from __future__ import annotations

from pathlib import Path

import pytest

from roleagent.loop import runs
from roleagent.loop.worker import drop_workers
from tests.support.committed import MakeRun, committed_run


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home folder; nothing of an earlier test stays warm."""
    monkeypatch.setenv("ROLEAGENT_HOME", str(tmp_path / "home"))
    drop_workers()
    return tmp_path / "home"


@pytest.fixture
def make_run(monkeypatch: pytest.MonkeyPatch) -> MakeRun:
    """Make runs; what is checked before one begins has tests of its own."""
    monkeypatch.setattr(runs, "check", lambda config: None)
    return committed_run
