"""Commands as a person types them: a fresh shell with the virtual environment activated."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
_FOREIGN = ("PREFECT_", "MLFLOW_", "AWS_", "ROLEAGENT_")  # a server of the developer's shell is none of ours


def environment(home: Path) -> dict[str, str]:
    """Variables of a fresh shell with the virtual environment activated, and a home folder of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    return {**kept, "ROLEAGENT_HOME": str(home), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}


def command(
    arguments: list[str], home: Path, *, cwd: Path = ROOT, more: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, off a terminal."""
    return subprocess.run(
        arguments,
        cwd=cwd,
        env={**environment(home), **(more or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


@dataclass(frozen=True)
class Trained:
    """A finished run, and how it was told."""

    home: Path
    run_id: str
    stdout: str
    stderr: str

    def roleagent(self, *arguments: str) -> str:
        """Run a command that succeeds; return its standard output."""
        done = command([str(BIN / "roleagent"), *arguments], self.home)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def json(self, *arguments: str) -> Any:
        """Run a command that prints JSON."""
        return json.loads(self.roleagent(*arguments))


def copy_home(home: Path, to: Path) -> Path:
    """Copy a home folder, so that a test may change it; its runs are those of the copy."""
    shutil.copytree(home, to)
    for note in (to / "runs").glob("*.json"):
        note.write_text(note.read_text(encoding="utf-8").replace(str(home), str(to)), encoding="utf-8")
    return to
