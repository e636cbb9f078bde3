"""What comes before any work: the size of a clone, and the time of `roleagent --help`."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.timing import child_cpu

ROOT = Path(__file__).parents[2]


def numbers() -> dict[str, float]:
    """`help_seconds` (CPU, median of 7) and `clone_mb` (a fresh clone, history included)."""
    command = [str(Path(sys.executable).parent / "roleagent"), "--help"]
    return {"help_seconds": statistics.median(child_cpu(command) for _ in range(7)), "clone_mb": clone_mb()}


def clone_mb() -> float:
    """Return the size of a fresh clone in MB; that of the sources where there is no repository."""
    if not (ROOT / ".git").exists():
        return _size(path for path in ROOT.rglob("*") if ".venv" not in path.parts) / 1e6
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "clone", "--quiet", f"file://{ROOT}", folder], check=True, capture_output=True)
        return _size(Path(folder).rglob("*")) / 1e6


def _size(paths: object) -> float:
    return float(sum(path.stat().st_size for path in paths if path.is_file() and not path.is_symlink()))  # type: ignore[attr-defined]
