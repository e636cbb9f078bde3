"""The two ends of a run's process, and the flow with real Prefect and MLflow around runs that are made by hand."""

from __future__ import annotations

import json
import logging
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from flows.members import MemberFailed, MemberLost, Members
from roleagent.ablation.events import listening_to_ablation
from roleagent.ablation.machine import Slots
from roleagent.ablation.plan import Member, Plan, Request, make_plan, write_plan
from tests.support import processes
from tests.support.committed import committed_run

REQUEST = Request("smoke", ("full,grpo,broken:learner.learning_rate=1",), 2, ("iterations=2",), name="by-hand")


class Heard:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def ablation_started(self, plan: Plan, slots: Slots, finished: int) -> None: ...

    def member_started(self, member: Member) -> None:
        self.events.append(("started", member.variant))

    def member_phase(self, member: Member, iteration: int, phase: str) -> None:
        self.events.append((iteration, phase))

    def member_iteration(self, member: Member, iteration: int, metrics: Mapping[str, float]) -> None:
        self.events.append((iteration, dict(metrics)))

    def member_ended(self, member: Member, reason: str) -> None: ...


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.setenv("ROLEAGENT_HOME", str(tmp_path / "home"))
    found = make_plan(REQUEST)
    write_plan(found, {})
    return found


@pytest.fixture
def heard() -> Iterator[Heard]:
    listener = Heard()
    with listening_to_ablation(listener):
        yield listener


def put_in_place(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    """Make every run's process a shell script; $3 is the plan's folder, $4 the run, $5 the descriptor of events."""
    path = folder / "in-place-of-python"
    path.write_text(f"#!/bin/bash\n{script}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr("flows.members.sys.executable", str(path))


def test_a_run_reports_and_has_its_share_of_the_machine(
    plan: Plan, heard: Heard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in_place(
        monkeypatch,
        tmp_path,
        """
        echo '{"event": "phase", "iteration": 1, "phase": "roll out"}' >&$5
        echo '{"event": "iteration", "iteration": 1, "metrics": {"success/heldout": 0.5}}' >&$5
        echo 'cut off {' >&$5
        echo "$4 $OMP_NUM_THREADS $CUDA_VISIBLE_DEVICES"
        """,
    )
    member = plan.members[0]
    Members(plan, Slots(2, 3, ("4", "7"))).run(member)
    assert heard.events == [("started", "full"), (1, "roll out"), (1, {"success/heldout": 0.5})]
    assert plan.log(member.run_id).read_text(encoding="utf-8") == f"{member.run_id} 3 4\n"


def test_how_a_run_failed_is_told(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_place(monkeypatch, tmp_path, "echo note: x >&2; echo 'error: out of luck' >&2; exit 2")
    with pytest.raises(MemberFailed, match=r"^out of luck$") as failed:
        Members(plan, Slots(1, 1)).run(plan.members[0])
    assert not failed.value.transient
    put_in_place(monkeypatch, tmp_path, "kill -9 $$")
    with pytest.raises(MemberLost, match="its process was ended by SIGKILL") as lost:
        Members(plan, Slots(1, 1)).run(plan.members[0])
    assert lost.value.transient


def test_stopping_ends_what_runs_and_starts_nothing_more(
    plan: Plan, heard: Heard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in_place(monkeypatch, tmp_path, "exec sleep 100")
    members = Members(plan, Slots(1, 1))
    errors: list[Exception] = []

    def run() -> None:
        try:
            members.run(plan.members[0])
        except MemberFailed as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while not heard.events:
        time.sleep(0.01)
    members.stop()
    thread.join(timeout=20)
    assert [str(error) for error in errors] == ["the ablation was stopped"]
    with pytest.raises(MemberFailed, match="the ablation was stopped"):
        members.run(plan.members[1])


def test_a_run_ends_with_its_parent() -> None:
    code = (
        "import threading, time; from flows.member import _end_with_parent; "
        "threading.Thread(target=_end_with_parent, daemon=True).start(); print('up', flush=True); time.sleep(100)"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=processes.ROOT
    )
    assert child.stdin
    assert child.stdout
    assert child.stdout.readline() == b"up\n"
    assert child.poll() is None
    child.stdin.close()  # as the system does when the parent is killed
    assert child.wait(timeout=20) == 1


def by_hand(members: Members, member: Member) -> None:
    """Stands for a training: commits made-up numbers, or fails."""
    from roleagent.loop import runs

    if member.variant == "broken":
        raise MemberFailed("out of luck")
    end = {"full": 0.75, "grpo": 0.5}[member.variant] + 0.125 * member.seed
    held = {"heldout/n": 8.0, "heldout/low": 0.1, "heldout/high": 0.9}
    rows = [{"success/heldout": 0.25, **held}, {"rollout/episodes": 8.0, "seconds/rollout": 2.0}]
    rows.append({**rows[1], "success/heldout": end, **held})
    runs.write_status(committed_run(rows, run_id=member.run_id, config=member.config), "finished")


def ablate_by_hand() -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Run the flow twice; return its last results and Prefect's artifacts by key. Runs in a child."""
    import httpx

    from flows.launch import ablate, prefect_server

    with prefect_server() as wait, patch.object(Members, "run", by_hand):
        wait()
        ablate(REQUEST, parallel=1)
        results = ablate(REQUEST, parallel=1)
        answer = httpx.post(f"{os.environ['PREFECT_API_URL']}/artifacts/latest/filter", json={}, timeout=30)
    return results, {item["key"]: item for item in answer.json()}


@pytest.mark.slow
@pytest.mark.timeout(1200)  # a busy machine takes its time
def test_a_failed_run_is_reported_and_stops_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    results, artifacts = processes.run(ablate_by_hand, environment={"ROLEAGENT_HOME": str(home)}).result()
    assert [(run["variant"], run["status"], run["reason"]) for run in results["runs"][:3]] == [
        ("full", "finished", ""),
        ("grpo", "finished", ""),
        ("broken", "failed", "out of luck"),
    ]
    assert results["failed"] == 2
    table = results["comparisons"]["equal_episodes"]["variants"]
    assert table["grpo"]["difference"]["mean"] == pytest.approx(-0.25)
    assert table["grpo"]["p"] == 0.5  # both pairs agree: 2^(1 - 2)
    assert table["broken"]["mean"] is None

    assert {"table-by-hand", "figure-by-hand", "report-by-hand", "progress-by-hand"} <= set(artifacts)
    assert json.loads(artifacts["table-by-hand"]["data"])[1]["difference"] == "-0.25"
    assert str(artifacts["figure-by-hand"]["data"]).startswith("data:image/png;base64,")
    assert "by-hand-broken-s0: failed: out of luck" in str(artifacts["report-by-hand"]["data"])
    with closing(sqlite3.connect(f"file:{home / 'mlflow.db'}?mode=ro", uri=True)) as database:
        ends = dict(database.execute("SELECT name, status FROM runs"))
        read_off = "SELECT count(*) FROM metrics WHERE key = 'ablation/heldout_equal_seconds' GROUP BY run_uuid"
        points = [count for (count,) in database.execute(read_off)]
    assert ends.pop("by-hand") == ends.pop("broken seed 0") == ends.pop("broken seed 1") == "FAILED"
    assert ends == dict.fromkeys(("full seed 0", "full seed 1", "grpo seed 0", "grpo seed 1"), "FINISHED")
    assert points == [1, 1, 1, 1]  # a second time writes nothing twice
    kept = {path.name for path in (home / "mlflow-artifacts").rglob("report/**/*") if path.is_file()}
    assert kept == {"report.md", "results.json", "table.csv", "measures.csv", "curves.png"}


def test_the_signal_is_named() -> None:
    from flows.members import _signal

    assert _signal(signal.SIGTERM) == "SIGTERM"
    assert _signal(99) == "signal 99"


def test_prefects_inner_errors_go_where_all_logs_go() -> None:
    from flows.launch import keep_inner_errors

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            texts.append(record.getMessage())

    texts: list[str] = []
    keep_inner_errors()
    handler = Heard()
    logging.getLogger().addHandler(handler)  # after the call: Prefect's first import sets the root logger up anew
    try:
        logging.getLogger("prefect._internal.concurrency").error("a service failed")
    finally:
        logging.getLogger().removeHandler(handler)
    assert texts == ["a service failed"]
    assert logging.getLogger("prefect._internal").handlers == []  # one would write to standard error
