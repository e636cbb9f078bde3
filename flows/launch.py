"""Starting a flow in this process, with Prefect settings that suit one machine.

The command line finds these functions as entry points, so that the library below knows no orchestrator.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from flows.local_server import ServerError, local_server
from roleagent.ablation.plan import Request, check_plan, make_plan
from roleagent.config import TrainConfig
from roleagent.errors import ConfigError, RoleAgentError
from roleagent.loop import runs
from roleagent.loop.home import home
from roleagent.loop.servers import bypass_proxies, server_answers
from roleagent.tracking.backend import connect, resolve_backend

_DEFAULTS = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_LOGGING_LEVEL": "ERROR",  # progress is drawn by the command line
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
}
# Nobody looks at a server that lives as long as a run: it keeps no logs, and no schedules.
_LOCAL = {
    "PREFECT_LOGGING_TO_API_ENABLED": "false",
    "PREFECT_SERVER_LOGGING_LEVEL": "ERROR",
    # One transaction an event holds up the next subflow for seconds; nobody listens to events of a short life.
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "200",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "200",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
    "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_ENABLED": "false",
}


@contextmanager
def prefect_server() -> Iterator[Callable[[], None]]:
    """Set up Prefect for flows of this process: the server of PREFECT_API_URL, or one for the time of the block.

    To be entered before Prefect is imported. What the user's environment sets is kept. Yields a function that waits
    until the server answers: what is slow to import can be imported before it is called.

    Raises:
        ConfigError: the server of PREFECT_API_URL does not answer, or the home folder cannot be written.
    """
    bypass_proxies()
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    if "PREFECT_HOME" not in os.environ:
        folder = home() / "prefect"
        try:
            folder.mkdir(parents=True, exist_ok=True)  # Prefect makes one level only
        except OSError as error:
            raise ConfigError(
                f"cannot make {folder}: {error.strerror}; set ROLEAGENT_HOME to a writable folder"
            ) from error
        os.environ["PREFECT_HOME"] = str(folder)
    if os.environ.get("PREFECT_API_URL"):
        server_answers("PREFECT_API_URL")
        yield lambda: None
        return
    # As an address: otherwise a "%" or "?" in the folder's name would put the database elsewhere.
    database = f"sqlite+aiosqlite:///{quote(str(Path(os.environ['PREFECT_HOME']) / 'prefect.db'))}"
    for name, value in {**_LOCAL, "PREFECT_SERVER_DATABASE_CONNECTION_URL": database}.items():
        os.environ.setdefault(name, value)
    with local_server(home() / "logs" / "prefect-server.log") as server:
        os.environ["PREFECT_API_URL"] = server.address
        try:
            yield server.wait
        finally:
            del os.environ["PREFECT_API_URL"]


def train(config: TrainConfig, run_id: str = "") -> dict[str, Any]:
    """Run the training flow and return its summary.

    Raises:
        RoleAgentError: what the flow raised; its own exception, not one of Prefect.
    """
    if runs.existing_run(config, run_id) is None:  # find what would stop it before anything is started
        runs.check(config)
    with prefect_server() as wait:
        connect(resolve_backend(config.tracking.uri, home()))
        import roleagent.learning.learner  # noqa: F401  needed later, and slow
        from flows.train import train as flow

        wait()
        keep_inner_errors()
        with _quiet_heart(), own_errors():
            return flow(config, run_id)


def ablate(request: Request, *, parallel: int = 0, threads: int = 0) -> dict[str, Any]:
    """Run the ablation flow and return its results.

    Raises:
        RoleAgentError: what the flow raised; its own exception, not one of Prefect.
    """
    plan = make_plan(request)  # find what would stop it before anything is started
    check_plan(plan)
    with prefect_server() as wait:
        connect(resolve_backend(plan.base.tracking.uri, home()))
        from flows.ablation import ablation as flow

        wait()
        keep_inner_errors()
        with _quiet_heart(), own_errors():
            results: dict[str, Any] = flow(
                request.preset,
                list(request.variants),
                request.seeds,
                list(request.overrides),
                parallel=parallel,
                threads=threads,
                against=request.against,
                name=request.name,
            )
            return results


def keep_inner_errors() -> None:
    """Send what Prefect logs of its own threads where all logs go: by itself it writes it to standard error.

    A busy server that ends with its run may have left the last events unanswered; that is no error of the run.
    """
    import prefect.main  # noqa: F401  sets logging up

    inner = logging.getLogger("prefect._internal")
    inner.handlers.clear()
    inner.propagate = True


@contextmanager
def own_errors() -> Iterator[None]:
    """Tell what stopped a run where Prefect's server refuses to record it: on a full disk both fail.

    Raises:
        RoleAgentError: the run's own error, if there was one before the refusal.
        ServerError: there was none.
    """
    from prefect.exceptions import PrefectHTTPStatusError

    try:
        yield
    except PrefectHTTPStatusError as refusal:
        before: BaseException | None = refusal
        while before is not None and not isinstance(before, RoleAgentError):
            before = before.__cause__ or before.__context__
        if before is not None:
            raise before from refusal
        raise ServerError(
            f"Prefect's server answered {refusal.response.status_code}: free some space if the disk of its database is "
            f"full (a server of this run logs to {home() / 'logs' / 'prefect-server.log'}), then repeat the command"
        ) from refusal


@contextmanager
def _quiet_heart() -> Iterator[None]:
    # A heartbeat tells a lasting server that a run is alive. Here the server ends with the run, and waiting for the
    # heart's thread would cost every iteration up to a second.
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    with temporary_settings(updates={PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        yield
