"""MLflow's SQLite database, made whole or not at all.

MLflow makes a database where it finds an incomplete one, without a lock: it creates the oldest tables, then changes
them in some fifty migrations that SQLite does not undo. Two processes that meet a new database at the same time both
migrate it, and one fails on a table or a column that the other has already changed ("no such column
dimension_attributes"); a process that is killed meanwhile leaves a database that no later one can mend. Here it is made
under another name, by one process at a time, and takes its own name when it is complete.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import unquote

PREFIX = "sqlite:///"


def database_address(path: Path) -> str:
    """Return the `sqlite:///` address of a file. SQLAlchemy decodes `%` in it, and takes `?` for its end."""
    return PREFIX + str(path).replace("%", "%25").replace("?", "%3F")


def database_path(uri: str) -> Path:
    """Return the file of a `sqlite:///` address, as SQLAlchemy finds it."""
    return Path(unquote(uri.removeprefix(PREFIX).partition("?")[0]))


def prepare_database(uri: str) -> bool:
    """Make the database of a `sqlite:///` address if there is none; return whether this call made it.

    What is there already is left as it is, so this costs a millisecond from the second time on. Other stores are their
    server's affair: nothing is done.

    Raises:
        OSError: the folder cannot be written.
        MlflowException: MLflow could not make its tables.
    """
    path = database_path(uri)
    if not uri.startswith(PREFIX) or path.name in {"", ":memory:"} or _has_tables(path):
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    with _lock(path):
        if _has_tables(path):  # another process was faster
            return False
        unfinished = path.absolute().with_name(f".{path.name}.unfinished")
        _remove(unfinished)  # of a process that was killed
        try:
            _make(unfinished)
            unfinished.replace(path)
        finally:
            _remove(unfinished)
    return True


def _make(path: Path) -> None:
    from mlflow.db import upgrade  # the command `mlflow db upgrade URL`, which makes what is not there
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    def hurry(connection: sqlite3.Connection, _record: object) -> None:
        # Hundreds of statements that each wait for the disk take half a minute on a busy one. Here one wait is enough.
        if any(Path(file).name == path.name for _, _, file in connection.execute("PRAGMA database_list")):
            connection.execute("PRAGMA synchronous = OFF")

    event.listen(Engine, "connect", hurry)
    try:
        assert upgrade.callback is not None
        upgrade.callback(database_address(path))
    finally:
        event.remove(Engine, "connect", hurry)
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _has_tables(path: Path) -> bool:
    if not path.is_file() or path.stat().st_size == 0:
        return False
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            return database.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is not None
    except sqlite3.Error:
        return True  # locked, or no database at all: whoever opens it says what is wrong


def _remove(path: Path) -> None:
    for name in (path.name, f"{path.name}-journal", f"{path.name}-wal", f"{path.name}-shm"):
        path.with_name(name).unlink(missing_ok=True)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    # The system lets go of the lock when its holder dies. The file stays: removing it would let two hold it.
    with path.with_name(f".{path.name}.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
