"""The machine: what it is, and how many runs it carries side by side."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from roleagent.errors import ConfigError

_PACKAGES = ("torch", "transformers", "numpy", "prefect", "mlflow")


@dataclass(frozen=True, slots=True)
class Slots:
    """How runs share the machine."""

    parallel: int  #: runs side by side
    threads: int  #: threads of each
    gpus: tuple[str, ...] = ()  #: one a slot, in turn; empty where runs use none


def cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def gpus() -> tuple[str, ...]:
    """Return the numbers of the NVIDIA GPUs that this process may use, without loading CUDA."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(part.strip() for part in visible.split(",") if part.strip() not in {"", "-1"})
    folder = Path("/proc/driver/nvidia/gpus")
    return tuple(str(n) for n in range(len(list(folder.iterdir())))) if folder.is_dir() else ()


def share(runs: int, *, parallel: int = 0, threads: int = 0, devices: Sequence[str] = ()) -> Slots:
    """Divide the machine among runs; 0 lets it decide.

    By itself: one run a GPU where runs use one; else as many runs as there are cores for, `threads` each. Where there
    are more cores than runs, each has an equal share of them as threads.

    Raises:
        ConfigError: a number is negative.
    """
    if parallel < 0 or threads < 0:
        raise ConfigError(f"--parallel {parallel} --threads {threads}: both must be at least 1, or 0 for automatic")
    there = cores()
    if not parallel:
        parallel = len(devices) if devices else there // (threads or 1)
    parallel = max(1, min(parallel, runs))
    return Slots(parallel, threads or max(1, there // parallel), tuple(devices))


def describe() -> dict[str, Any]:
    """Return what decides whether numbers can be repeated here: processor, memory, GPUs, versions of packages."""
    import psutil

    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": cores(),
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "gpus": _gpu_names(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in ("roleagent", *_PACKAGES)},
        "commit": _commit(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _gpu_names() -> list[str]:
    found = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        lines = path.read_text(encoding="utf-8").splitlines()
        found += [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    return found


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _commit() -> str:
    """Return the commit of the sources, with `+` if they were changed since; empty where they are no checkout."""
    here = ["git", "-C", str(Path(__file__).parents[2])]
    try:
        head = subprocess.run([*here, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=True)
        status = [*here, "status", "--porcelain", "--untracked-files=no"]
        changed = subprocess.run(status, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")
