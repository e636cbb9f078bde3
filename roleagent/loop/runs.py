"""Runs: beginning one, finding one, going on with one."""

from __future__ import annotations

import datetime
import difflib
import json
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from roleagent.config import TrainConfig
from roleagent.errors import CommitConflict, ConfigError, RoleAgentError, StorageError, shortened
from roleagent.json_text import read_json_text
from roleagent.loop import home
from roleagent.loop.events import listener
from roleagent.loop.worker import Worker, get_worker
from roleagent.storage import MissingObjectError, RunStore, open_store
from roleagent.storage.manifest import check_run_id
from roleagent.tracking.redaction import flatten
from roleagent.types import Split

STATUS = "status.json"
TRACKING = "tracking.json"
#: What going on reads of every iteration: the history that is published, and the failures of the bank.
RECORDS = ("metrics.json", "diagnoses.parquet")
_TOLD = 3  # keys that differ: how many are named


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
    found = existing_run(config, run_id)
    if found is not None:
        return _remember(found)
    check(config)
    uri, endpoint = home.store_uri(config.storage), config.storage.endpoint_url
    handle = RunHandle(run_id or new_run_id(config.name), uri, endpoint)
    RunStore(open_store(uri, endpoint)).create(handle.run_id, config.model_dump_json(indent=1))
    return _remember(handle)


def existing_run(config: TrainConfig, run_id: str) -> RunHandle | None:
    """Return the run `run_id` that this machine knows, or that the configured store has; None if there is none."""
    if not run_id:
        return None
    path = home.run_note(check_run_id(run_id))
    if path.is_file():
        return _handle(path)
    handle = RunHandle(run_id, home.store_uri(config.storage), config.storage.endpoint_url)
    return handle if RunStore(open_store(handle.store_uri, handle.endpoint_url)).has(run_id) else None


def check_same(handle: RunHandle, config: TrainConfig) -> None:
    """Check that a run that is asked for again is asked for with the configuration that it keeps.

    Raises:
        ConfigError: it has another one; the keys that differ are named.
    """
    told = differences(handle.worker().config, config)
    if told:
        raise ConfigError(
            f"run {handle.run_id} exists with another configuration ({told}); go on with it as it is: "
            f"roleagent resume {handle.run_id}; or begin another one: give another --run-id"
        )


def differences(kept: TrainConfig, asked: TrainConfig) -> str:
    """Return the keys in which a kept configuration differs from one that is asked for; "" if in none."""
    own, wanted = (flatten(found.model_dump(mode="json")) for found in (kept, asked))
    names = [key for key in {**own, **wanted} if own.get(key, "") != wanted.get(key, "")]
    told = ", ".join(f"{key} is {own.get(key) or 'empty'} there" for key in names[:_TOLD])
    return told + (f", and {len(names) - _TOLD} more differ" if len(names) > _TOLD else "")


def check(config: TrainConfig) -> None:
    """Find, in a moment and without loading a model, what would stop a run later.

    Raises:
        ConfigError: the environment, its options or the estimator are unknown, or a split has fewer tasks than needed.
        PolicyError: the policy's folder does not exist.
        BankError: the embedding model's folder or package does not exist.
        StorageError: the home folder or the store cannot be written.
    """
    from roleagent.agent_in_world.embedding import find_embedding_model
    from roleagent.environments.registry import make_environment
    from roleagent.learning.scoring import make_estimator
    from roleagent.policy.model import find_model

    home.writable_home()
    make_estimator(config)
    if not config.policy.model.startswith("s3://"):
        find_model(config.policy.model)
    if config.agent_in_world.enabled:
        find_embedding_model(config.agent_in_world.embedding_model)
    environment = make_environment(config.environment.name, **config.environment.options)
    needs: tuple[tuple[Split, str, int], ...] = (
        ("train", "rollout.tasks_per_iteration", config.rollout.tasks_per_iteration),
        ("heldout", "evaluation.final_tasks", config.evaluation.final_tasks),
    )
    for split, key, needed in needs:
        there = len(environment.tasks(split))
        if needed > there:
            raise ConfigError(f"{key} is {needed}, but {config.environment.name} has {there} {split} tasks")
    open_store(home.store_uri(config.storage), config.storage.endpoint_url).check_writable()


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
    near = near or difflib.get_close_matches(run_id, [handle.run_id for handle in known], n=2, cutoff=0.8)
    hint = f"; did you mean {' or '.join(near[-4:])}?" if near else "; see `roleagent runs`"
    raise ConfigError(f"no run '{run_id}' is known under {home.home()}{hint}")


def list_handles() -> list[RunHandle]:
    """Return every run that this machine has begun or worked on, oldest first.

    Raises:
        StorageError: ROLEAGENT_HOME is a file.
    """
    folder = home.home() / "runs"
    if home.home().exists() and not home.home().is_dir():
        raise StorageError(f"{home.home()} is not a folder; set ROLEAGENT_HOME to one")
    notes = (path for path in folder.glob("*.json") if path.is_file())  # neither a folder nor a link to nowhere
    paths = sorted(notes, key=lambda path: (path.stat().st_mtime_ns, path.name))
    return [_handle(path) for path in paths]


def first_iteration(worker: Worker) -> int:
    """Return the iteration at which a run begins or goes on: 0 for a new one, else the newest valid commit + 1.

    Commits after the newest valid one are undone, so that their iterations can be made again.
    """
    state = worker.store.inspect(worker.run_id, every=RECORDS)
    latest = state.latest.iteration if state.latest is not None else -1
    for problem in state.problems:
        listener().notice(f"{problem}; going on from iteration {latest}")
    worker.store.rollback(worker.run_id, latest)
    return latest + 1


@contextmanager
def running(worker: Worker, *, warm: bool = True) -> Iterator[None]:
    """Hold the run's lease and keep its status: running, then finished, failed or interrupted.

    `warm`: import meanwhile what an iteration needs; False where none is left to do.
    """
    worker.lease = worker.store.take(worker.run_id, f"process {os.getpid()} on {socket.gethostname()}")
    write_status(worker, "running")
    if warm:
        threading.Thread(target=_warm_up, args=(worker,), name="warm-up", daemon=True).start()
    mlflow_run = ""
    try:
        mlflow_run = worker.tracker.start_run(worker.run_id, worker.run_id, worker.config.model_dump(mode="json"))
        place = {"mlflow_run": mlflow_run, "mlflow_uri": worker.tracker.uri, "mlflow_url": worker.tracker.run_url}
        worker.store.write(worker.run_id, TRACKING, json.dumps(place).encode())
        yield
    except Exception as error:
        reason = str(error) if isinstance(error, RoleAgentError) else type(error).__name__
        _record_end(worker, "failed", reason, tracked=bool(mlflow_run))
        raise
    except BaseException as error:  # Ctrl-C, or the signal of an orchestrator that cancels
        _record_end(worker, "interrupted", type(error).__name__, tracked=bool(mlflow_run))
        raise
    write_status(worker, "finished")
    worker.tracker.end("FINISHED")


def _warm_up(worker: Worker) -> None:
    """Import what a later phase needs and is slow to import, while the policy is evaluated.

    Not while it is loaded: two threads that import take turns, which saves no time, and an interruption of one that
    waits for its turn can leave Python's import lock taken.
    """
    from roleagent.quality import warm_up

    worker.loaded.wait()
    warm_up()


def write_status(worker: Worker, status: str, reason: str = "") -> None:
    """Write the run's status object."""
    value = {
        "status": status,
        "reason": shortened(reason, 500),
        "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "pid": os.getpid(),
        "host": socket.gethostname(),
    }
    worker.store.write(worker.run_id, STATUS, json.dumps(value).encode())


def read_status(worker: Worker) -> dict[str, str]:
    """Return the run's status, its reason and time; `new` when nothing was written yet, `unknown` if it is damaged.

    A run that says `running` and whose process on this machine is gone was killed: it is `interrupted`.
    """
    try:
        found = read_json_text(worker.store.read_run(worker.run_id, STATUS))
        status = {key: str(found[key]) for key in ("status", "reason", "at", "pid", "host")}
        gone = status["host"] == socket.gethostname() and not _alive(int(status["pid"]), _seconds(status["at"]))
    except MissingObjectError:
        return {"status": "new", "reason": "", "at": "", "pid": "", "host": ""}
    except (ValueError, KeyError, TypeError):
        return {"status": "unknown", "reason": f"{STATUS} is damaged", "at": "", "pid": "", "host": ""}
    if status["status"] == "running" and gone:
        status |= {"status": "interrupted", "reason": f"process {status['pid']} is gone"}
    return status


def training_process(worker: Worker) -> int:
    """Return the id of the process of this machine that trains the run, 0 if there is none."""
    status = read_status(worker)
    here = status["status"] == "running" and status["host"] == socket.gethostname()
    return int(status["pid"]) if here else 0


def check_idle(handle: RunHandle) -> None:
    """Check that no process of this machine trains the run.

    Raises:
        ConfigError: one does; its id is told.
    """
    busy = training_process(handle.worker())
    if busy:
        raise ConfigError(f"run {handle.run_id} is being trained by process {busy} of this machine; stop it first")


def mlflow_place(worker: Worker) -> dict[str, str]:
    """Return MLflow's id of a run, its store, and the run's page on a server; all are empty before it is tracked."""
    names = ("mlflow_run", "mlflow_uri", "mlflow_url")
    try:
        found = read_json_text(worker.store.read_run(worker.run_id, TRACKING))
        return {name: str(found[name]) for name in names}
    except (MissingObjectError, ValueError, KeyError, TypeError):
        return dict.fromkeys(names, "")


def _record_end(worker: Worker, status: str, reason: str, *, tracked: bool) -> None:
    # The error that stopped the run matters more than one in telling of it, and one record is more than none.
    told = f"could not record the end of {worker.run_id}"
    records: list[Callable[[], None]] = [lambda: write_status(worker, status, reason)]
    try:
        if worker.lease is not None:
            worker.lease.check()
    except CommitConflict:
        return  # the run goes on elsewhere: neither its status nor its MLflow run is ours to end
    except StorageError as error:  # it takes no status either, and a silent store lets each request wait for minutes
        listener().notice(f"{told}: {error}")
        records.clear()
    if tracked:
        records.append(lambda: worker.tracker.end("KILLED" if status == "interrupted" else "FAILED"))
    for record in records:
        try:
            record()
        except (RoleAgentError, OSError) as error:
            listener().notice(f"{told}: {error}")


def _seconds(at: str) -> float:
    return datetime.datetime.fromisoformat(at).timestamp()


def _alive(pid: int, since: float) -> bool:
    """Whether a process runs that was there at a time; a later one has been given the same id."""
    import psutil

    try:
        return psutil.Process(pid).create_time() <= since + 2  # clocks of whole seconds
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True


def _handle(path: Path) -> RunHandle:
    """Read where a run is; a damaged note is replaced by the default place, where most runs are."""
    try:
        handle = RunHandle(**read_json_text(path.read_text(encoding="utf-8")))
        if not all(isinstance(value, str) for value in asdict(handle).values()):
            raise TypeError("a place is a text")
        return handle
    except (ValueError, TypeError):
        return RunHandle(path.stem, str(home.home() / "store"))


def _remember(handle: RunHandle) -> RunHandle:
    path = home.run_note(handle.run_id)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file():
            path.write_text(json.dumps(asdict(handle)), encoding="utf-8")
    except OSError as error:
        raise StorageError(
            f"cannot write {path.parent}: {error.strerror}; set ROLEAGENT_HOME to a writable folder"
        ) from error
    return handle
