"""MLflow's database is made once, whole, whoever comes first and whoever is killed."""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from roleagent.tracking import database
from roleagent.tracking.database import database_address, prepare_database


def tables(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [name for (name,) in connection.execute("SELECT name FROM sqlite_master")]


def create(path: Path, name: str = "runs") -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"CREATE TABLE {name} (x)")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """MLflow's place is taken by a maker of one table, which notes where it was asked to make it."""
    calls: list[Path] = []

    def make(path: Path) -> None:
        calls.append(path)
        create(path)
        time.sleep(0.05)

    monkeypatch.setattr(database, "_make", make)
    return calls


def test_many_at_once_make_one(tmp_path: Path, made: list[Path]) -> None:
    path = tmp_path / "new" / "mlflow.db"
    barrier = threading.Barrier(8)
    answers: list[bool] = []

    def prepare() -> None:
        barrier.wait()
        answers.append(prepare_database(f"sqlite:///{path}"))
        assert tables(path) == ["runs"]

    threads = [threading.Thread(target=prepare) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [False] * 7 + [True]
    assert len(made) == 1
    assert made[0] != path


def test_a_failure_leaves_nothing_under_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(path: Path) -> None:
        create(path)
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(database, "_make", half)
    with pytest.raises(sqlite3.OperationalError):
        prepare_database(f"sqlite:///{tmp_path}/mlflow.db")
    assert [path.name for path in tmp_path.iterdir()] == [".mlflow.db.lock"]


def test_what_a_killed_process_left_is_begun_again(tmp_path: Path, made: list[Path]) -> None:
    create(tmp_path / ".mlflow.db.unfinished", "half")
    (tmp_path / "mlflow.db").touch()  # sqlite makes an empty file when it is only opened
    assert prepare_database(f"sqlite:///{tmp_path}/mlflow.db")
    assert tables(tmp_path / "mlflow.db") == ["runs"]


def test_an_encoded_address_is_the_file_that_mlflow_opens(tmp_path: Path, made: list[Path]) -> None:
    folder = tmp_path / "%41?x"
    assert prepare_database(database_address(folder / "mlflow.db"))
    assert tables(folder / "mlflow.db") == ["runs"]
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_what_is_there_is_left_alone(tmp_path: Path, made: list[Path]) -> None:
    create(tmp_path / "mlflow.db", "old")
    (tmp_path / "other.db").write_text("this is no database")
    for uri in (f"sqlite:///{tmp_path}/mlflow.db", f"sqlite:///{tmp_path}/other.db"):
        assert not prepare_database(uri)
    assert tables(tmp_path / "mlflow.db") == ["old"]
    assert not list(tmp_path.glob(".*.lock"))


@pytest.mark.parametrize("uri", ["http://127.0.0.1:5000", "postgresql://host/db", "sqlite:///:memory:", "sqlite://"])
def test_other_stores_are_not_touched(
    uri: str, tmp_path: Path, made: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert not prepare_database(uri)
    assert made == []
    assert list(tmp_path.iterdir()) == []
