"""Evaluating a run's policy outside of training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from roleagent.errors import ConfigError
from roleagent.loop.events import listener
from roleagent.loop.statistics import Rate, success_rate
from roleagent.loop.worker import Worker
from roleagent.types import Trajectory

if TYPE_CHECKING:
    from roleagent.policy.engines.base import Engine
    from roleagent.policy.model import Policy


_TASKS = 200


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Success of one policy version on held-out tasks."""

    run_id: str
    iteration: int
    temperature: float
    seed: int
    rate: Rate
    by_type: dict[str, Rate]
    trajectories: tuple[Trajectory, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-able mapping, without the episodes."""
        return {
            "run_id": self.run_id,
            "iteration": self.iteration,
            "temperature": self.temperature,
            "seed": self.seed,
            **self.rate.as_dict(),
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
    count = min(_TASKS, len(worker.environment.tasks("heldout"))) if tasks is None else tasks
    return _evaluate(worker, worker.engine(version), version, count, temperature, seed)


def evaluate_policy(
    worker: Worker, policy: Policy, *, tasks: int, version: int, temperature: float | None = None
) -> Evaluation:
    """Play the same held-out tasks, with the run's random streams, with a policy from elsewhere."""
    from roleagent.policy.engines.factory import make_engine

    return _evaluate(worker, make_engine(policy), version, tasks, temperature, None)


def _evaluate(
    worker: Worker, engine: Engine, version: int, tasks: int, temperature: float | None, seed: int | None
) -> Evaluation:
    from roleagent.rollout.loop import collect
    from roleagent.rollout.settings import settings_from_config

    pool = worker.environment.tasks("heldout")
    if tasks > len(pool):
        raise ConfigError(f"{tasks} held-out tasks were asked for; the environment has {len(pool)}")
    heat = worker.config.evaluation.temperature if temperature is None else temperature
    number = worker.config.seed if seed is None else seed
    listener().phase_started(version, "evaluate")
    trajectories = collect(
        engine,
        worker.policy_tokenizer,
        worker.make_environment,
        [(task, 0) for task in pool[:tasks]],
        settings_from_config(worker.config, temperature=heat, max_context=engine.max_context),
        iteration=0,
        policy_version=version,
        seed=number,
        purpose="evaluation",
    )
    grouped: dict[str, list[bool]] = {}
    for trajectory in trajectories:
        grouped.setdefault(trajectory.task.task_type, []).append(trajectory.success)
    return Evaluation(
        worker.run_id,
        version,
        heat,
        number,
        success_rate(sum(t.success for t in trajectories), len(trajectories)),
        {name: success_rate(sum(wins), len(wins)) for name, wins in sorted(grouped.items())},
        tuple(trajectories),
    )
