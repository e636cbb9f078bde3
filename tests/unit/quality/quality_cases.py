"""Good records, from which each test makes bad ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from roleagent.types import Diagnosis, DiagnosisStatus, DrawnTask, Step, StopReason, Task, Trajectory

GROUP_SIZE = 4
MAX_STEPS = 6
ITERATION = 3
POLICY = 2


def make_task(number: int) -> Task:
    return Task(f"task-{number}", "household", "put", "train")


def make_step(index: int, **changes: Any) -> Step:
    step = Step(
        index=index,
        state="You are in the kitchen.",
        reasoning="The mug is on the table.",
        action="go to table 1",
        predictions=("You see a mug.",),
        reward=0.0,
        valid_action=True,
        malformed=False,
        truncated=False,
        context_ids=(5, 6, 7),
        generated_ids=(1, 2, 3),
        logprobs=(-0.5, 0.0, -2.0),
        continues=index > 1,
    )
    return replace(step, **changes)


def make_trajectory(task: int, sample: int, steps: int = 5, **changes: Any) -> Trajectory:
    trajectory = Trajectory(
        trajectory_id=f"episode-{task}-{sample}",
        task=make_task(task),
        goal="Put the mug on the desk.",
        iteration=ITERATION,
        policy_version=POLICY,
        sample_index=sample,
        steps=tuple(make_step(index) for index in range(1, steps + 1)),
        final_state="You are in the hall.",
        success=False,
        score=0.0,
        stop_reason=StopReason.MAX_STEPS,
    )
    return replace(trajectory, **changes)


def make_batch(tasks: int = 3) -> list[Trajectory]:
    return [make_trajectory(task, sample) for task in range(tasks) for sample in range(GROUP_SIZE)]


def make_drawn(count: int = 3) -> list[DrawnTask]:
    return [DrawnTask(make_task(number), "uniform", 0.25) for number in range(count)]


def make_diagnosis(task: int, sample: int = 0, **changes: Any) -> Diagnosis:
    diagnosis = Diagnosis(
        trajectory_id=f"episode-{task}-{sample}",
        task_id=f"task-{task}",
        environment="household",
        run_id="quick-1",
        iteration=ITERATION,
        policy_version=POLICY,
        status=DiagnosisStatus.VALID,
        failure_type="repeated search",
        root_cause="The agent looked into one drawer again and again.",
        critical_step=2,
        lesson="Search each place once.",
        retrieval_query="object search without memory",
    )
    return replace(diagnosis, **changes)


def with_step(trajectory: Trajectory, index: int, **changes: Any) -> Trajectory:
    """The trajectory with another step `index` (from 1)."""
    steps = list(trajectory.steps)
    steps[index - 1] = replace(steps[index - 1], **changes)
    return replace(trajectory, steps=tuple(steps))
