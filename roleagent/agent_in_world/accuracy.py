"""How often diagnoses agree with what the environment knows: metrics, and nothing else.

An environment that `Explains` says of every failed episode why it failed. Diagnoses are made, stored and used without
it; here, after they are made, they are compared. The definitions are in docs/diagnosis-accuracy.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from roleagent.agent_in_world.parsing import normalise_label
from roleagent.environments.base import Explains, Verdict
from roleagent.types import Diagnosis, DiagnosisStatus, Trajectory

NEAR = 1  #: steps by which a critical step may differ to count as near


def verdicts(
    environment: object, trajectories: Sequence[Trajectory], diagnoses: Sequence[Diagnosis]
) -> dict[str, Verdict]:
    """Return what the environment knows of every validly diagnosed episode, by trajectory id.

    Empty where the environment does not explain. An episode that it holds for won is left out.
    """
    if not isinstance(environment, Explains):
        return {}
    wanted = {item.trajectory_id for item in diagnoses if item.status is DiagnosisStatus.VALID}
    found: dict[str, Verdict] = {}
    for trajectory in trajectories:
        if trajectory.trajectory_id in wanted and trajectory.steps:
            verdict = environment.explain(trajectory.task.task_id, [step.action for step in trajectory.steps])
            if verdict is not None:
                found[trajectory.trajectory_id] = verdict
    return found


def agreement(diagnoses: Sequence[Diagnosis], known: Mapping[str, Verdict]) -> dict[str, float]:
    """Return how far diagnoses agree with verdicts; shares are of the `checked` ones, and missing where there are none.

    Args:
        diagnoses: those of an iteration; only valid ones count.
        known: verdicts by trajectory id.

    Returns:
        `diagnosis/checked` (compared), `diagnosis/unexplained` (no type of the environment's holds: not compared),
        `diagnosis/type_accuracy`, `diagnosis/type_accuracy_lenient`, `diagnosis/critical_step_accuracy`,
        `diagnosis/critical_step_near`, `diagnosis/critical_step_lenient`, and `engine_types/<type>`: how many of the
        compared episodes failed in this way, by the environment. Nothing without verdicts.
    """
    pairs = [
        (diagnosis, known[diagnosis.trajectory_id])
        for diagnosis in diagnoses
        if diagnosis.status is DiagnosisStatus.VALID and diagnosis.trajectory_id in known
    ]
    if not pairs:
        return {}
    checked = [(diagnosis, verdict) for diagnosis, verdict in pairs if verdict.failure_type]
    metrics = {"diagnosis/checked": float(len(checked)), "diagnosis/unexplained": float(len(pairs) - len(checked))}
    if not checked:
        return metrics
    hits: Counter[str] = Counter()
    for diagnosis, verdict in checked:
        named = normalise_label(diagnosis.failure_type)
        exact = named == normalise_label(verdict.failure_type)
        hits["type_accuracy"] += exact
        hits["type_accuracy_lenient"] += exact or named in map(normalise_label, verdict.also)
        distance = abs(diagnosis.critical_step - verdict.critical_step)
        hits["critical_step_accuracy"] += distance == 0
        hits["critical_step_near"] += distance <= NEAR
        hits["critical_step_lenient"] += diagnosis.critical_step in verdict.acceptable
    metrics |= {f"diagnosis/{name}": count / len(checked) for name, count in hits.items()}
    types = Counter(verdict.failure_type for _, verdict in checked)
    return metrics | {f"engine_types/{name}": float(count) for name, count in sorted(types.items())}
