"""Where MLflow's records go, and what a wrong place says."""

from __future__ import annotations

import socket
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from roleagent.errors import TrackingError
from roleagent.tracking.backend import connect, guard, resolve_backend
from roleagent.tracking.database import database_path
from roleagent.tracking.values import numbers, pool_digest
from roleagent.types import Task


def test_order_of_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    local = resolve_backend("", tmp_path)
    assert local.uri == f"sqlite:///{tmp_path}/mlflow.db"
    assert local.artifacts == f"file://{tmp_path}/mlflow-artifacts"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://u:p@127.0.0.1:5000/")
    server = resolve_backend("", tmp_path)
    assert (server.uri, server.artifacts, server.remote) == ("http://u:p@127.0.0.1:5000", None, True)
    assert server.shown == "http://***@127.0.0.1:5000"
    assert resolve_backend("sqlite:////x/y.db", tmp_path).uri == "sqlite:////x/y.db"


@pytest.mark.parametrize("name", ["%41 100%", "q?x=1&y", "#x", "a b ö", "c;d'\"", "[x]{y}$z"])
def test_a_home_of_any_name_has_its_database_inside(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sqlalchemy.engine import make_url

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    uri = resolve_backend("", tmp_path / name).uri
    assert make_url(uri).database == str(tmp_path / name / "mlflow.db")
    assert database_path(uri) == tmp_path / name / "mlflow.db"


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrackingError, match="no model registry"):
        resolve_backend(str(tmp_path), tmp_path)


def test_an_address_of_no_kind_that_mlflow_knows(tmp_path: Path) -> None:
    with pytest.raises(TrackingError, match="got unsupported URI 'nonsense://x'") as caught:
        connect(resolve_backend("nonsense://x", tmp_path))
    reason, _, mend = str(caught.value).partition(" ...; ")
    assert reason.endswith(".")  # the last sentence is whole
    assert mend.startswith("set tracking.uri or MLFLOW_TRACKING_URI to http(s)://host:port or sqlite:///path")


def test_a_dead_server_is_one_line_within_seconds(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: the port refuses
        port = taken.getsockname()[1]
        began = time.monotonic()
        with pytest.raises(TrackingError, match="no MLflow server answers") as caught:
            connect(resolve_backend(f"http://u:hunter2@127.0.0.1:{port}", tmp_path))
    assert time.monotonic() - began < 8
    assert "\n" not in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert "make up" in str(caught.value)


def test_a_silent_server_is_given_up(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        began = time.monotonic()
        with pytest.raises(TrackingError, match="no MLflow server answers"):
            connect(resolve_backend(f"http://127.0.0.1:{silent.getsockname()[1]}", tmp_path))
    assert time.monotonic() - began < 8


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "(raised as a result of Query-invoked autoflush; consider using a session.no_autoflush block if this flush "
            "is occurring prematurely)\n(sqlite3.OperationalError) database or disk is full\n[SQL: UPDATE runs]",
            "MLflow could not end the run: database or disk is full; free some space, then repeat the command",
        ),
        (
            "(sqlite3.OperationalError) database is locked\n[SQL: SELECT 1]",
            "MLflow could not end the run: database is locked; another process holds it: end that one or wait for it, "
            "then repeat the command",
        ),
        (
            "(sqlite3.OperationalError) no such table: runs",
            "MLflow could not end the run: no such table: runs; mend it",
        ),
    ],
)
def test_what_a_database_says_is_told_without_its_wrapping(said: str, told: str) -> None:
    from mlflow.exceptions import MlflowException

    with pytest.raises(TrackingError) as caught, guard("end the run", "; mend it"):
        raise MlflowException(said)
    assert str(caught.value) == told


def test_a_locked_database_is_one_line_and_nothing_on_standard_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    client = connect(resolve_backend("", tmp_path))
    # MLflow lets SQLite wait for 20 s.
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    event.listen(Engine, "checkout", impatient := lambda connection, *_: connection.execute("PRAGMA busy_timeout = 50"))
    try:
        with closing(sqlite3.connect(tmp_path / "mlflow.db", isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            capfd.readouterr()
            with pytest.raises(TrackingError, match="database is locked; another process holds it"), guard("write"):
                client.create_experiment("x")
    finally:
        event.remove(Engine, "checkout", impatient)
    assert capfd.readouterr().err == ""
    assert any("database is locked" in record.getMessage() for record in caplog.records)  # where all logs go


def test_numbers_are_flat_finite_and_named_as_mlflow_wants() -> None:
    metrics = {
        "a": 1,
        "b/c": float("nan"),
        "failure_types": {"wrong | object\n": 2},
        "note": "text",
        "ok": True,
        "i": float("inf"),
    }
    assert numbers(metrics) == {"a": 1.0, "failure_types/wrong _ object_": 2.0, "ok": 1.0}


def test_pool_digest_depends_on_the_ids_alone() -> None:
    a, b = Task("a", "e", "x", "train"), Task("b", "e", "y", "train")
    assert pool_digest([a, b]) == pool_digest([b, a])
    assert pool_digest([a, b]) != pool_digest([a])
    assert pool_digest([Task("ab", "e", "x", "train")]) != pool_digest([a, b])
    assert len(pool_digest([])) == 32
