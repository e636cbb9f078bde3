"""CONTRIBUTING's way to add an environment, followed to the letter in a copy of the sources."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.support.commands import BIN, ROOT, command

pytestmark = pytest.mark.timeout(900)

NAME = "lamps"
ENVIRONMENT = '''
"""A row of lamps: light the one that the task names."""

from collections.abc import Sequence

from roleagent.environments.base import Observation, Outcome
from roleagent.errors import ConfigError, EnvironmentFault
from roleagent.types import Split, Task

LAMPS = ("lamp 1", "lamp 2", "lamp 3")


class Lamps:
    """One room, three switches."""

    name = "lamps"
    reward_range = (0.0, 1.0)
    guide = "switch on <lamp>: light a lamp"

    def __init__(self) -> None:
        self._wanted = ""  # empty while no episode goes on

    def tasks(self, split: Split) -> Sequence[Task]:
        return [Task(f"lamps-{split}-{n}", self.name, LAMPS[n % 3], split) for n in range(16)]

    def reset(self, task_id: str) -> tuple[str, Observation]:
        known = {task.task_id: n for split in ("train", "heldout") for n, task in enumerate(self.tasks(split))}
        if task_id not in known:
            raise ConfigError(f"lamps has no task {task_id!r}; ids look like lamps-train-0")
        self._wanted = LAMPS[known[task_id] % 3]
        return f"switch on {self._wanted}", self._look(f"You are in the dark room {task_id} with three lamps.")

    def step(self, action: str) -> Outcome:
        if not self._wanted:
            raise EnvironmentFault("lamps: no episode goes on; call reset first")
        valid = action.startswith("switch on ") and action.removeprefix("switch on ") in LAMPS
        won = action == f"switch on {self._wanted}"
        self._wanted = "" if won else self._wanted
        text = f"You {action}. It shines." if valid else "Nothing happens."
        reward = 1.0 if won else 0.0
        return Outcome(self._look(text), reward, won, won, reward, valid)

    def _look(self, text: str) -> Observation:
        return Observation(text, tuple(f"switch on {lamp}" for lamp in LAMPS))
'''


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Steps 1 and 2: the folder with its class, and the line in the registry."""
    folder = tmp_path_factory.mktemp("sources")
    for name in ("roleagent", "flows", "tasks", "infra"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    package = folder / "roleagent" / "environments" / NAME
    package.mkdir()
    (package / "__init__.py").write_text(ENVIRONMENT, encoding="utf-8")
    registry = folder / "roleagent" / "environments" / "registry.py"
    text = registry.read_text(encoding="utf-8")
    line = re.search(r'^    "household": .*\n', text, re.MULTILINE)
    assert line
    added = f'    "{NAME}": "roleagent.environments.{NAME}:Lamps",\n'
    registry.write_text(text.replace(line[0], line[0] + added), encoding="utf-8")
    return folder


def test_the_recipe_is_the_documented_one() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for words in (
        "Make `roleagent/environments/<name>/`",
        "def tasks(self, split: Split) -> Sequence[Task]",
        "def reset(self, task_id: str) -> tuple[str, Observation]",
        "def step(self, action: str) -> Outcome",
        "one line in `roleagent/environments/registry.py`",
        "`check_environment(lambda: MyEnvironment()).raise_for_findings()`",
        "`roleagent train --set environment.name=<name>`",
    ):
        assert words in text


def test_the_checker_passes_it(sources: Path, tmp_path: Path) -> None:
    code = (
        "from roleagent.environments.checker import check_environment\n"
        "from roleagent.environments.lamps import Lamps\n"
        "check_environment(lambda: Lamps()).raise_for_findings()\n"
    )
    done = command([str(BIN / "python"), "-c", code], tmp_path / "home", cwd=sources)
    assert done.returncode == 0, done.stderr


def test_a_policy_is_trained_on_it(sources: Path, tmp_path: Path) -> None:
    changes = [f"environment.name={NAME}", "iterations=1"]
    arguments = [part for change in changes for part in ("--set", change)]
    done = command(
        [str(BIN / "roleagent"), "train", "--preset", "smoke", *arguments],
        tmp_path / "home",
        cwd=tmp_path,
        more={"PYTHONPATH": str(sources)},
    )
    assert done.returncode == 0, done.stderr
    assert "finished" in done.stdout
    shown = command(
        [str(BIN / "roleagent"), "evaluate", "latest", "--tasks", "3"],
        tmp_path / "home",
        cwd=tmp_path,
        more={"PYTHONPATH": str(sources)},
    )
    assert shown.returncode == 0, shown.stderr
    assert all(lamp in shown.stdout for lamp in ("lamp 1", "lamp 2", "lamp 3"))
