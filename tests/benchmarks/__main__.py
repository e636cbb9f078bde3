"""`make bench`: run every benchmark and write its numbers to `build/benchmarks.json`, a flat map name -> number.

Each benchmark is a module with `numbers()`, run in a process of its own. What the machine was is written beside it, to
`build/machine.json`. docs/benchmarks.md says what each number means. `python -m tests.benchmarks startup` runs one.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
BENCHMARKS = (
    "startup",
    "household_speed",
    "alfworld_speed",
    "agent_in_world_cost",
    "decode_speed",
    "rollout_overhead",
    "generation_limit",
    "trl_generation",
    "update_speed",
    "update_fraction",
    "trl_update",
    "trl_success",
    "text_matching",
    "iteration_cost",
    "diagnosis_accuracy",
    "run_cost",
)
PACKAGES = ("roleagent", "torch", "transformers", "prefect", "mlflow", "chromadb", "great_expectations", "numpy")
_CODE = "import json; from tests.benchmarks.{} import numbers; print('\\n' + json.dumps(numbers()))"


def main(names: list[str]) -> int:
    """Run the benchmarks of these names, all by default; return the exit status."""
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        sys.stderr.write(f"error: no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}\n")
        return 2
    folder = ROOT / "build"
    folder.mkdir(exist_ok=True)
    target = folder / "benchmarks.json"
    found: dict[str, float] = json.loads(target.read_text(encoding="utf-8")) if names and target.is_file() else {}
    machine = describe()
    failed = []
    for name in names or BENCHMARKS:
        sys.stderr.write(f"{name} ...")
        sys.stderr.flush()
        began = time.monotonic()
        measured = run(name)
        if measured is None:
            failed.append(name)
        found |= measured or {}
        sys.stderr.write(f" {time.monotonic() - began:.0f} s\n")
    found |= derived(found)
    machine["load_after"] = os.getloadavg()[0]
    target.write_text(json.dumps(dict(sorted(found.items())), indent=1) + "\n", encoding="utf-8")
    (folder / "machine.json").write_text(json.dumps(machine, indent=1) + "\n", encoding="utf-8")
    for name, value in sorted(found.items()):
        sys.stdout.write(f"{name:<36} {value:>14,.4g}\n")
    if failed:
        sys.stderr.write(f"error: {', '.join(failed)} failed\n")
    return 1 if failed else 0


def derived(found: dict[str, float]) -> dict[str, float]:
    """Return what follows from the numbers of several benchmarks.

    Without a whole quickstart run, the share of orchestration is its seconds in a real, small run over the seconds of a
    quickstart iteration, to which what Prefect takes is added.
    """
    needed = ("from_quickstart_run", "orchestration_seconds", "iteration_seconds", "prefect_seconds")
    if any(name not in found for name in needed) or found["from_quickstart_run"]:
        return {}
    whole = found["iteration_seconds"] + found["prefect_seconds"]
    return {"orchestration_share": round(found["orchestration_seconds"] / whole, 6)}


def run(name: str) -> dict[str, float] | None:
    """Run one benchmark in a process of its own; None, with its error told, if it fails."""
    done = subprocess.run(
        [sys.executable, "-c", _CODE.format(name)],
        cwd=ROOT,
        env={**os.environ, "GOMP_SPINCOUNT": os.environ.get("GOMP_SPINCOUNT", "2000")},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.stderr.write(f"\n{done.stderr}\n")
        return None
    numbers: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return {key: round(value, 6) for key, value in numbers.items()}


def describe() -> dict[str, object]:
    """Return what the numbers depend on: processor, memory, versions, other work."""
    return {
        "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "processor": _processor(),
        "cores": psutil.cpu_count(logical=False),
        "threads": psutil.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "load_before": os.getloadavg()[0],
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
