"""A check of the set-up: each line is one thing that training needs, and how to mend it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from importlib import metadata
from typing import TYPE_CHECKING

from rich.table import Table

from roleagent.console.screen import escape
from roleagent.errors import RoleAgentError
from roleagent.loop import home

if TYPE_CHECKING:
    from rich.console import Console

_NAMED = ("torch", "transformers", "prefect", "mlflow", "chromadb", "great_expectations")  # whose versions are shown
_FREE_GB = 2.0
_MEMORY_GB = 3.0
_NAME_WIDTH = 18


class _WaitsError(Exception):
    """A check cannot be made until what another one found is mended: it counts once."""


def examine(console: Console) -> bool:
    """Print one line a check, as soon as it is done; return whether all passed."""
    failed = 0
    for name, check in _CHECKS:
        try:
            told, state = check(), "[green]ok[/]"
        except _WaitsError as error:
            told, state = str(error), "[yellow]-[/]"
        except (RoleAgentError, OSError, ImportError) as error:
            failed += 1
            told, state = " ".join(str(error).split()), "[red]x[/]"
        line = Table.grid(padding=(0, 2))
        line.add_column(width=2)
        line.add_column(width=_NAME_WIDTH, style="bold")
        line.add_column(overflow="fold")
        line.add_row(state, name, escape(told))
        console.print(line)
    if failed:
        console.print(f"\n[red]{failed} of {len(_CHECKS)} things need mending.[/]")
    else:
        console.print("\nAll is well. Start with: roleagent train")
    return not failed


def _python() -> str:
    if not (3, 11) <= sys.version_info[:2] < (3, 14):
        raise RoleAgentError(f"Python {sys.version.split()[0]} is not 3.11 to 3.13; make the venv with one of those")
    return sys.version.split()[0]


def _packages() -> str:
    from packaging.requirements import Requirement

    wrong, found = [], {}
    for text in metadata.requires("roleagent") or []:
        need = Requirement(text)
        if need.marker and not need.marker.evaluate({"extra": ""}):
            continue
        try:
            found[need.name] = metadata.version(need.name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{need.name} is missing")
            continue
        if not need.specifier.contains(found[need.name], prereleases=True):
            wrong.append(f"{need.name} is {found[need.name]}, needed is {need.specifier}")
    if wrong:
        raise RoleAgentError(f"{'; '.join(wrong)}; run: pip install -e . -c constraints.txt")
    return f"{len(found)} as needed, among them " + ", ".join(f"{name} {found[name]}" for name in _NAMED)


def _policy() -> str:
    from roleagent.policy.model import load_policy

    policy = load_policy("roleagent:quickstart", dtype="float32", device="cpu")
    return f"{sum(parameter.numel() for parameter in policy.model.parameters()):,} parameters"


def _embedding() -> str:
    from roleagent.agent_in_world.embedding import TextEmbedder
    from roleagent.config import AgentInWorldConfig

    spec = AgentInWorldConfig().embedding_model
    vector = TextEmbedder(spec).embed(["a mug is in the cabinet"])
    return f"{spec}, {vector.shape[1]} dimensions"


def _home() -> str:
    folder = home.writable_home()
    free = shutil.disk_usage(folder).free / 1e9
    if free < _FREE_GB:
        raise RoleAgentError(f"{folder} has {free:.1f} GB free; a run needs {_FREE_GB:.0f} GB")
    return f"{folder}, {free:.0f} GB free"


def _machine() -> str:
    import psutil
    import torch

    memory = psutil.virtual_memory().available / 1e9
    if memory < _MEMORY_GB:
        raise RoleAgentError(f"{memory:.1f} GB of memory are free; the quickstart needs {_MEMORY_GB:.0f} GB")
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return f"{psutil.cpu_count(logical=False)} cores, {memory:.0f} GB of memory free, {gpu}"


def _prefect() -> str:
    if not os.environ.get("PREFECT_API_URL"):
        return "a server of its own for each run"
    from roleagent.loop.servers import server_answers

    return server_answers("PREFECT_API_URL")


def _mlflow() -> str:
    from roleagent.tracking.backend import connect, resolve_backend

    backend = resolve_backend("", home.home())
    if not os.environ.get("MLFLOW_TRACKING_URI"):
        try:
            home.writable_home()
        except RoleAgentError as error:
            raise _WaitsError("its database is kept in the home folder: mend that first") from error
    connect(backend)
    return backend.shown


_CHECKS: tuple[tuple[str, Callable[[], str]], ...] = (
    ("python", _python),
    ("packages", _packages),
    ("machine", _machine),
    ("home folder", _home),
    ("quickstart policy", _policy),
    ("embedding model", _embedding),
    ("Prefect", _prefect),
    ("MLflow", _mlflow),
)
