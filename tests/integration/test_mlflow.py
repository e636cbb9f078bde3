"""The tracker against real MLflow stores: a sqlite file, and a server in a process of its own."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from roleagent.config.models import TrackingConfig
from roleagent.errors import TrackingError
from roleagent.tracking import Tracker, write_report
from roleagent.types import Diagnosis, DiagnosisStatus, Step, StopReason, Task, Trajectory
from tests.support import processes

TASKS = [Task(f"home-{n}", "household", "pick", "train") for n in range(20)]


def episode(identifier: str, success: bool) -> Trajectory:
    steps = tuple(
        Step(t, f"s{t}", "r", f"a{t}", (f"s{t + 1}",), 0.0, True, False, False, (1,), (2, 3), (0.0, 0.0), t > 1)
        for t in (1, 2)
    )
    stop = StopReason.SUCCESS if success else StopReason.MAX_STEPS
    return Trajectory(identifier, TASKS[0], "put it there", 3, 2, 0, steps, "s3", success, float(success), stop)


def tracker(uri: str, home: Path, **changes: Any) -> Tracker:
    return Tracker(TrackingConfig(uri=uri, **changes), home)


def client_of(uri: str) -> MlflowClient:
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def local_uri(local: Path) -> str:
    return f"sqlite:///{local}/mlflow.db"


def test_a_run_leaves_nothing_in_the_working_directory(
    local: Path, local_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    made = tracker("", local)
    made.start_run("r-files", "files", {"seed": 1})
    made.log_text("hello", "notes/hello.txt")
    made.end()
    assert list(tmp_path.iterdir()) == []
    assert (local / "mlflow.db").is_file()
    run = client_of(local_uri).get_run(made.mlflow_run_id or _run(local_uri, "r-files"))
    assert run.info.artifact_uri.startswith((local / "mlflow-artifacts").as_uri())


def _run(uri: str, run_id: str) -> str:
    client = client_of(uri)
    experiment = client.get_experiment_by_name("role-agent-local")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id], filter_string=f"tags.`roleagent.run_id` = '{run_id}'")
    assert len(runs) == 1
    return str(runs[0].info.run_id)


def test_a_repeated_iteration_adds_no_point_and_a_new_process_goes_on(local: Path, local_uri: str) -> None:
    first = tracker(local_uri, local)
    identifier = first.start_run("r-resume", "resume", {"seed": 1, "store": {"uri": "s3://k:p@b/x"}})
    committed = {"loss": 0.5, "failure_types": {"loops": 2}, "seconds/update": 3.0, "phase_seconds": {"update": 3.0}}
    assert first.log_iteration(1, committed, at=100.0)
    assert not first.log_iteration(1, {"loss": 0.7})

    second = tracker(local_uri, local)
    assert second.start_run("r-resume", "resume", {"seed": 2, "extra": "x"}) == identifier
    assert second.logged_iterations == {1}
    assert not second.log_iteration(1, {"loss": 0.9})
    assert second.sync([{"iteration": n, "loss": n / 10} for n in (1, 2, 3)]) == [2, 3]
    second.end()

    client = client_of(local_uri)
    points = client.get_metric_history(identifier, "loss")
    assert [(point.step, point.value) for point in points] == [(1, 0.5), (2, 0.2), (3, 0.3)]
    assert points[0].timestamp == 100_000
    run = client.get_run(identifier)
    assert set(run.data.metrics) == {"loss", "failure_types/loops", "seconds/update", "iteration"}
    assert run.data.params == {"seed": "1", "store.uri": "s3://***@b/x", "extra": "x"}
    assert run.data.tags["resumed.seed"] == "2"
    assert run.data.tags["roleagent.last_iteration"] == "3"
    assert run.info.status == "FINISHED"


def test_more_metrics_than_one_batch_holds(local: Path, local_uri: str) -> None:
    made = tracker(local_uri, local)
    identifier = made.start_run("r-many", "many", {f"p{n}": n for n in range(150)})
    made.log_iteration(1, {f"m{n}": n for n in range(1500)})
    run = client_of(local_uri).get_run(identifier)
    assert len(run.data.metrics) == 1501
    assert len(run.data.params) == 150


def test_datasets_are_recorded_once(local: Path, local_uri: str) -> None:
    made = tracker(local_uri, local)
    identifier = made.start_run("r-data", "data", {})
    for _ in range(2):
        made.log_datasets({"train": TASKS, "heldout": TASKS[:5]})
    inputs = client_of(local_uri).get_run(identifier).inputs.dataset_inputs
    assert sorted(item.dataset.name for item in inputs) == ["household-heldout", "household-train"]
    assert {item.tags[0].value for item in inputs} == {"train", "heldout"}


def check_traces(uri: str, home: Path) -> None:
    made = tracker(uri, home, traces=2)
    identifier = made.start_run("r-traces", "traces", {})
    diagnosis = Diagnosis(
        "t-b", "home-0", "household", "r", 3, 2, DiagnosisStatus.VALID, "loops", "why", 1, "how", "query"
    )
    episodes = [episode("t-a", True), episode("t-b", False), episode("t-c", True)]
    ids = made.log_traces(episodes, {"t-b": diagnosis})
    assert made.log_traces(episodes, {"t-b": diagnosis}) == ids
    client = client_of(uri)
    experiment = client.get_run(identifier).info.experiment_id
    traces = {t.info.trace_id: t for t in client.search_traces(locations=[experiment], run_id=identifier)}
    assert sorted(traces) == sorted(ids)
    assert len(ids) == 2
    failed = traces[ids[1]]
    assert [span.span_type for span in failed.data.spans] == [
        "AGENT",
        "CHAT_MODEL",
        "TOOL",
        "CHAT_MODEL",
        "TOOL",
        "RETRIEVER",
    ]
    assert failed.data.spans[1].outputs["predictions"] == [{"horizon": 1, "predicted": "s2", "happened": "s2"}]
    assert failed.data.spans[1].parent_id == failed.data.spans[0].span_id
    assert {a.name: a.feedback.value for a in failed.info.assessments} == {"success": False, "failure_type": "loops"}
    assert failed.info.token_usage["output_tokens"] == 4
    assert failed.info.tags["roleagent.success"] == "false"
    assert (traces[ids[0]].info.state.value, failed.info.state.value) == ("OK", "ERROR")


def test_traces_in_a_database(local: Path, local_uri: str) -> None:
    check_traces(local_uri, local)


def test_figures_and_report_are_artifacts(local: Path, local_uri: str, tmp_path: Path) -> None:
    made = tracker(local_uri, local)
    identifier = made.start_run("r-report", "report", {})
    history = [{"iteration": n, "success/train": 0.5, "success/heldout": 0.5 + n / 10} for n in (1, 2)]
    write_report(tmp_path / "report", history, run_id="r-report", config={"seed": 1})
    made.log_report(tmp_path / "report")
    client = client_of(local_uri)
    assert [file.path for file in client.list_artifacts(identifier, "figures")] == ["figures/success.png"]
    assert "report/report.md" in [file.path for file in client.list_artifacts(identifier, "report")]
    note = client.get_run(identifier).data.tags["mlflow.note.content"]
    assert "+10.0 points" in note
    assert "success.png" not in note


def check_registry(uri: str, home: Path, place: str) -> None:
    made = tracker(uri, home)
    made.start_run("r-model", "model", {})
    assert made.find_model("agent") is None
    one = made.register_model("agent", f"{place}/1/checkpoint", 1, alias="champion", tags={"success": "0.5"})
    two = made.register_model("agent", f"{place}/2/checkpoint", 2)
    again = made.register_model("agent", f"{place}/2/checkpoint", 2)
    assert (one.version, two.version, again.version) == ("1", "2", "2")
    champion = made.find_model("agent")
    assert champion is not None
    assert (champion.uri, champion.iteration, champion.run_id) == (f"{place}/1/checkpoint", 1, "r-model")
    made.set_alias("agent", "champion", "2")
    moved = tracker(uri, home).find_model("agent")
    assert moved is not None
    assert (moved.version, moved.aliases) == ("2", ("champion",))


def test_registry_in_a_database(local: Path, local_uri: str) -> None:
    check_registry(local_uri, local, "s3://bucket/runs")


def test_a_run_may_be_a_child(local: Path, local_uri: str) -> None:
    parent = tracker(local_uri, local)
    above = parent.start_run("r-parent", "parent", {})
    child = tracker(local_uri, local)
    below = child.start_run("r-child", "child", {}, parent=above)
    assert client_of(local_uri).get_parent_run(below).info.run_id == above


def test_misuse_is_told_in_one_line(local: Path, local_uri: str) -> None:
    made = tracker(local_uri, local)
    with pytest.raises(TrackingError, match="call start_run first"):
        made.log_iteration(1, {})
    with pytest.raises(TrackingError, match="must not contain quotes"):
        made.start_run("it's", "x", {})
    client_of(local_uri).delete_experiment(client_of(local_uri).create_experiment("gone-local"))
    with pytest.raises(TrackingError, match="was deleted in MLflow"):
        tracker(local_uri, local, experiment="gone").start_run("r", "x", {})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    environment.pop("_MLFLOW_SERVER_ARTIFACT_ROOT", None)
    options = [
        "--backend-store-uri",
        f"sqlite:///{folder}/m.db",
        "--artifacts-destination",
        (folder / "artifacts").as_uri(),
    ]
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        *options,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "-w",
        "1",
    ]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=folder, start_new_session=True)
    uri = f"http://127.0.0.1:{port}"
    try:
        for _ in range(240):
            try:
                with urllib.request.urlopen(f"{uri}/health", timeout=1):
                    break
            except OSError:
                assert process.poll() is None, (folder / "log").read_text()
                time.sleep(0.5)
        yield uri
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=30)


def test_everything_again_through_a_server(server: str, tmp_path: Path) -> None:
    made = tracker(server, tmp_path)
    identifier = made.start_run("r-server", "server", {"seed": 1})
    assert made.run_url.startswith(f"{server}/#/experiments/")
    assert made.log_iteration(1, {"loss": 0.5})
    assert not made.log_iteration(1, {"loss": 0.6})
    made.log_datasets({"train": TASKS})
    made.log_text("hello", "notes.txt")
    made.set_checkpoint(1, "s3://bucket/runs/r/1/checkpoint", best=True)
    made.end("FAILED")
    again = tracker(server, tmp_path)
    again.start_run("r-server", "server", {"seed": 1})
    assert again.logged_iterations == {1}
    client = client_of(server)
    assert [(p.step, p.value) for p in client.get_metric_history(identifier, "loss")] == [(1, 0.5)]
    assert [file.path for file in client.list_artifacts(identifier)] == ["notes.txt"]
    tags = client.get_run(identifier).data.tags
    assert tags["roleagent.best_checkpoint"] == "s3://bucket/runs/r/1/checkpoint"
    check_traces(server, tmp_path)
    check_registry(server, tmp_path, str(tmp_path / "store"))  # a local path, which a server refuses as a source


def begin(home: Path) -> str:
    made = tracker("", home)
    identifier = made.start_run(f"r-{os.getpid()}", "first", {})
    made.end()
    return identifier


def test_two_processes_meet_a_new_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow alone fails here: both would migrate it, and one finds a column changed by the other."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    children = [processes.start(begin, tmp_path) for _ in range(2)]
    runs = {child.wait().result() for child in children}
    client = client_of(f"sqlite:///{tmp_path}/mlflow.db")
    (experiment,) = [item for item in client.search_experiments() if item.name == "role-agent-local"]
    assert {run.info.run_id for run in client.search_runs([experiment.experiment_id])} == runs
    assert len(runs) == 2


def test_an_incomplete_database_is_told_in_one_line(tmp_path: Path) -> None:
    """As MLflow leaves it when it is killed while it makes one."""
    path = tmp_path / "mlflow.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE metrics (key TEXT, step BIGINT)")
    with pytest.raises(TrackingError, match=r"could not open .*mlflow.db.*move the file away") as caught:
        tracker(f"sqlite:///{path}", tmp_path)
    assert "\n" not in str(caught.value)
    assert "SQL:" not in str(caught.value)


def test_a_database_that_cannot_be_made_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TrackingError, match=r"could not open .*File exists: .*file") as caught:
        tracker(f"sqlite:///{tmp_path}/file/mlflow.db", tmp_path)
    assert "move the file away" not in str(caught.value)
