"""Where MLflow's records go, and a bounded check that the place answers.

Order: `tracking.uri`, then MLFLOW_TRACKING_URI, then `sqlite:///<home>/mlflow.db` with artifacts in
`<home>/mlflow-artifacts`. The same store serves as tracking store and model registry.
"""

from __future__ import annotations

import logging
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from roleagent.errors import TrackingError, shortened
from roleagent.tracking.database import PREFIX, database_address, database_path, prepare_database
from roleagent.tracking.redaction import redact

if TYPE_CHECKING:
    from mlflow import MlflowClient

#: MLflow's own defaults would retry a dead server for minutes; the loop's tasks have retries of their own.
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
}
_PROBE_SECONDS = 5.0
_REASON = 300  # characters
_INCOMPLETE = "; if it was left incomplete, move the file away: resumed runs fill a new one from their commits"
#: What SQLAlchemy puts before the words of the database.
_WRAPPING = re.compile(r"\(raised as a result of [^)]*\)|\(\w+\.\w+\)(?= )")
#: Passing states of a SQLite database, which is neither incomplete nor in the wrong place.
_PASSING = {
    "database is locked": "; another process holds it: end that one or wait for it, then repeat the command",
    "database or disk is full": "; free some space, then repeat the command",
}
_ELSEWHERE = (
    "; set tracking.uri or MLFLOW_TRACKING_URI to http(s)://host:port or sqlite:///path/to/mlflow.db, or leave both "
    "empty for a database in the home folder"
)


@dataclass(frozen=True, slots=True)
class Backend:
    """A resolved tracking store."""

    uri: str  #: tracking and registry URI as MLflow takes it
    artifacts: str | None  #: artifact location of new experiments; None lets the server decide

    @property
    def remote(self) -> bool:
        """A server speaks for the store."""
        return self.uri.startswith(("http://", "https://"))

    @property
    def shown(self) -> str:
        """The URI without credentials."""
        return redact(self.uri)


def resolve_backend(uri: str, home: Path) -> Backend:
    """Choose the tracking store; see the module's text for the order."""
    chosen = uri or os.environ.get("MLFLOW_TRACKING_URI", "")
    if chosen.startswith(("http://", "https://")):
        return Backend(chosen.rstrip("/"), None)
    home = home.absolute()
    artifacts = (home / "mlflow-artifacts").as_uri()
    if not chosen:
        return Backend(database_address(home / "mlflow.db"), artifacts)
    if "://" not in chosen or chosen.startswith("file:"):
        raise TrackingError(
            f"tracking.uri: '{redact(chosen)}' is a folder, which has no model registry; "
            "give http(s)://host:port or sqlite:///path/to/mlflow.db"
        )
    return Backend(chosen, artifacts)


def connect(backend: Backend) -> MlflowClient:
    """Return a client of the store, after checking that it answers within seconds.

    Raises:
        TrackingError: the server does not answer, or the database cannot be opened.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if backend.remote:
        _probe(backend)
    elif backend.artifacts:
        # Without it a database store makes a folder `mlruns` in the working directory.
        os.environ.setdefault("_MLFLOW_SERVER_ARTIFACT_ROOT", backend.artifacts)
    from mlflow import MlflowClient

    for name in ("mlflow", "alembic"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.WARNING)
        # MLflow's own handler writes to standard error: a traceback of a hundred lines for a database that is locked.
        logger.handlers.clear()
        logger.propagate = True
    there = backend.uri.startswith(PREFIX) and database_path(backend.uri).is_file()
    mend = _INCOMPLETE if there else _ELSEWHERE
    with guard(f"open {backend.shown}", mend):
        prepare_database(backend.uri)
        return MlflowClient(tracking_uri=backend.uri, registry_uri=backend.uri)


@contextmanager
def guard(action: str, mend: str = "") -> Iterator[None]:
    """Turn MLflow's and the network's errors into one line that says what was being done, and how to mend it."""
    import requests
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, requests.RequestException, SQLAlchemyError, OSError) as error:
        said = _WRAPPING.sub("", redact(str(error)).partition("[SQL:")[0])
        reason = shortened(said.rstrip(". "), _REASON)
        remedy = next((words for state, words in _PASSING.items() if reason.endswith(state)), mend)
        raise TrackingError(f"MLflow could not {action}: {reason}{remedy}") from error


def _probe(backend: Backend) -> None:
    request = urllib.request.Request(f"{backend.uri}/health")
    try:
        with urllib.request.urlopen(request, timeout=_PROBE_SECONDS):
            return
    except urllib.error.HTTPError as error:
        if error.code < 500:
            return  # something answers; a proxy may guard /health
        reason = f"it answers {error.code}"
    except (OSError, ValueError) as error:
        reason = str(getattr(error, "reason", error))
    raise TrackingError(
        f"no MLflow server answers at {backend.shown} ({reason}); start it with `make up`, or correct tracking.uri "
        "or MLFLOW_TRACKING_URI, or leave both empty for a local database"
    )
