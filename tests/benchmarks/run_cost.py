"""What orchestration costs in a real run: Prefect, Great Expectations, MLflow and storage, an iteration.

Read from the latest finished run of the preset `quickstart` in this home folder; where there is none, from a run of
the preset `smoke` that is made for it, whose iterations are small, so that the seconds say much and the share little.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from roleagent.errors import RoleAgentError
from roleagent.loop import publishing, runs
from roleagent.loop.timing import phase_shares, timings
from roleagent.loop.worker import Worker

PARTS = ("orchestration", "validation", "storage", "publishing")


def numbers() -> dict[str, float]:
    """`orchestration_seconds`, `orchestration_share` and its parts, medians over iterations; facts of the run."""
    quickstart = latest_quickstart()
    if quickstart is not None:
        return {**costs(quickstart), **facts(publishing.load_summary(quickstart)), "from_quickstart_run": 1.0}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ROLEAGENT_HOME"] = folder
        command = [
            str(Path(sys.executable).parent / "roleagent"),
            "train",
            "--preset",
            "smoke",
            "--set",
            "iterations=5",
        ]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True)
        return {**costs(runs.find_run("latest").worker()), "from_quickstart_run": 0.0}


def latest_quickstart() -> Worker | None:
    """Return the newest finished run that is as long as the preset says, None if there is none."""
    from roleagent.config import load_config

    preset = load_config("quickstart")
    for handle in reversed(runs.list_handles()):
        try:
            worker = handle.worker()
            same = worker.config.model_copy(update={"seed": preset.seed, "storage": preset.storage}) == preset
            if same and runs.read_status(worker)["status"] == "finished":
                return worker
        except RoleAgentError:  # a damaged run, or one of another version
            continue
    return None


def costs(worker: Worker) -> dict[str, float]:
    """Return seconds and share of each part, medians over all iterations but the first, which loads libraries."""
    walls = timings(worker)
    rows: list[dict[str, float]] = []
    shares: list[dict[str, float]] = []
    for n, timing in walls.items():
        if n > 1:
            share, _ = phase_shares([publishing.row(worker, n)["phase_seconds"]], [timing])
            parts = {name: share.get(name, 0.0) for name in PARTS}
            shares.append({**parts, "all": sum(parts.values())})
            rows.append({name: value * timing.wall for name, value in shares[-1].items()})
    seconds = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    return {  # `derived` of the command replaces the share where the run was a small one
        "orchestration_seconds": seconds["all"],
        "orchestration_share": statistics.median(share["all"] for share in shares),
        "prefect_seconds": seconds["orchestration"],
        "validation_seconds": seconds["validation"],
        "storage_seconds": seconds["storage"],
        "publishing_seconds": seconds["publishing"],
    }


def facts(summary: dict[str, object]) -> dict[str, float]:
    """Return what a whole run came to."""
    found = {}
    for name in ("seconds", "peak_rss_mb", "curriculum_share"):
        found[f"quickstart_{name}"] = float(str(summary[name]))
    for name in ("heldout_before", "heldout_after"):
        rate = summary[name]
        if isinstance(rate, dict):
            found[f"quickstart_{name}"] = float(rate["success"])
    return found
