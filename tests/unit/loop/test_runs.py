"""Runs: beginning, finding, and their status through crashes, damage and other machines."""

from __future__ import annotations

import datetime
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from roleagent.config import load_config
from roleagent.errors import ConfigError, PolicyError, RoleAgentError, StorageError
from roleagent.loop import home as places
from roleagent.loop import runs
from roleagent.loop.events import listening
from roleagent.loop.worker import Worker, drop_workers
from roleagent.storage.manifest import iteration_key
from roleagent.storage.runs import Lease
from tests.support.committed import MakeRun


class Tracker:
    """Notes what is asked of it, and may refuse."""

    uri = "sqlite:///somewhere.db"
    run_url = ""

    def __init__(self, error: Exception | None = None) -> None:
        self.ended: list[str] = []
        self.error = error

    def start_run(self, run_id: str, name: str, params: dict[str, Any]) -> str:
        if self.error is not None:
            raise self.error
        return "mlflow-id"

    def end(self, status: str) -> None:
        self.ended.append(status)


class Notices:
    """A listener that keeps notices."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def notice(self, text: str) -> None:
        self.texts.append(text)


@pytest.fixture
def tracker(monkeypatch: pytest.MonkeyPatch) -> Tracker:
    found = Tracker()
    monkeypatch.setattr(Worker, "tracker", found)
    monkeypatch.setattr(runs, "_warm_up", lambda worker: None)
    return found


def write_status(worker: Worker, **changes: object) -> None:
    runs.write_status(worker, "running")
    status = json.loads(worker.store.read_run(worker.run_id, runs.STATUS))
    worker.store.write(worker.run_id, runs.STATUS, json.dumps({**status, **changes}).encode())


def test_a_new_run_has_name_time_and_chance_in_its_id() -> None:
    first, second = runs.new_run_id("smoke"), runs.new_run_id("smoke")
    assert re.fullmatch(r"smoke-\d{8}-\d{6}-[0-9a-f]{4}", first)
    assert first[:-4] != second[:-4] or first != second


def test_open_run_begins_one_and_finds_it_again(make_run: MakeRun) -> None:
    worker = make_run(run_id="mine")
    again = runs.open_run(load_config("quickstart"), "mine")
    assert again.store_uri == str(places.home() / "store")
    assert again.worker().config == worker.config  # a run that exists keeps its own configuration
    assert runs.find_run("mine") == again


def test_a_run_that_this_machine_has_not_seen_is_found_in_its_store(make_run: MakeRun) -> None:
    make_run(run_id="mine")
    (places.home() / "runs" / "mine.json").unlink()
    drop_workers()
    assert runs.open_run(load_config("smoke"), "mine").worker().config.seed == 3
    assert runs.find_run("mine").run_id == "mine"


def test_a_run_id_that_is_a_path_reads_nothing_outside(make_run: MakeRun) -> None:
    make_run(run_id="mine")
    (places.home() / "elsewhere.json").write_bytes((places.home() / "runs" / "mine.json").read_bytes())
    with pytest.raises(StorageError, match="is not allowed"):
        runs.open_run(load_config("smoke"), "../elsewhere")


def test_find_run_by_beginning_and_latest(make_run: MakeRun) -> None:
    for name in ("alpha-1", "alpha-2", "beta-1"):
        make_run(run_id=name)
    stamp = places.home() / "runs"
    for order, name in enumerate(("beta-1", "alpha-2", "alpha-1")):
        os.utime(stamp / f"{name}.json", (order, order))
    assert runs.find_run("latest").run_id == "alpha-1"
    assert runs.find_run("beta").run_id == "beta-1"
    assert [handle.run_id for handle in runs.list_handles()] == ["beta-1", "alpha-2", "alpha-1"]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("alpha", "did you mean alpha-2 or alpha-1?"),
        ("alhpa-1", "did you mean alpha-1"),
        ("nothing-like-it", "see `roleagent runs`"),
    ],
)
def test_a_run_that_is_not_there_is_told_with_a_hint(make_run: MakeRun, asked: str, told: str) -> None:
    for order, name in enumerate(("alpha-2", "alpha-1")):
        make_run(run_id=name)
        os.utime(places.home() / "runs" / f"{name}.json", (order, order))
    with pytest.raises(ConfigError, match=re.escape(told)):
        runs.find_run(asked)


def test_latest_without_runs_says_how_to_make_one() -> None:
    with pytest.raises(ConfigError, match=r"no run was made yet under .*; start one with `roleagent train`"):
        runs.find_run("latest")


def test_a_home_that_is_a_file_is_told(home: Path) -> None:
    home.parent.mkdir(exist_ok=True)
    home.touch()
    with pytest.raises(StorageError, match="is not a folder; set ROLEAGENT_HOME to one"):
        runs.list_handles()
    with pytest.raises(RoleAgentError):
        runs.open_run(load_config("smoke"), "mine")


@pytest.mark.parametrize(
    "note",
    ["", "{", "[1]", '{"run_id": "mine"}', '{"unknown": 1}', '{"run_id": 5, "store_uri": null}', "[" * 100_000],
)
def test_a_damaged_note_of_where_a_run_is_means_the_default_place(make_run: MakeRun, note: str) -> None:
    make_run(run_id="mine")
    (places.home() / "runs" / "mine.json").write_text(note, encoding="utf-8")
    drop_workers()
    assert runs.find_run("mine").worker().config.seed == 3


def test_what_is_no_note_does_not_hide_the_runs(make_run: MakeRun) -> None:
    make_run(run_id="mine")
    folder = places.home() / "runs"
    (folder / "folder.json").mkdir()
    (folder / "link.json").symlink_to("nowhere")
    assert [handle.run_id for handle in runs.list_handles()] == ["mine"]


@pytest.mark.parametrize("text", [b"{", b"\xff", b"[]", b"[" * 100_000])
def test_a_damaged_configuration_is_one_line(make_run: MakeRun, text: bytes) -> None:
    make_run(run_id="mine")
    (places.home() / "store" / "runs" / "mine" / "config.json").write_bytes(text)
    drop_workers()
    with pytest.raises(RoleAgentError, match="run mine") as error:
        runs.find_run("mine").worker()
    assert "\n" not in str(error.value)


def test_a_run_of_another_version_is_told(make_run: MakeRun) -> None:
    make_run(run_id="mine")
    (places.home() / "store" / "runs" / "mine" / "config.json").write_text('{"future": 1}', encoding="utf-8")
    drop_workers()
    with pytest.raises(ConfigError, match=re.escape("run mine (made by another version?): future: unknown key")):
        runs.find_run("mine").worker()


# -- status --------------------------------------------------------------------------------------------------------


def test_status_of_a_run_that_finishes(make_run: MakeRun, tracker: Tracker) -> None:
    worker = make_run()
    assert runs.read_status(worker)["status"] == "new"
    assert runs.mlflow_place(worker) == {"mlflow_run": "", "mlflow_uri": "", "mlflow_url": ""}
    with runs.running(worker):
        assert runs.read_status(worker)["status"] == "running"
        assert runs.training_process(worker) == os.getpid()
        assert worker.lease is not None
    assert runs.read_status(worker)["status"] == "finished"
    assert runs.training_process(worker) == 0
    assert runs.mlflow_place(worker) == {
        "mlflow_run": "mlflow-id",
        "mlflow_uri": "sqlite:///somewhere.db",
        "mlflow_url": "",
    }
    assert tracker.ended == ["FINISHED"]


@pytest.mark.parametrize(
    ("error", "status", "reason", "ended"),
    [
        (ConfigError("too few tasks"), "failed", "too few tasks", "FAILED"),
        (ValueError("a secret of a library"), "failed", "ValueError", "FAILED"),
        (KeyboardInterrupt(), "interrupted", "KeyboardInterrupt", "KILLED"),
        (SystemExit(1), "interrupted", "SystemExit", "KILLED"),
    ],
)
def test_status_of_a_run_that_does_not_finish(
    make_run: MakeRun, tracker: Tracker, error: BaseException, status: str, reason: str, ended: str
) -> None:
    worker = make_run()
    with pytest.raises(type(error)), runs.running(worker):
        raise error
    found = runs.read_status(worker)
    assert (found["status"], found["reason"]) == (status, reason)
    assert tracker.ended == [ended]


def test_a_tracker_that_refuses_fails_the_run_and_is_not_asked_again(
    make_run: MakeRun, tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker.error = RoleAgentError("no MLflow server answers")
    worker = make_run()
    with pytest.raises(RoleAgentError, match="no MLflow server"), runs.running(worker):
        pytest.fail("the block must not run")
    assert runs.read_status(worker)["reason"] == "no MLflow server answers"
    assert tracker.ended == []


def test_an_error_in_telling_of_an_error_is_a_notice(
    make_run: MakeRun, tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(status: str) -> None:
        raise RoleAgentError("MLflow is gone")

    monkeypatch.setattr(tracker, "end", refuse)
    worker, notices = make_run(), Notices()
    with listening(notices), pytest.raises(ConfigError, match="the first"), runs.running(worker):  # type: ignore[arg-type]
        raise ConfigError("the first")
    assert notices.texts == ["could not record the end of a-run: MLflow is gone"]


def test_a_store_that_does_not_answer_is_asked_once_for_the_end(
    make_run: MakeRun, tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(_lease: object) -> None:
        raise StorageError("the store does not answer")

    def asked_again(*_: object) -> None:
        raise AssertionError("the status was written all the same")

    worker, notices = make_run(), Notices()
    monkeypatch.setattr(Lease, "check", silent)

    def stopped() -> None:
        with runs.running(worker):
            monkeypatch.setattr(runs, "write_status", asked_again)
            raise ConfigError("the first")

    with listening(notices), pytest.raises(ConfigError, match="the first"):  # type: ignore[arg-type]
        stopped()
    assert notices.texts == ["could not record the end of a-run: the store does not answer"]
    assert tracker.ended == ["FAILED"], "MLflow is told all the same"


def test_a_run_whose_process_is_gone_was_interrupted(make_run: MakeRun) -> None:
    worker = make_run()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    write_status(worker, pid=gone.pid)
    assert runs.read_status(worker)["status"] == "interrupted"
    assert runs.training_process(worker) == 0


def test_a_process_that_began_later_has_been_given_the_same_id(make_run: MakeRun) -> None:
    worker = make_run()
    before = datetime.datetime.fromtimestamp(psutil.Process().create_time() - 60, datetime.UTC)
    write_status(worker, at=before.isoformat(timespec="seconds"))
    assert runs.read_status(worker)["status"] == "interrupted"


def test_a_run_of_another_machine_is_believed(make_run: MakeRun) -> None:
    worker = make_run()
    write_status(worker, host=f"not-{socket.gethostname()}", pid=2**22 + 1)
    assert runs.read_status(worker)["status"] == "running"
    assert runs.training_process(worker) == 0  # no process of this machine


@pytest.mark.parametrize("text", [b"", b"{", b"[1]", b'"finished"', b'{"status": "finished"}', b"\xff\xfe"])
def test_a_damaged_status_is_unknown_and_loses_nothing(make_run: MakeRun, text: bytes) -> None:
    worker = make_run([{}])
    worker.store.write(worker.run_id, runs.STATUS, text)
    assert runs.read_status(worker)["status"] == "unknown"
    assert runs.first_iteration(worker) == 1


@pytest.mark.parametrize("name", ["metrics.json", "diagnoses.parquet"])
def test_what_going_on_would_read_of_an_older_iteration_is_made_again(make_run: MakeRun, name: str) -> None:
    # Whatever shows the run stops at it and says: resume the run.
    worker = make_run([{}])
    for n in (1, 2):
        writer = worker.writer(n)
        writer.put("metrics.json", json.dumps({"metrics": {}, "failure_types": {}}).encode())
        writer.put("diagnoses.parquet", b"none")
        writer.commit(policy_version=n, seed=3)
    worker.store.store.put(iteration_key(worker.run_id, 1, name), b"damaged")
    notices = Notices()
    with listening(notices):
        assert runs.first_iteration(worker) == 1
    assert worker.store.committed(worker.run_id) == [0]
    assert f"iteration 1 of run {worker.run_id} is not valid, nor what follows it: {name}" in notices.texts[0]


# -- what is checked before a run begins ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error", "told"),
    [
        ("environment.name=househlod", ConfigError, "did you mean 'household'"),
        ("environment.options.level=huge", ConfigError, "huge"),
        ("advantage.estimator=grpoo", ConfigError, "did you mean 'grpo'"),
        (
            "rollout.tasks_per_iteration=17",
            ConfigError,
            "rollout.tasks_per_iteration is 17, but household has 16 train",
        ),
        ("evaluation.final_tasks=17", ConfigError, "evaluation.final_tasks is 17, but household has 16 heldout tasks"),
        ("policy.model=/nowhere/at/all", PolicyError, "/nowhere/at/all does not exist"),
        ("storage.uri=/proc/nope", StorageError, "cannot write /proc/nope: no folder can be made there"),
    ],
)
def test_what_would_stop_a_run_is_found_before_it_begins(
    tmp_path: Path, change: str, error: type[Exception], told: str
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").touch()
    config = load_config("smoke", [f"policy.model={tmp_path / 'model'}", change])
    with pytest.raises(error, match=re.escape(told)):
        runs.open_run(config)
    assert not list(places.home().rglob("*.json"))


def test_a_home_that_cannot_be_written_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    # Not as a wrong storage.uri, which nobody has set.
    monkeypatch.setenv("ROLEAGENT_HOME", "/proc/nope")
    with pytest.raises(StorageError, match="set ROLEAGENT_HOME to a writable folder"):
        runs.check(load_config("smoke"))


def test_a_bad_store_is_found_before_prefect_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    from flows import launch

    def never() -> None:
        raise AssertionError("Prefect was started")

    monkeypatch.setattr(launch, "prefect_server", never)
    for run_id in ("", "mine"):
        with pytest.raises(StorageError, match="no folder can be made there"):
            launch.train(load_config("smoke", ["storage.uri=/proc/nope"]), run_id)


def test_a_policy_in_s3_is_not_looked_for_on_disk(tmp_path: Path) -> None:
    runs.check(load_config("smoke", ["policy.model=s3://bucket/policy"]))


@pytest.mark.parametrize("model", ["package:no_such_package_here", "/no/such/folder", "./nowhere", ""])
def test_an_embedding_model_that_is_not_there_is_told_before_a_run_begins(model: str) -> None:
    # It is loaded after the first iteration only, whose work would be in vain: a run keeps its configuration.
    with pytest.raises(RoleAgentError, match="embedding model"):
        runs.check(load_config("smoke", [f"agent_in_world.embedding_model={model}"]))
    runs.check(load_config("smoke", [f"agent_in_world.embedding_model={model}", "agent_in_world.enabled=false"]))
