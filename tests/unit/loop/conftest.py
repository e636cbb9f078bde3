"""A home folder of its own for every test."""

from __future__ import annotations

import pytest

from roleagent.loop import runs
from tests.support.committed import MakeRun, committed_run
from tests.support.homes import home  # noqa: F401  a fixture


@pytest.fixture
def make_run(monkeypatch: pytest.MonkeyPatch) -> MakeRun:
    """Make runs; what is checked before one begins has tests of its own."""
    monkeypatch.setattr(runs, "check", lambda config: None)
    return committed_run
