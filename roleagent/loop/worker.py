"""The worker: what one process keeps warm between the phases of a run.

A phase names what it needs by iteration and version; what the worker finds warm it does not load again, and what
it does not have it loads from the committed objects. Cold or warm, the result is the same.
"""

from __future__ import annotations

import hashlib
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from roleagent.config import TrainConfig
from roleagent.config.load import parse_config
from roleagent.environments.base import Environment
from roleagent.environments.registry import make_environment
from roleagent.errors import StorageError
from roleagent.json_text import read_json_text
from roleagent.loop import home
from roleagent.storage import (
    IterationWriter,
    MissingObjectError,
    MissingStoreError,
    RunStore,
    fetch_folder,
    open_store,
)
from roleagent.storage.manifest import iteration_key
from roleagent.types import Diagnosis, Task, Trajectory

if TYPE_CHECKING:
    from roleagent.agent_in_world.curriculum import TaskDistribution
    from roleagent.agent_in_world.embedding import TextEmbedder
    from roleagent.agent_in_world.failure_bank import FailureBank
    from roleagent.learning.learner import Learner
    from roleagent.learning.scoring import Array, ScoredBatch
    from roleagent.policy.engines.base import Engine
    from roleagent.policy.model import Policy
    from roleagent.policy.tokens import PolicyTokenizer
    from roleagent.storage import Lease
    from roleagent.tracking.tracker import Tracker

T = TypeVar("T")


class Worker:
    """Everything that a process needs for one run."""

    def __init__(self, run_id: str, store_uri: str, endpoint_url: str = "") -> None:

        self.run_id = run_id
        self.store = RunStore(open_store(store_uri, endpoint_url))
        try:
            values = read_json_text(self.store.config(run_id))
        except (MissingObjectError, MissingStoreError) as error:
            note, at = home.run_note(run_id), f" at {endpoint_url}" if endpoint_url else ""
            raise StorageError(
                f"run {run_id} is kept in {store_uri}{at}, but it is not there: bring the store back to this place"
                + (f", or forget the run: rm {note}" if note.is_file() else "")
            ) from error
        except ValueError as error:
            raise StorageError(f"the configuration of run {run_id} in {self.store.store.uri()} is damaged") from error
        self.config: TrainConfig = parse_config(values, source=f"run {run_id} (made by another version?)")
        self._lock = threading.RLock()
        self._policy_version = -1
        self._engine_version = -1
        self._policy: Policy | None = None
        self._learner: Learner | None = None
        self._engine: Engine | None = None
        self._bank: FailureBank | None = None
        self._warm: dict[str, object] = {}
        self.loaded = threading.Event()  #: set when the policy is in memory, and its libraries with it
        self.lease: Lease | None = None  #: held while this process trains the run
        self.history: dict[int, dict[str, Any]] = {}  #: rows of metrics of committed iterations

    # -- what does not change in a run ---------------------------------------------------------------------------

    def make_environment(self) -> Environment:
        """Return a new instance of the run's environment."""
        return make_environment(self.config.environment.name, **self.config.environment.options)

    @cached_property
    def environment(self) -> Environment:
        """An instance for looking up tasks; episodes are played in instances of their own."""
        return self.make_environment()

    @cached_property
    def training_tasks(self) -> dict[str, Task]:
        """The pool of M training tasks by id."""
        return {task.task_id: task for task in self.environment.tasks("train")}

    @cached_property
    def embedder(self) -> TextEmbedder:
        """The embedding model of the failure bank."""
        from roleagent.agent_in_world.embedding import TextEmbedder

        return TextEmbedder(self.config.agent_in_world.embedding_model)

    @property
    def bank(self) -> FailureBank:
        """The failure bank, reconciled with the committed diagnoses when it is opened."""
        return self._bank if self._bank is not None else self.open_bank()

    def open_bank(self, *, fresh: bool = False) -> FailureBank:
        """Open the bank (again) and bring it in line with the commits; with `fresh`, build it anew from them."""
        from roleagent.agent_in_world.failure_bank import FailureBank

        with self._lock:
            if self._bank is not None:
                self._bank.close()
            bank = FailureBank(home.bank_folder(self.run_id), self.run_id, self.embedder, fresh=fresh)
            committed = self.store.committed(self.run_id)
            solved = self.curriculum(committed[-1]).solved if committed else {}
            bank.reconcile(((n, self.committed_diagnoses(n)) for n in committed), solved)
            self._bank = bank
            return bank

    @cached_property
    def tracker(self) -> Tracker:
        """The run's MLflow tracker."""
        from roleagent.tracking.tracker import Tracker

        return Tracker(self.config.tracking, home.home())

    # -- the policy at a version ---------------------------------------------------------------------------------

    def learner(self, version: int) -> Learner:
        """Return the learner at a policy version; loads the committed checkpoint unless it is warm."""
        with self._lock:
            if self._learner is None:
                self._load_initial()
            if self._policy_version != version:
                assert self._learner is not None
                with tempfile.TemporaryDirectory() as folder:
                    self.store.fetch_checkpoint(self.run_id, version, Path(folder))
                    self._learner.load(Path(folder))
                self._policy_version = version
            assert self._learner is not None
            return self._learner

    @property
    def policy_tokenizer(self) -> PolicyTokenizer:
        """The tokenizer, which no update changes."""
        with self._lock:
            if self._policy is None:
                self._load_initial()
            assert self._policy is not None
            return self._policy.tokenizer

    def policy(self, version: int) -> Policy:
        """Return the policy at a version."""
        self.learner(version)
        assert self._policy is not None
        return self._policy

    def advance(self, version: int) -> None:
        """Note that the learner's weights are now those of `version`."""
        self._policy_version = version

    def engine(self, version: int) -> Engine:
        """Return the generation engine with the weights of a version.

        The engine's weights are a copy: while the learner moves on, the engine still speaks for the old policy.
        """
        from roleagent.policy.engines.factory import make_engine

        with self._lock:
            if self._engine is None or self._engine_version != version:
                policy = self.policy(version)
                if self._engine is None:
                    self._engine = make_engine(policy).snapshot()
                else:
                    self._engine.load_weights(policy.model)
                self._engine_version = version
            return self._engine

    def _load_initial(self) -> None:
        from roleagent.learning.learner import Learner
        from roleagent.policy.model import load_policy

        settings = self.config.policy
        source = settings.model
        if source.startswith("s3://"):
            folder = home.home() / "models" / hashlib.sha256(source.encode()).hexdigest()[:16]
            source = str(fetch_folder(source, folder, self.config.storage.endpoint_url))

        def load() -> Policy:
            return load_policy(
                source,
                dtype=settings.dtype,
                device=settings.device,
                gradient_checkpointing=settings.gradient_checkpointing,
            )

        self._policy = load()
        reference = load().model if self.config.learner.kl_coefficient > 0 else None
        self._learner = Learner(
            self._policy.model, reference, self.config.learner_settings, seed=self.config.seed, dtype=settings.dtype
        )
        self._policy_version = 0
        self.loaded.set()

    # -- what an iteration produced ------------------------------------------------------------------------------

    def warm(self, key: str, make: Callable[[], T]) -> T:
        """Return the warm value of a key, or make it. Values of older iterations are dropped by `forget`."""
        with self._lock:
            if key not in self._warm:
                self._warm[key] = make()
            return self._warm[key]  # type: ignore[return-value]

    def keep(self, key: str, value: object) -> None:
        """Keep a value warm."""
        with self._lock:
            self._warm[key] = value

    def forget(self, *, before: int) -> None:
        """Drop the warm values of iterations before `before`."""
        with self._lock:
            self._warm = {key: value for key, value in self._warm.items() if int(key.rpartition("/")[2]) >= before}

    # -- the objects of an iteration -----------------------------------------------------------------------------

    def writer(self, n: int) -> IterationWriter:
        """Return a writer of iteration n's objects, guarded by the lease if this process holds it."""
        return IterationWriter(self.store.store, self.run_id, n, self.lease)

    def staged(self, n: int, name: str) -> bytes:
        """Return an object of iteration n, whether or not the iteration is committed yet."""
        return self.store.store.get(iteration_key(self.run_id, n, name))

    def trajectories(self, n: int) -> list[Trajectory]:
        """Return the trajectories of iteration n."""
        from roleagent.rollout.records import read_trajectories

        return self.warm(f"trajectories/{n}", lambda: read_trajectories(self.staged(n, "trajectories.parquet")))

    def diagnoses(self, n: int) -> list[Diagnosis]:
        """Return the diagnoses of iteration n."""
        from roleagent.rollout.records import read_diagnoses

        return self.warm(f"diagnoses/{n}", lambda: read_diagnoses(self.staged(n, "diagnoses.parquet")))

    def committed_diagnoses(self, n: int) -> list[Diagnosis]:
        """Read the diagnoses of iteration n; none at iteration 0, or when Agent-In-World is off."""
        from roleagent.rollout.records import read_diagnoses

        if n == 0 or not self.config.agent_in_world.enabled:
            return []
        return read_diagnoses(self.store.read(self.run_id, n, "diagnoses.parquet"))

    def scored(self, n: int) -> ScoredBatch:
        """Return the rewards and advantages of iteration n.

        A pure function of its trajectories and, with a value head, of the policy version that played them.
        """
        from roleagent.learning.scoring import score_batch

        return self.warm(f"scored/{n}", lambda: score_batch(self.trajectories(n), self.config, self.values(n)))

    def values(self, n: int) -> dict[str, Array] | None:
        """Return V(s_t) of every step of iteration n by trajectory id, [T]; None without a value head."""
        from roleagent.learning.packing import join_values, value_sequences

        if not self.config.learner.value_coefficient:
            return None
        trajectories = self.trajectories(n)
        sequences = value_sequences(trajectories)
        return join_values(trajectories, sequences, self.learner(n - 1).values(sequences))

    def curriculum(self, n: int) -> TaskDistribution:
        """Return the task distribution as iteration n left it."""
        import json

        from roleagent.agent_in_world.curriculum import TaskDistribution

        def load() -> TaskDistribution:
            distribution = TaskDistribution(sorted(self.training_tasks), self.config.agent_in_world)
            if n > 0:
                distribution.load_state_dict(json.loads(self.store.read(self.run_id, n, "curriculum.json")))
            return distribution

        return self.warm(f"curriculum/{n}", load)


_workers: dict[tuple[str, str], Worker] = {}
_workers_lock = threading.Lock()


def get_worker(run_id: str, store_uri: str, endpoint_url: str = "") -> Worker:
    """Return this process's worker for a run; it is made when first asked for."""
    with _workers_lock:
        key = (run_id, store_uri)
        if key not in _workers:
            _workers.clear()  # one run at a time stays warm: a second policy would double the memory
            _workers[key] = Worker(run_id, store_uri, endpoint_url)
        return _workers[key]


def drop_workers() -> None:
    """Forget everything warm in this process."""
    with _workers_lock:
        _workers.clear()


def peak_memory_mb() -> float:
    """Return the largest resident size of this process so far, in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024) if sys.platform == "darwin" else peak / 1024


class Stopwatch:
    """Wall seconds of a block: `with Stopwatch() as watch: ...; watch.seconds`."""

    seconds: float = 0.0

    def __enter__(self) -> Stopwatch:
        self._began = time.perf_counter()
        return self

    def __exit__(self, *exception: object) -> None:
        self.seconds = time.perf_counter() - self._began
