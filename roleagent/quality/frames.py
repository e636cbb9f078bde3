"""Tables for the suites, built from the records: one row a step, a diagnosis, or a drawn task.

A column says "does not apply" by NaN, which expectations on values leave out. An empty id becomes missing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from roleagent.types import Diagnosis, DiagnosisStatus, DrawnTask, StopReason, Trajectory

if TYPE_CHECKING:
    import pandas as pd

NAN = math.nan
_FAULTS = frozenset({StopReason.ENVIRONMENT_ERROR, StopReason.ENVIRONMENT_TIMEOUT})
_MAY_BE_EMPTY = _FAULTS | {StopReason.CONTEXT_FULL}


def task_frame(drawn: Sequence[DrawnTask]) -> pd.DataFrame:
    """Return one row a drawn task: task_id, environment, task_type, split, source, probability."""
    import pandas as pd

    return pd.DataFrame(
        {
            "task_id": _ids(item.task.task_id for item in drawn),
            "environment": [item.task.environment for item in drawn],
            "task_type": _ids(item.task.task_type for item in drawn),
            "split": [item.task.split for item in drawn],
            "source": [str(item.source) for item in drawn],
            "probability": [float(item.probability) for item in drawn],
        }
    )


def trajectory_frame(trajectories: Sequence[Trajectory]) -> pd.DataFrame:
    """Return one row a step, in order; an episode without steps has one row with step 0.

    Columns of the episode: trajectory_id, task_id, sample_index, iteration, policy_version, steps (T; NaN if T = 0 for
    a reason), group_size, stop_reason, success, stopped_in_success, score, and, in its first row only (else NaN),
    environment_fault (1 or 0).
    Columns of the step (NaN in an episode without steps, where values are counted): step (t), position (1, 2, ... in
    the episode), reward, malformed and without_action (1 or 0), predictions (H), state_length, generated_tokens,
    logprobs (how many), logprob_sum (NaN if one is not finite), logprob_max.
    """
    import pandas as pd

    sizes = Counter(trajectory.task.task_id for trajectory in trajectories)
    rows: list[tuple[object, ...]] = []
    for trajectory in trajectories:
        count = len(trajectory.steps)
        reason = trajectory.stop_reason
        episode = (
            trajectory.trajectory_id or None,
            trajectory.task.task_id or None,
            trajectory.sample_index,
            trajectory.iteration,
            trajectory.policy_version,
            float(count) if count or reason not in _MAY_BE_EMPTY else NAN,
            sizes[trajectory.task.task_id],
            str(reason),
            float(trajectory.success),
            float(reason == StopReason.SUCCESS),
            float(trajectory.score),
        )
        fault = float(reason in _FAULTS)
        if not count:
            rows.append((*episode, fault, 0, 0, 0.0, 0.0, 0.0, NAN, NAN, NAN, NAN, 0.0, NAN))
        for position, step in enumerate(trajectory.steps, start=1):
            total = math.fsum(step.logprobs) if all(map(math.isfinite, step.logprobs)) else NAN
            rows.append(
                (
                    *episode,
                    fault if position == 1 else NAN,
                    step.index,
                    position,
                    float(step.reward),
                    float(step.malformed),
                    float(not step.action),
                    float(len(step.predictions)),
                    float(len(step.state)),
                    float(len(step.generated_ids)),
                    float(len(step.logprobs)),
                    total,
                    float(max(step.logprobs, default=NAN)),
                )
            )
    return pd.DataFrame(dict(zip(_TRAJECTORY_COLUMNS, zip(*rows, strict=True), strict=True)) if rows else {})


_TRAJECTORY_COLUMNS = (
    "trajectory_id",
    "task_id",
    "sample_index",
    "iteration",
    "policy_version",
    "steps",
    "group_size",
    "stop_reason",
    "success",
    "stopped_in_success",
    "score",
    "environment_fault",
    "step",
    "position",
    "reward",
    "malformed",
    "without_action",
    "predictions",
    "state_length",
    "generated_tokens",
    "logprobs",
    "logprob_sum",
    "logprob_max",
)


def diagnosis_frame(diagnoses: Sequence[Diagnosis], trajectories: Mapping[str, Trajectory]) -> pd.DataFrame:
    """Return one row a diagnosis.

    Args:
        diagnoses: valid and quarantined ones.
        trajectories: this iteration's, by id.

    Columns: record_id, trajectory_id, task_id, status, quarantined (1 or 0), failed (1 if the trajectory is one of
    this iteration's failures), same_task (1 if the trajectory is of that task), iteration, policy_version, attempts;
    for valid ones, else NaN: failure_type_length, root_cause_length, lesson_length, retrieval_query_length (characters
    without white space around), critical_step and steps (T); for quarantined ones, else NaN: error_length.
    """
    import pandas as pd

    rows = []
    for item in diagnoses:
        valid = item.status == DiagnosisStatus.VALID
        trajectory = trajectories.get(item.trajectory_id)
        rows.append(
            {
                "record_id": item.record_id,
                "trajectory_id": item.trajectory_id or None,
                "task_id": item.task_id or None,
                "status": str(item.status),
                "quarantined": float(item.status == DiagnosisStatus.QUARANTINED),
                "failed": float(trajectory is not None and not trajectory.success),
                "same_task": float(trajectory is not None and trajectory.task.task_id == item.task_id),
                "iteration": item.iteration,
                "policy_version": item.policy_version,
                "attempts": item.attempts,
                "failure_type_length": _length(item.failure_type) if valid else NAN,
                "root_cause_length": _length(item.root_cause) if valid else NAN,
                "lesson_length": _length(item.lesson) if valid else NAN,
                "retrieval_query_length": _length(item.retrieval_query) if valid else NAN,
                "critical_step": float(item.critical_step) if valid else NAN,
                "steps": float(len(trajectory.steps)) if valid and trajectory is not None else NAN,
                "error_length": NAN if valid else _length(item.error),
            }
        )
    return pd.DataFrame(rows)


def _ids(values: Iterable[str]) -> list[str | None]:
    return [value or None for value in values]


def _length(text: str) -> float:
    return float(len(text.strip()))
