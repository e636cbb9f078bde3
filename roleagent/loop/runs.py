"""Runs: beginning one, finding one, going on with one."""

from __future__ import annotations

import datetime
import json
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from roleagent.config import TrainConfig
from roleagent.errors import ConfigError, RoleAgentError, StorageError
from roleagent.loop import home
from roleagent.loop.events import listener
from roleagent.loop.worker import Worker, get_worker
from roleagent.storage import MissingObjectError, RunStore, open_store

STATUS = "status.json"


@dataclass(frozen=True, slots=True)
class RunHandle:
    """Where a run is."""

    run_id: str
    store_uri: str
    endpoint_url: str = ""

    def worker(self) -> Worker:
        """Return this process's worker for the run."""
        return get_worker(self.run_id, self.store_uri, self.endpoint_url)


def open_run(config: TrainConfig, run_id: str = "") -> RunHandle:
    """Return the run `run_id` if it exists, else begin one (with a new id if none is given)."""
    if run_id:
        known = _indexed(run_id)
        if known is not None:
            return known
    uri, endpoint = home.store_uri(config.storage), config.storage.endpoint_url
    store = RunStore(open_store(uri, endpoint))
    if run_id in store.list_runs() if run_id else False:
        return _remember(RunHandle(run_id, uri, endpoint))
    handle = RunHandle(run_id or new_run_id(config.name), uri, endpoint)
    store.create(handle.run_id, config.model_dump_json(indent=1))
    return _remember(handle)


def new_run_id(name: str) -> str:
    """Return a fresh run id: name, UTC time, four random characters."""
    now = datetime.datetime.now(datetime.UTC)
    return f"{name}-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def find_run(run_id: str) -> RunHandle:
    """Return a run by its id, or the newest one for `latest`.

    Raises:
        ConfigError: this machine knows no such run.
    """
    known = list_handles()
    if run_id == "latest":
        if not known:
            raise ConfigError(f"no run was made yet under {home.home()}; start one with `roleagent train`")
        return known[-1]
    for handle in known:
        if handle.run_id == run_id:
            return handle
    near = [handle.run_id for handle in known if handle.run_id.startswith(run_id)]
    if len(near) == 1:
        return next(handle for handle in known if handle.run_id == near[0])
    hint = f"; did you mean one of {', '.join(near[:4])}?" if near else "; see `roleagent runs`"
    raise ConfigError(f"no run '{run_id}' is known under {home.home()}{hint}")


def list_handles() -> list[RunHandle]:
    """Return every run that this machine has begun or worked on, oldest first."""
    folder = home.home() / "runs"
    paths = sorted(folder.glob("*.json"), key=lambda path: (path.stat().st_mtime_ns, path.name))
    return [RunHandle(**json.loads(path.read_text(encoding="utf-8"))) for path in paths]


def first_iteration(worker: Worker) -> int:
    """Return the iteration at which a run begins or goes on: 0 for a new one, else the newest valid commit + 1.

    Commits after the newest valid one are undone, so that their iterations can be made again.
    """
    state = worker.store.inspect(worker.run_id)
    latest = state.latest.iteration if state.latest is not None else -1
    for problem in state.problems:
        listener().notice(f"{problem}; going on from iteration {latest}")
    worker.store.rollback(worker.run_id, latest)
    return latest + 1


@contextmanager
def running(worker: Worker) -> Iterator[None]:
    """Hold the run's lease and keep its status: running, then finished or failed."""
    worker.lease = worker.store.take(worker.run_id, f"process {os.getpid()} on {socket.gethostname()}")
    write_status(worker, "running")
    worker.tracker.start_run(worker.run_id, worker.run_id, worker.config.model_dump(mode="json"))
    try:
        yield
    except BaseException as error:
        reason = str(error) if isinstance(error, RoleAgentError) else type(error).__name__
        _quietly(worker, "failed", reason)
        raise
    write_status(worker, "finished")
    worker.tracker.end("FINISHED")


def write_status(worker: Worker, status: str, reason: str = "") -> None:
    """Write the run's status object."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    worker.store.write(
        worker.run_id,
        STATUS,
        json.dumps({"status": status, "reason": reason[:500], "at": now, "pid": os.getpid()}).encode(),
    )


def read_status(worker: Worker) -> dict[str, object]:
    """Return the run's status; `new` when nothing was written yet.

    A run that says `running` and whose process is gone was killed: it is `interrupted`.
    """
    try:
        status: dict[str, object] = json.loads(worker.store.read_run(worker.run_id, STATUS))
    except MissingObjectError:
        return {"status": "new", "reason": "", "at": "", "pid": 0}
    if status["status"] == "running" and not _alive(int(str(status["pid"]))):
        status["status"] = "interrupted"
    return status


def _quietly(worker: Worker, status: str, reason: str) -> None:
    # The error that stopped the run matters more than one in telling of it.
    try:
        write_status(worker, status, reason)
        worker.tracker.end("FAILED")
    except (RoleAgentError, OSError) as error:
        listener().notice(f"could not record the failure of {worker.run_id}: {error}")


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _indexed(run_id: str) -> RunHandle | None:
    path = home.home() / "runs" / f"{run_id}.json"
    return RunHandle(**json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None


def _remember(handle: RunHandle) -> RunHandle:
    folder = home.home() / "runs"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{handle.run_id}.json"
        if not path.is_file():
            path.write_text(json.dumps(asdict(handle)), encoding="utf-8")
    except OSError as error:
        raise StorageError(
            f"cannot write {folder}: {error.strerror}; set ROLEAGENT_HOME to a writable folder"
        ) from error
    return handle
