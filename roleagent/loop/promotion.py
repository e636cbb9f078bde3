"""The champion: which policy the registry's alias points to, and when it moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from roleagent.config import TrainConfig
from roleagent.loop import runs
from roleagent.loop.evaluating import Evaluation, committed_version, evaluate_run
from roleagent.loop.home import home
from roleagent.loop.statistics import Rate, paired_gain_p_value
from roleagent.loop.worker import Worker
from roleagent.tracking.registry import ModelVersion

ALIAS = "champion"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of comparing a challenger with the champion."""

    model: str
    run_id: str
    version: str
    promoted: bool
    reason: str
    challenger: Rate
    champion: Rate | None
    champion_version: str
    p_value: float

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-able mapping."""
        return {
            "model": self.model,
            "run_id": self.run_id,
            "version": self.version,
            "promoted": self.promoted,
            "reason": self.reason,
            "challenger": self.challenger.as_dict(),
            "champion": self.champion.as_dict() if self.champion else None,
            "champion_version": self.champion_version,
            "p_value": self.p_value,
        }


def start_from_champion(config: TrainConfig, model: str) -> TrainConfig:
    """Return the configuration with the champion's checkpoint as its policy; unchanged if there is no champion."""
    from roleagent.tracking.tracker import Tracker

    champion = Tracker(config.tracking, home()).find_model(model, ALIAS)
    if champion is None:
        return config
    return config.model_copy(update={"policy": config.policy.model_copy(update={"model": champion.uri})})


def compare_and_promote(run_id: str, model: str, *, tasks: int, significance: float) -> Verdict:
    """Register a run's newest policy; make it champion if it is the first, or significantly better than the champion.

    Both play the same held-out tasks with the same random streams. The gain is tested by McNemar's exact test on the
    tasks that only one of them solves.
    """
    worker = runs.find_run(run_id).worker()
    tracker = worker.tracker
    tracker.start_run(worker.run_id, worker.run_id, worker.config.model_dump(mode="json"))
    champion = tracker.find_model(model, ALIAS)
    iteration = committed_version(worker, -1)
    challenger = evaluate_run(worker, iteration=iteration, tasks=tasks)
    version = tracker.register_model(model, worker.store.checkpoint_uri(worker.run_id, iteration), iteration)
    if champion is None:
        verdict = Verdict(model, run_id, version.version, True, "the first version", challenger.rate, None, "", 0.0)
    else:
        reigning = _evaluate_champion(worker, champion, tasks)
        p_value = paired_gain_p_value(_wins(reigning), _wins(challenger))
        better = p_value <= significance
        sign = "<=" if better else ">"
        verdict = Verdict(
            model,
            run_id,
            version.version,
            better,
            f"p = {p_value:.4f} {sign} {significance}",
            challenger.rate,
            reigning.rate,
            champion.version,
            p_value,
        )
    if verdict.promoted:
        tracker.set_alias(model, ALIAS, version.version)
    tracker.end("FINISHED")
    return verdict


def report(verdict: dict[str, Any]) -> str:
    """Return a verdict as Markdown."""
    challenger, champion = verdict["challenger"], verdict["champion"]
    lines = [
        f"# {verdict['model']}: version {verdict['version']} "
        + ("is the new champion" if verdict["promoted"] else "does not replace the champion"),
        f"Reason: {verdict['reason']}.",
        "| policy | held-out success | 95 % interval | tasks |",
        "|---|---|---|---|",
        f"| challenger ({verdict['run_id']}) | {challenger['success']:.1%} | {challenger['low']:.1%} to "
        f"{challenger['high']:.1%} | {challenger['n']} |",
    ]
    if champion:
        lines.append(
            f"| champion (version {verdict['champion_version']}) | {champion['success']:.1%} | {champion['low']:.1%} "
            f"to {champion['high']:.1%} | {champion['n']} |"
        )
    return "\n\n".join(lines[:2]) + "\n\n" + "\n".join(lines[2:]) + "\n"


def _wins(evaluation: Evaluation) -> Sequence[bool]:
    return [trajectory.success for trajectory in evaluation.trajectories]


def _evaluate_champion(worker: Worker, champion: ModelVersion, tasks: int) -> Evaluation:
    from roleagent.loop.evaluating import evaluate_policy
    from roleagent.policy.model import load_policy
    from roleagent.storage import fetch_folder

    with TemporaryDirectory() as folder:
        source = fetch_folder(champion.uri, Path(folder), worker.config.storage.endpoint_url)
        policy = load_policy(str(source), dtype=worker.config.policy.dtype, device=worker.config.policy.device)
        return evaluate_policy(worker, policy, tasks=tasks, version=champion.iteration)
