"""One smoke training through the real command line and a real Prefect, shared by all tests of the session."""

from __future__ import annotations

import json
import os

import pytest
from filelock import FileLock

from tests.support.commands import BIN, Trained, command


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """`roleagent train --preset smoke`, once, whichever of the test processes comes first."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "trained"
    shared.mkdir(exist_ok=True)
    told, home = shared / "told.json", shared / "home"
    with FileLock(shared / "lock"):
        if not told.exists():
            done = command([str(BIN / "roleagent"), "train", "--preset", "smoke", "--seed", "1"], home)
            assert done.returncode == 0, done.stderr
            told.write_text(json.dumps([done.stdout, done.stderr]), encoding="utf-8")
    (handle,) = (home / "runs").glob("*.json")
    return Trained(home, handle.stem, *json.loads(told.read_text(encoding="utf-8")))
