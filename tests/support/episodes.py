"""Steps and episodes for tests: what a test does not speak of is empty."""

from __future__ import annotations

from typing import Any

from roleagent.types import Step, StopReason, Task, Trajectory

_STEP: dict[str, Any] = {
    "state": "s",
    "reasoning": "",
    "action": "a",
    "predictions": (),
    "reward": 0.0,
    "valid_action": True,
    "malformed": False,
    "truncated": False,
    "context_ids": (),
    "generated_ids": (),
    "logprobs": (),
}


def make_step(index: int, **given: Any) -> Step:
    """Step `index`, from 1; a valid one without tokens, which continues the one before it."""
    return Step(**{**_STEP, "index": index, "continues": index > 1, **given})


def make_episode(steps: tuple[Step, ...], *, task: str = "task", success: bool = False, **given: Any) -> Trajectory:
    """An episode of a task; one that failed ran out of steps."""
    fields: dict[str, Any] = {
        "trajectory_id": "t",
        "task": Task(task, "household", "pick", "train"),
        "goal": "g",
        "iteration": 0,
        "policy_version": 0,
        "sample_index": 0,
        "steps": steps,
        "final_state": "s",
        "success": success,
        "score": float(success),
        "stop_reason": StopReason.SUCCESS if success else StopReason.MAX_STEPS,
    }
    return Trajectory(**{**fields, **given})
