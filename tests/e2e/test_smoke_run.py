"""A whole run: what it tells, what it leaves, and every command that reads it."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import psutil
import pytest

from tests.support.commands import Trained

pytestmark = pytest.mark.timeout(900)

LINES = (
    r"Run smoke-\d{8}-\d{6}-[0-9a-f]{4} begins",
    r"  before training: .*",
    r"  [123]/3  success .*",
    r"note .*",
)
KEYS = {
    *("status", "seconds", "seed", "iterations", "heldout_before", "heldout_after", "failure_types", "bank_size"),
    *("curriculum_share", "phase_share", "peak_rss_mb", "checkpoint", "mlflow_run"),
}


def test_progress_is_on_standard_error_and_nothing_else_is(trained: Trained) -> None:
    lines = trained.stderr.splitlines()
    strange = [line for line in lines if not any(re.fullmatch(pattern, line) for pattern in LINES)]
    assert not strange
    assert [line.split()[0] for line in lines if "success" in line] == ["1/3", "2/3", "3/3"]


def test_the_summary_is_on_standard_output(trained: Trained) -> None:
    assert f"{trained.run_id}  finished  seed 1" in trained.stdout
    assert f"roleagent play --run {trained.run_id}" in trained.stdout
    assert "3 iterations" in trained.stdout


def test_json_of_a_finished_run(trained: Trained) -> None:
    summary = trained.json("runs", "show", "latest", "--json")
    assert set(summary) >= KEYS
    assert (summary["run_id"], summary["status"]) == (trained.run_id, "finished")
    assert (summary["seed"], summary["iterations"]) == (1, 3)
    for name in ("heldout_before", "heldout_after"):
        rate = summary[name]
        assert set(rate) == {"success", "low", "high", "n"}
        assert 0 <= rate["low"] <= rate["success"] <= rate["high"] <= 1
        assert rate["n"] == 8
    assert len(summary["bank_size"]) == 3
    assert summary["bank_size"] == sorted(summary["bank_size"])
    assert summary["bank_size"][-1] == sum(summary["failure_types"].values())
    share = summary["phase_share"]
    assert sum(share.values()) == pytest.approx(1.0)
    assert {"rollout", "update", "scoring", "validation", "diagnosis", "evaluation", "storage"} <= set(share)
    assert {"publishing", "orchestration"} <= set(share)
    assert min(share.values()) >= 0
    assert 100 < summary["peak_rss_mb"] < 8000
    assert 0 < summary["seconds"] < 900
    assert 0 <= summary["curriculum_share"] <= 1
    assert (Path(summary["checkpoint"]) / "model.safetensors").is_file()
    assert re.fullmatch(r"[0-9a-f]{32}", summary["mlflow_run"])
    assert "# Run " in Path(summary["report"]).read_text(encoding="utf-8")


def test_mlflow_has_every_iteration(trained: Trained) -> None:
    run = trained.json("runs", "show", "latest", "--json")["mlflow_run"]
    with sqlite3.connect(f"file:{trained.home / 'mlflow.db'}?mode=ro", uri=True) as database:
        steps = database.execute("select step from metrics where run_uuid = ? and key = 'iteration'", (run,)).fetchall()
        status = database.execute("select status from runs where run_uuid = ?", (run,)).fetchone()
    assert sorted(step for (step,) in steps) == [0, 1, 2, 3]
    assert status == ("FINISHED",)


def test_prefect_ran_every_phase_and_keeps_the_artifacts(trained: Trained) -> None:
    with sqlite3.connect(f"file:{trained.home / 'prefect' / 'prefect.db'}?mode=ro", uri=True) as database:
        flows = dict(database.execute("select name, state_type from flow_run").fetchall())
        keys = {key for (key,) in database.execute("select key from artifact")}
    assert flows == {"train smoke": "COMPLETED"} | {f"{trained.run_id} iteration {n}": "COMPLETED" for n in (1, 2, 3)}
    assert {f"progress-{trained.run_id}", f"success-{trained.run_id}", f"report-{trained.run_id}"} <= keys


def test_no_process_is_left(trained: Trained) -> None:
    left = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("ROLEAGENT_HOME") == str(trained.home):
                left.append(process.cmdline())
        except psutil.Error:
            continue
    assert not left


def test_the_run_is_listed(trained: Trained) -> None:
    row = next(line for line in trained.roleagent("runs").splitlines() if line.startswith(trained.run_id))
    assert row.split()[1:3] == ["finished", "3/3"]


def test_the_screen_of_a_run_is_the_one_at_its_end(trained: Trained) -> None:
    shown = trained.roleagent("runs", "show", trained.run_id[:-2])
    numbers = re.compile(r"held-out (?:before|after) .*|.*in the bank.*")
    assert numbers.findall(shown) == numbers.findall(trained.stdout)


def test_evaluation_with_the_runs_settings_repeats_the_runs_own(trained: Trained) -> None:
    summary = trained.json("runs", "show", "latest", "--json")
    result = trained.json("evaluate", "latest", "--tasks", "8", "--json")
    assert {key: result[key] for key in ("success", "low", "high", "n")} == summary["heldout_after"]
    assert result["iteration"] == 3
    assert sum(rate["n"] for rate in result["by_type"].values()) == 8
    before = trained.json("evaluate", "latest", "--tasks", "8", "--iteration", "0", "--json")
    untrained = trained.json("evaluate", "--preset", "smoke", "--set", "seed=1", "--tasks", "8", "--json")
    assert untrained["run_id"] == "roleagent:quickstart"
    assert {**untrained, "run_id": before["run_id"]} == before
    assert before["success"] == summary["heldout_before"]["success"]


def test_watching_the_policy_is_repeatable(trained: Trained) -> None:
    first = trained.roleagent("play", "--run", "latest", "--seed", "3")
    assert "thinks" in first
    assert "expects" in first
    assert "match" in first
    assert f"version 3 of {trained.run_id}" in " ".join(first.split())
    assert trained.roleagent("play", "--run", "latest", "--seed", "3") == first


def test_the_bank(trained: Trained) -> None:
    summary = trained.json("runs", "show", "latest", "--json")
    stats = trained.json("bank", "stats", "latest", "--json")
    assert stats["by_failure_type"] == summary["failure_types"]
    assert stats["records"] > 0, "the quickstart policy made no valid diagnosis: nothing of the bank can be tested"
    found = trained.roleagent("bank", "search", "the object was not found", "--count", "1")
    record = re.search(r"roleagent bank show ([0-9a-f]{8})", found)
    assert record
    shown = trained.roleagent("bank", "show", record[1])
    assert all(name in shown for name in ("failure type", "root cause", "critical step", "lesson", "what happened"))
    assert trained.roleagent("bank", "rebuild").strip() == f"{stats['records']} failures indexed"
    assert trained.json("bank", "stats", "latest", "--json") == stats


def test_a_finished_run_can_be_resumed_and_stays_the_same(trained: Trained) -> None:
    before = trained.json("runs", "show", "latest", "--json")
    trained.roleagent("resume", "latest")
    after = trained.json("runs", "show", "latest", "--json")
    unstable = {"peak_rss_mb"}
    assert {k: v for k, v in after.items() if k not in unstable} == {
        k: v for k, v in before.items() if k not in unstable
    }
