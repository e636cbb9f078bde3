"""A home folder with real ALFWorld games, made once."""

from __future__ import annotations

from pathlib import Path

import pytest
from alfworld_store import compact_folder, filled


@pytest.fixture(scope="session")
def compact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of compact files: 140 valid_seen and 36 train games."""
    return compact_folder(tmp_path_factory.mktemp("compact") / "alfworld")


@pytest.fixture(scope="session")
def alfworld_home(tmp_path_factory: pytest.TempPathFactory, compact: Path) -> Path:
    """A home folder into which these games were added."""
    home = tmp_path_factory.mktemp("alfworld") / "home"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROLEAGENT_HOME", str(home))
        filled(home, compact)
    return home


@pytest.fixture
def games_here(alfworld_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The machine has the games of `alfworld_home`, and no others."""
    monkeypatch.setenv("ROLEAGENT_HOME", str(alfworld_home))
    monkeypatch.setenv("ALFWORLD_DATA", str(alfworld_home / "none"))
    return alfworld_home
