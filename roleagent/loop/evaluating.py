"""Evaluating a policy outside of training: a run's, or any model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from roleagent.errors import ConfigError
from roleagent.loop.events import listener
from roleagent.loop.statistics import Rate, success_rate
from roleagent.loop.worker import Worker
from roleagent.types import Task, Trajectory

if TYPE_CHECKING:
    from roleagent.config import TrainConfig
    from roleagent.environments.base import Environment
    from roleagent.policy.engines.base import Engine
    from roleagent.policy.model import Policy
    from roleagent.policy.tokens import PolicyTokenizer


_TASKS = 200


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Success of one policy version on held-out tasks."""

    run_id: str  #: or the model's name, if no run made it
    iteration: int
    temperature: float
    seed: int
    rate: Rate
    by_type: dict[str, Rate]
    trajectories: tuple[Trajectory, ...]

    @property
    def steps_to_success(self) -> float | None:
        """Mean steps of the episodes that succeeded; none if none did."""
        steps = [len(trajectory.steps) for trajectory in self.trajectories if trajectory.success]
        return sum(steps) / len(steps) if steps else None

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-able mapping, without the episodes."""
        return {
            "run_id": self.run_id,
            "iteration": self.iteration,
            "temperature": self.temperature,
            "seed": self.seed,
            **self.rate.as_dict(),
            "steps_to_success": self.steps_to_success,
            "by_type": {name: rate.as_dict() for name, rate in self.by_type.items()},
        }


def committed_version(worker: Worker, iteration: int) -> int:
    """Return `iteration` if it is committed, the newest valid one for -1.

    Raises:
        ConfigError: there is no such commit.
    """
    if iteration >= 0:
        if iteration not in worker.store.committed(worker.run_id):
            raise ConfigError(f"run {worker.run_id} has no committed iteration {iteration}")
        return iteration
    manifest = worker.store.latest_valid(worker.run_id, verify=False)
    if manifest is None:
        raise ConfigError(f"run {worker.run_id} has no committed iteration yet")
    return manifest.iteration


def evaluate_run(
    worker: Worker,
    *,
    iteration: int = -1,
    tasks: int | None = None,
    temperature: float | None = None,
    seed: int | None = None,
) -> Evaluation:
    """Play the first `tasks` held-out tasks (200, or all there are) once each with a committed policy version.

    With the run's own temperature and seed this repeats the run's evaluation: same tasks, same random streams.
    """
    version = committed_version(worker, iteration)
    _count(worker.environment.tasks("heldout"), tasks)  # loading a model takes longer
    return _evaluate(_Subject.of(worker, worker.engine(version), version), tasks, temperature, seed)


def evaluate_policy(
    worker: Worker, policy: Policy, *, tasks: int, version: int, temperature: float | None = None
) -> Evaluation:
    """Play the same held-out tasks, with the run's random streams, with a policy from elsewhere."""
    from roleagent.policy.engines.factory import make_engine

    return _evaluate(_Subject.of(worker, make_engine(policy), version), tasks, temperature, None)


def evaluate_model(
    config: TrainConfig, *, tasks: int | None = None, temperature: float | None = None, seed: int | None = None
) -> Evaluation:
    """Play held-out tasks of a configuration's environment with its model, which no run has trained.

    With the configuration's own temperature and seed this is the evaluation that a run of it makes before training.

    Raises:
        ConfigError: the environment or its options are unknown, or it has fewer tasks.
        PolicyError: the model cannot be loaded.
    """
    from roleagent.environments.registry import make_environment
    from roleagent.policy.engines.factory import make_engine
    from roleagent.policy.model import load_policy

    def make() -> Environment:
        return make_environment(config.environment.name, **config.environment.options)

    pool = make().tasks("heldout")
    _count(pool, tasks)
    policy = load_policy(config.policy.model, config.policy.dtype, config.policy.device)
    subject = _Subject(config.policy.model, config, 0, make_engine(policy), policy.tokenizer, make, pool)
    return _evaluate(subject, tasks, temperature, seed)


@dataclass(frozen=True, slots=True)
class _Subject:
    """What is evaluated, and where."""

    name: str
    config: TrainConfig
    version: int
    engine: Engine
    tokenizer: PolicyTokenizer
    make_environment: Callable[[], Environment]
    pool: Sequence[Task]

    @classmethod
    def of(cls, worker: Worker, engine: Engine, version: int) -> _Subject:
        pool = worker.environment.tasks("heldout")
        return cls(
            worker.run_id, worker.config, version, engine, worker.policy_tokenizer, worker.make_environment, pool
        )


def _evaluate(subject: _Subject, tasks: int | None, temperature: float | None, seed: int | None) -> Evaluation:
    from roleagent.rollout.loop import collect
    from roleagent.rollout.settings import settings_from_config

    pool, config = subject.pool, subject.config
    count = _count(pool, tasks)
    heat = config.evaluation.temperature if temperature is None else temperature
    number = config.seed if seed is None else seed
    listener().phase_started(subject.version, "evaluate")
    trajectories = collect(
        subject.engine,
        subject.tokenizer,
        subject.make_environment,
        [(task, 0) for task in pool[:count]],
        settings_from_config(config, temperature=heat, max_context=subject.engine.max_context),
        iteration=0,
        policy_version=subject.version,
        seed=number,
        purpose="evaluation",
    )
    grouped: dict[str, list[bool]] = {}
    for trajectory in trajectories:
        grouped.setdefault(trajectory.task.task_type, []).append(trajectory.success)
    return Evaluation(
        subject.name,
        subject.version,
        heat,
        number,
        success_rate(sum(t.success for t in trajectories), len(trajectories)),
        {name: success_rate(sum(wins), len(wins)) for name, wins in sorted(grouped.items())},
        tuple(trajectories),
    )


def _count(pool: Sequence[Task], tasks: int | None) -> int:
    """Return how many held-out tasks are played; ConfigError if there are not as many."""
    count = min(_TASKS, len(pool)) if tasks is None else tasks
    if count > len(pool):
        raise ConfigError(
            f"{count} held-out tasks were asked for; the environment has {len(pool)}: use --tasks {len(pool)}"
        )
    return count
