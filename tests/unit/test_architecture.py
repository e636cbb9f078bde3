"""The house rules: who may import what, what stays unloaded, and that every configuration key is read."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from roleagent.config import TrainConfig

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "roleagent"
HEAVY = (
    "torch",
    "transformers",
    "mlflow",
    "chromadb",
    "great_expectations",
    "boto3",
    "prefect",
    "pandas",
    "pyarrow",
    "matplotlib",
    "alfworld",
    "textworld",
)


def modules(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def imported(path: Path) -> Iterator[str]:
    """Every module that a file imports, wherever in it, except for type checking only."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            node.body.clear()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def offenders(folder: Path, forbidden: tuple[str, ...], allowed: tuple[str, ...] = ()) -> list[str]:
    found = []
    for path in modules(folder):
        inside = path.relative_to(ROOT).as_posix()
        if any(inside.startswith(prefix) for prefix in allowed):
            continue
        for name in imported(path):
            if any(name == other or name.startswith(other + ".") for other in forbidden):
                found.append(f"{inside} imports {name}")
    return found


def test_the_import_reader_sees_imports_inside_functions(tmp_path: Path) -> None:
    path = tmp_path / "sample.py"
    path.write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\ndef f():\n    import prefect.flows\n"
    )
    assert list(imported(path)) == ["typing", "prefect.flows"]


def test_imports_run_downwards() -> None:
    assert offenders(PACKAGE, ("prefect", "flows", "tasks", "infra")) == []
    assert offenders(ROOT / "tasks", ("flows", "infra")) == []


@pytest.mark.parametrize(
    ("library", "room"),
    [
        ("mlflow", "roleagent/tracking/"),
        ("great_expectations", "roleagent/quality/"),
        ("chromadb", "roleagent/agent_in_world/"),
        ("boto3", "roleagent/storage/"),
        ("botocore", "roleagent/storage/"),
    ],
)
def test_one_room_a_service(library: str, room: str) -> None:
    assert offenders(PACKAGE, (library,), (room,)) == []


@pytest.mark.parametrize("room", ["environments", "world_in_agent", "learning/advantages"])
def test_pure_rooms_know_no_model(room: str) -> None:
    assert offenders(PACKAGE / room, ("torch", "transformers")) == []


def test_learning_and_environments_do_not_know_each_other() -> None:
    assert offenders(PACKAGE / "learning", ("roleagent.environments",)) == []
    assert offenders(PACKAGE / "environments", ("roleagent.policy", "roleagent.learning", "roleagent.rollout")) == []


def test_only_metrics_know_why_an_episode_really_failed() -> None:
    """No prompt, reward, bank record or task distribution may depend on `Explains`: the model never sees it."""
    knows = re.compile(r"\bExplains\b|environments\.base import .*\bVerdict\b|\.explain\(|household\.oracle")
    users = [path.relative_to(ROOT).as_posix() for path in modules(PACKAGE) if knows.search(path.read_text("utf-8"))]
    assert [user for user in users if not user.startswith("roleagent/environments/")] == [
        "roleagent/agent_in_world/accuracy.py"
    ]
    found = [line.partition(" imports ")[0] for line in offenders(PACKAGE, ("roleagent.agent_in_world.accuracy",))]
    assert found == ["roleagent/loop/phases.py"]


def test_a_run_does_not_know_that_it_belongs_to_an_ablation() -> None:
    above = ("roleagent/ablation/", "roleagent/console/", "roleagent/cli.py")
    assert offenders(PACKAGE, ("roleagent.ablation",), above) == []
    assert offenders(PACKAGE / "ablation", ("torch", "transformers")) == []


def test_types_and_config_are_at_the_bottom() -> None:
    rooms = tuple(
        f"roleagent.{path.name}"
        for path in PACKAGE.iterdir()
        if path.is_dir() and path.name not in {"config", "__pycache__"}
    )
    assert [name for name in imported(PACKAGE / "types.py") if name.startswith("roleagent")] == []
    assert offenders(PACKAGE / "config", rooms) == []


def test_importing_any_room_loads_nothing_heavy() -> None:
    rooms = sorted(f"roleagent.{path.name}" for path in PACKAGE.iterdir() if (path / "__init__.py").is_file())
    code = f"import sys, {', '.join(rooms)}, roleagent.cli\nprint([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_nothing_is_unpickled() -> None:
    found = offenders(PACKAGE, ("pickle", "dill", "joblib", "cloudpickle", "shelve", "marshal"))
    for path in modules(PACKAGE):
        if re.search(r"\btorch\.(load|save)\(", path.read_text(encoding="utf-8")):
            found.append(f"{path.name} uses torch.load or torch.save")
    assert found == []


def keys(model: type[BaseModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from keys(kind)
        else:
            yield name


def test_every_configuration_key_is_read() -> None:
    source = "\n".join(
        path.read_text(encoding="utf-8")
        for folder in ("roleagent", "flows", "tasks")
        for path in modules(ROOT / folder)
        if path.name != "models.py"
    )
    models = (PACKAGE / "config" / "models.py").read_text(encoding="utf-8")
    unread = [key for key in keys(TrainConfig) if not re.search(rf"\.{key}\b", source) and f"self.{key}" not in models]
    assert unread == []


@pytest.mark.parametrize("folder", ["roleagent", "flows", "tasks", "infra"])
def test_modules_are_of_readable_size(folder: str) -> None:
    long = {
        path.relative_to(ROOT).as_posix(): lines
        for path in modules(ROOT / folder)
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 400
    }
    assert long == {}
