"""One smoke training through the real command line and a real Prefect, shared by all tests of the session."""

from __future__ import annotations

import pytest

from tests.support.commands import BIN, Trained, command


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """`roleagent train --preset smoke`, once."""
    home = tmp_path_factory.mktemp("e2e") / "home"
    done = command([str(BIN / "roleagent"), "train", "--preset", "smoke", "--seed", "1"], home)
    assert done.returncode == 0, done.stderr
    (handle,) = (home / "runs").glob("*.json")
    return Trained(home, handle.stem, done.stdout, done.stderr)
