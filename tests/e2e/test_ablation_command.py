"""An ablation that is killed in the middle and started again: finished runs are kept, the others go on."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from tests.support.commands import BIN, ROOT, command, environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

ID = "small"
TINY = ("iterations=1", "environment.max_steps=3", "evaluation.tasks=2", "evaluation.final_tasks=2")
COMMAND = [
    *(str(BIN / "roleagent"), "ablate", "--preset", "smoke", "--variants", "gigpo,grpo", "--seeds", "2"),
    *(word for setting in TINY for word in ("--set", setting)),
    *("--name", ID, "--parallel", "2", "--threads", "1"),
]


def kill_in_the_middle(home: Path) -> str:
    """Start the ablation; kill it when seed 0 is through and a run of seed 1 has its first commit."""
    log = home.parent / "stderr.txt"
    with log.open("wb") as file:
        process = subprocess.Popen(
            COMMAND,
            cwd=ROOT,
            env=environment(home),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=file,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 900
        while not re.search(r"2/4[\s\S]*seed 1  0/1  held-out", log.read_text(encoding="utf-8")):
            assert process.poll() is None, log.read_text(encoding="utf-8")
            assert time.monotonic() < deadline, log.read_text(encoding="utf-8")
            time.sleep(0.1)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    return log.read_text(encoding="utf-8")


def processes(home: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get("ROLEAGENT_HOME") == str(home):
                found.append(process)
        except psutil.Error:
            continue
    return found


def commits(home: Path) -> dict[str, int]:
    """Moments of the commits, by run and iteration."""
    manifests = (home / "store").glob("runs/*/iterations/*/manifest.json")
    return {f"{path.parents[2].name}/{int(path.parent.name)}": path.stat().st_mtime_ns for path in manifests}


def test_killed_in_the_middle_and_started_again(tmp_path: Path) -> None:
    home = tmp_path / "home"
    told = kill_in_the_middle(home)
    assert f"Ablation {ID}: 2 variants x 2 seeds, 2 at a time with 1 thread each" in told
    deadline = time.monotonic() + 60
    while processes(home):
        assert time.monotonic() < deadline, "a run, or Prefect's server, outlives the ablation that was killed"
        time.sleep(0.1)
    before = commits(home)
    assert {f"{ID}-{variant}-s0/{n}" for variant in ("gigpo", "grpo") for n in (0, 1)} <= set(before)
    assert any(re.fullmatch(f"{ID}-[a-z]+-s1/0", name) for name in before)

    done = command([*COMMAND, "--json"], home)
    assert done.returncode == 0, done.stderr
    assert re.search("; [23] finished before", done.stderr)  # a fast machine may have done one more
    assert "seed 0" not in done.stderr, "a finished run was started again"
    after = commits(home)
    assert len(after) == 8
    assert {name: after[name] for name in before} == before, "a commit was made again"

    results = json.loads(done.stdout)
    assert results["failed"] == 0
    assert [run["status"] for run in results["runs"]] == ["finished"] * 4
    table = results["comparisons"]["equal_episodes"]["variants"]
    assert results["comparisons"]["equal_episodes"]["budget"] == 8.0
    assert [table[name]["n"] for name in ("gigpo", "grpo")] == [2, 2]
    assert table["grpo"]["difference"]["n"] == 2
    folder = home / "ablations" / ID
    assert len((folder / "sittings.jsonl").read_text(encoding="utf-8").splitlines()) == 2
    assert "4 of 4 runs finished" in (folder / "report" / "report.md").read_text(encoding="utf-8")
    assert (folder / "report" / "figures" / "curves.png").is_file()
    check_mlflow(home, results["mlflow_run"], table)

    # MLflow's database is lost: the same command trains nothing and fills a new one.
    for path in home.glob("mlflow.db*"):
        path.unlink()
    done = command([*COMMAND, "--json"], home)
    assert done.returncode == 0, done.stderr
    assert commits(home) == after
    results = json.loads(done.stdout)
    check_mlflow(home, results["mlflow_run"], results["comparisons"]["equal_episodes"]["variants"])


def check_mlflow(home: Path, parent: str, table: dict[str, dict[str, object]]) -> None:
    """One parent, four children, each once; the compare page reads the table's numbers off the children."""
    with closing(sqlite3.connect(f"file:{home / 'mlflow.db'}?mode=ro", uri=True)) as database:
        runs = dict(database.execute("SELECT run_uuid, status FROM runs"))
        children = dict(
            database.execute(
                "SELECT v.value || ' ' || p.value, t.run_uuid FROM tags t "
                "JOIN tags v ON v.run_uuid = t.run_uuid AND v.key = 'roleagent.variant' "
                "JOIN params p ON p.run_uuid = t.run_uuid AND p.key = 'seed' "
                "WHERE t.key = 'mlflow.parentRunId' AND t.value = ?",
                (parent,),
            )
        )
        iterations = dict(
            database.execute("SELECT run_uuid, COUNT(*) FROM metrics WHERE key = 'seconds/rollout' GROUP BY run_uuid")
        )
        read = dict(
            database.execute("SELECT run_uuid, value FROM latest_metrics WHERE key = 'ablation/heldout_equal_episodes'")
        )
    assert len(runs) == 5
    assert set(runs.values()) == {"FINISHED"}
    assert set(children) == {"gigpo 0", "gigpo 1", "grpo 0", "grpo 1"}
    assert {name: iterations.get(run) for name, run in children.items()} == dict.fromkeys(children, 1)
    for name, values in table.items():
        assert values["by_seed"] == {seed: read[children[f"{name} {seed}"]] for seed in ("0", "1")}
