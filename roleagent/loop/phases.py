"""The phases of an iteration, each a plain function of a worker and an iteration number.

sample -> roll out -> validate -> score -> update (beside it: diagnose -> reshape) -> evaluate -> commit -> publish.
A phase writes its objects into the iteration's folder and returns what small values later phases need; what is not
committed never happened, so a phase may be run again at any time before its commit. METHOD 3 fixes the order.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from roleagent.loop import sampling
from roleagent.loop.events import listener
from roleagent.loop.phase_metrics import named, played_tasks, success_by_source
from roleagent.loop.statistics import success_rate
from roleagent.loop.worker import Stopwatch, Worker, peak_memory_mb
from roleagent.storage import ObjectRecord
from roleagent.types import DiagnosisStatus, DrawnTask, Task, Trajectory

if TYPE_CHECKING:
    from roleagent.quality import QualityReport
    from roleagent.rollout.meter import RolloutMeter


@dataclass(frozen=True, slots=True)
class PhaseResult:
    """What a phase hands on: the objects it wrote, its metrics, its wall seconds."""

    phase: str
    seconds: float
    metrics: dict[str, float] = field(default_factory=dict)
    objects: tuple[ObjectRecord, ...] = ()


def draw_tasks(worker: Worker, n: int) -> list[DrawnTask]:
    """Draw the K distinct tasks of iteration n from the distribution that iteration n - 1 left.

    With dynamic sampling those in reserve follow them.
    """
    config = worker.config
    listener().phase_started(n, "sample tasks")
    distribution = worker.curriculum(n - 1)
    count = sampling.tasks_to_draw(config, len(worker.training_tasks))
    draws = distribution.draw(count, seed=config.seed, iteration=n)
    drawn = [DrawnTask(worker.training_tasks[draw.task_id], draw.source, draw.probability) for draw in draws]
    from roleagent.quality import validate_tasks

    report = validate_tasks(drawn, count=count, environment=config.environment.name)
    _check(worker, n, report)
    return drawn


def roll_out(worker: Worker, n: int, drawn: Sequence[DrawnTask]) -> PhaseResult:
    """Play the group of every drawn task with policy version n - 1; write `trajectories.parquet`."""
    from roleagent.rollout.meter import RolloutMeter
    from roleagent.rollout.metrics import rollout_metrics
    from roleagent.rollout.records import write_trajectories

    config = worker.config
    meter = RolloutMeter()
    with Stopwatch() as watch:

        def play(items: Sequence[DrawnTask]) -> list[Trajectory]:
            episodes = [(item.task, sample) for item in items for sample in range(config.rollout.group_size)]
            return _play(worker, n, n - 1, episodes, "rollout", config.rollout.temperature, "roll out", meter=meter)

        trajectories = sampling.play_rounds(drawn, play, config)
        record = worker.writer(n).put("trajectories.parquet", write_trajectories(trajectories))
    worker.keep(f"trajectories/{n}", trajectories)
    metrics = named(rollout_metrics(trajectories), "train", "rollout")
    metrics |= {f"rollout_time/{name}": value for name, value in meter.metrics().items()}
    metrics["rollout/tokens_per_second"] = metrics["rollout/tokens_generated"] / max(watch.seconds, 1e-9)
    played = played_tasks(drawn, trajectories)
    relevance = sum(item.source == "relevance" for item in played)
    metrics["curriculum/drawn_by_relevance"] = relevance / len(played)
    metrics |= success_by_source(played, trajectories)
    metrics["rollout/informative_share"] = len(sampling.informative_tasks(trajectories)) / len(played)
    metrics["rollout/tasks"] = float(len(played))
    return PhaseResult("rollout", watch.seconds, metrics, (record,))


def validate_rollout(worker: Worker, n: int) -> PhaseResult:
    """Hold the trajectories against their expectations; a critical violation stops the iteration."""
    from roleagent.quality import validate_trajectories

    listener().phase_started(n, "validate")
    with Stopwatch() as watch:
        report = validate_trajectories(
            worker.trajectories(n),
            config=worker.config.quality,
            reward_range=worker.environment.reward_range,
            group_size=worker.config.rollout.group_size,
            max_steps=worker.config.environment.max_steps,
            horizon=worker.config.horizon,
            iteration=n,
            policy_version=n - 1,
        )
        records = _check(worker, n, report)
    return PhaseResult("validation", watch.seconds, report.metrics(), records)


def score(worker: Worker, n: int) -> PhaseResult:
    """Match predictions, modulate rewards, compute advantages (World-In-Agent)."""
    listener().phase_started(n, "score")
    with Stopwatch() as watch:
        scored = worker.scored(n)
    return PhaseResult("scoring", watch.seconds, dict(scored.metrics))


def update(worker: Worker, n: int) -> PhaseResult:
    """Update the policy from version n - 1 to n and write its checkpoint."""
    from roleagent.learning.packing import to_sequences

    config = worker.config
    listener().phase_started(n, "update")
    with Stopwatch() as watch:
        scored = worker.scored(n)
        learner = worker.learner(n - 1)
        worker.advance(-1)  # until it is through, its weights are those of no version
        sequences = to_sequences(
            sampling.trained(worker.trajectories(n), config),
            scored.step_advantages,
            values=scored.values,
            value_targets=scored.value_targets,
            overlong_mask=config.learner.overlong_mask,
        )
        metrics = learner.update(
            sequences,
            temperature=config.rollout.temperature,
            iteration=n,
            learning_rate_factor=config.learning_rate_factor(n),
        )
        worker.advance(n)
    with Stopwatch() as saving:
        records = _save_checkpoint(worker, n)
    return PhaseResult("update", watch.seconds, {**metrics, "seconds/checkpoint": saving.seconds}, records)


def diagnose(worker: Worker, n: int) -> PhaseResult:
    """Let the model that played, as the environment, diagnose its failures; write `diagnoses.parquet`."""
    from roleagent.agent_in_world.accuracy import agreement, verdicts
    from roleagent.agent_in_world.diagnosis import diagnose as diagnose_failures
    from roleagent.rollout.records import write_diagnoses

    config = worker.config
    with Stopwatch() as watch:
        engine = worker.engine(n - 1)
        batch = diagnose_failures(
            engine,
            worker.policy_tokenizer,
            worker.trajectories(n),
            config=config.agent_in_world,
            run_id=worker.run_id,
            seed=config.seed,
            iteration=n,
            instructions=config.policy.instructions,
            max_context=min(config.policy.max_context, engine.max_context),
        )
        record = worker.writer(n).put("diagnoses.parquet", write_diagnoses(batch.diagnoses))
        known = verdicts(worker.environment, worker.trajectories(n), batch.diagnoses)
        metrics = {f"diagnosis/{name}": value for name, value in batch.metrics.items()}
        metrics |= agreement(batch.diagnoses, known)
    worker.keep(f"diagnoses/{n}", list(batch.diagnoses))
    return PhaseResult("diagnosis", watch.seconds, metrics, (record,))


def validate_diagnoses(worker: Worker, n: int) -> PhaseResult:
    """Hold the diagnoses against their expectations."""
    from roleagent.quality import validate_diagnoses as validate

    with Stopwatch() as watch:
        report = validate(worker.diagnoses(n), worker.trajectories(n), config=worker.config.quality, iteration=n)
        records = _check(worker, n, report)
    return PhaseResult("diagnosis_validation", watch.seconds, report.metrics(), records)


def reshape(worker: Worker, n: int) -> PhaseResult:
    """Retrieve similar failures from the bank and reshape the task distribution; write `curriculum.json`.

    The bank holds the committed failures, those of iterations before n: what is retrieved does not depend on
    whether the iteration is being repeated.
    """
    from roleagent.agent_in_world.retrieval import retrieve

    config = worker.config
    with Stopwatch() as watch:
        distribution = worker.curriculum(n - 1).copy()
        results: dict[str, list[bool]] = {}
        for trajectory in worker.trajectories(n):
            results.setdefault(trajectory.task.task_id, []).append(trajectory.success)
        distribution.observe({task_id: sum(wins) / len(wins) for task_id, wins in results.items()})
        metrics: dict[str, float] = {}
        if config.agent_in_world.enabled:
            retrieved = retrieve(
                worker.bank,
                worker.diagnoses(n),
                config=config.agent_in_world,
                engine=worker.engine(n - 1) if config.agent_in_world.model_selects else None,
                tokenizer=worker.policy_tokenizer if config.agent_in_world.model_selects else None,
                seed=config.seed,
                iteration=n,
            )
            distribution.add_relevance(retrieved.relevance)
            valid = sum(diagnosis.status is DiagnosisStatus.VALID for diagnosis in worker.diagnoses(n))
            metrics["bank/size"] = float(worker.bank.count + valid)
            metrics["bank/added"] = float(valid)
            metrics |= {f"retrieval/{name}": value for name, value in retrieved.metrics.items()}
        distribution.end_iteration()
        state = json.dumps(distribution.state_dict(), sort_keys=True).encode()
        record = worker.writer(n).put("curriculum.json", state)
    worker.keep(f"curriculum/{n}", distribution)
    metrics |= {f"curriculum/{name}": value for name, value in distribution.metrics().items()}
    return PhaseResult("reshaping", watch.seconds, metrics, (record,))


def evaluate(worker: Worker, n: int, *, final: bool) -> PhaseResult:
    """Play held-out tasks with policy version n.

    The same tasks with the same random streams at every evaluation: differences are the policy's.
    """
    from roleagent.rollout.metrics import rollout_metrics
    from roleagent.world_in_agent.reward import mean_match

    config = worker.config
    count = config.evaluation.final_tasks if final else config.evaluation.tasks
    with Stopwatch() as watch:
        tasks = worker.environment.tasks("heldout")[:count]
        trajectories = _play(
            worker,
            0,
            n,
            [(task, 0) for task in tasks],
            "evaluation",
            config.evaluation.temperature,
            "evaluate",
            shown=n,
        )
        rate = success_rate(sum(trajectory.success for trajectory in trajectories), len(trajectories))
    metrics = named(rollout_metrics(trajectories), "heldout", "heldout")
    metrics |= {"heldout/low": rate.low, "heldout/high": rate.high, "heldout/n": float(rate.n)}
    if config.world_in_agent.enabled:
        metrics["match/heldout"] = mean_match(trajectories, config.world_in_agent.matching, config.horizon)
    worker.keep(f"heldout/{n}", trajectories)
    return PhaseResult("evaluation", watch.seconds, metrics)


def commit(worker: Worker, n: int, results: Sequence[PhaseResult], drawn: Sequence[DrawnTask] = ()) -> dict[str, float]:
    """Write `metrics.json` and then, in one atomic write, the manifest: the iteration has happened."""
    metrics: dict[str, float] = {"iteration": float(n)}
    objects: list[ObjectRecord] = []
    seconds: dict[str, float] = {}
    for result in results:
        metrics |= result.metrics
        objects += result.objects
        seconds[result.phase] = seconds.get(result.phase, 0.0) + result.seconds
    checkpoint = metrics.pop("seconds/checkpoint", 0.0)
    seconds["storage"] = seconds.get("storage", 0.0) + checkpoint
    metrics |= {f"seconds/{phase}": value for phase, value in seconds.items()}
    metrics["memory/peak_mb"] = peak_memory_mb()
    played = played_tasks(drawn, worker.trajectories(n)) if drawn else []
    failure_types: dict[str, int] = {}
    if n > 0 and worker.config.agent_in_world.enabled:
        for diagnosis in worker.diagnoses(n):
            if diagnosis.failure_type:
                failure_types[diagnosis.failure_type] = failure_types.get(diagnosis.failure_type, 0) + 1
    record = {
        "metrics": metrics,
        "failure_types": failure_types,
        "tasks": [{"task_id": item.task.task_id, "source": item.source, "p": item.probability} for item in played],
    }
    writer = worker.writer(n)
    for written in objects:
        writer.add(written)
    writer.put("metrics.json", json.dumps(record, sort_keys=True).encode())
    writer.commit(policy_version=n, seed=worker.config.seed)
    return metrics


def prepare(worker: Worker) -> list[PhaseResult]:
    """Iteration 0: the state before training (initial checkpoint, uniform curriculum, first evaluation)."""
    listener().phase_started(0, "load the policy")
    with Stopwatch() as loading:
        worker.learner(0)
    with Stopwatch() as watch:
        records = _save_checkpoint(worker, 0)
        state = json.dumps(worker.curriculum(0).state_dict(), sort_keys=True).encode()
        curriculum = worker.writer(0).put("curriculum.json", state)
    return [
        PhaseResult("loading", loading.seconds),
        PhaseResult("storage", watch.seconds, {}, (*records, curriculum)),
        evaluate(worker, 0, final=True),
    ]


def _play(
    worker: Worker,
    n: int,
    version: int,
    episodes: Sequence[tuple[Task, int]],
    purpose: str,
    temperature: float,
    phase: str,
    shown: int | None = None,
    meter: RolloutMeter | None = None,
) -> list[Trajectory]:
    from roleagent.rollout.loop import collect
    from roleagent.rollout.settings import settings_from_config

    iteration = n if shown is None else shown
    listener().phase_started(iteration, phase)
    engine = worker.engine(version)
    return collect(
        engine,
        worker.policy_tokenizer,
        worker.make_environment,
        episodes,
        settings_from_config(worker.config, temperature=temperature, max_context=engine.max_context),
        iteration=n,
        policy_version=version,
        seed=worker.config.seed,
        purpose=purpose,
        on_progress=lambda done, total: listener().phase_progress(iteration, phase, done, total),
        meter=meter,
    )


def _save_checkpoint(worker: Worker, n: int) -> tuple[ObjectRecord, ...]:
    with TemporaryDirectory() as folder:
        worker.learner(n).save(Path(folder))
        worker.policy_tokenizer.hf.save_pretrained(folder)  # so that a checkpoint is a model folder like any other
        return tuple(worker.writer(n).put_folder("checkpoint", Path(folder)))


def _check(worker: Worker, n: int, report: QualityReport) -> tuple[ObjectRecord, ...]:
    """Save offending rows; stop at a critical violation, tell of a warning."""
    if report.ok and not report.warnings:
        return ()
    writer = worker.writer(n)
    record = writer.put(f"violations-{report.table}.parquet", report.offending_parquet())
    report.raise_if_critical(writer.uri(record.name))
    for violation in report.warnings:
        listener().notice(f"iteration {n}: {report.table}: {violation.line()}")
    return (record,)


__all__ = [
    "PhaseResult",
    "commit",
    "diagnose",
    "draw_tasks",
    "evaluate",
    "prepare",
    "reshape",
    "roll_out",
    "score",
    "update",
    "validate_diagnoses",
    "validate_rollout",
]
