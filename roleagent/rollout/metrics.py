"""Numbers that describe a batch of trajectories."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from roleagent.types import StopReason
from roleagent.world_in_agent.behaviour import toggles

if TYPE_CHECKING:
    from roleagent.types import Trajectory

_FOREIGN = re.compile(r"[^\w.\- ]+")


def metric_name(text: str) -> str:
    """Return `text` with every character that a metric's name may not have replaced by "_"."""
    return _FOREIGN.sub("_", text) or "unnamed"


def _share(count: int, total: int) -> float:
    return count / total if total else 0.0


def rollout_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return the batch's metrics, without a prefix.

    Over episodes: `episodes`, `success_rate`, `success_rate/<task type>`, `score_mean`, `steps_mean`,
    `stop/<reason>` (shares that sum to 1). Over steps: `invalid_action_share` (readable but not understood or not
    possible), `malformed_share`, `truncated_share`, `turn_tokens_mean`, `action_repeat_share` (the same action as in
    the step before), `no_op_share` (the next observation equals the present one), `toggle_share` (the step goes back,
    see `roleagent.world_in_agent.behaviour`). Over tokens: `tokens_generated`
    and `tokens_total` (generated and context). Shares and means of nothing are 0.
    """
    episodes = len(trajectories)
    by_type: dict[str, list[bool]] = defaultdict(list)
    stops = dict.fromkeys(StopReason, 0)
    steps = invalid = malformed = truncated = generated = context = repeats = repeatable = no_ops = back = 0
    for trajectory in trajectories:
        by_type[trajectory.task.task_type].append(trajectory.success)
        stops[trajectory.stop_reason] += 1
        states = trajectory.states
        back += int(toggles(trajectory).sum())
        previous: str | None = None
        for position, step in enumerate(trajectory.steps):
            steps += 1
            malformed += step.malformed
            invalid += not step.valid_action and not step.malformed
            truncated += step.truncated
            generated += len(step.generated_ids)
            context += len(step.context_ids)
            no_ops += states[position] == states[position + 1]
            if previous is not None and not step.malformed:
                repeatable += 1
                repeats += step.action == previous
            previous = None if step.malformed else step.action
    metrics = {
        "episodes": float(episodes),
        "success_rate": _share(sum(trajectory.success for trajectory in trajectories), episodes),
        "score_mean": sum(trajectory.score for trajectory in trajectories) / episodes if episodes else 0.0,
        "steps_mean": _share(steps, episodes),
        "invalid_action_share": _share(invalid, steps),
        "malformed_share": _share(malformed, steps),
        "truncated_share": _share(truncated, steps),
        "turn_tokens_mean": _share(generated, steps),
        "action_repeat_share": _share(repeats, repeatable),
        "no_op_share": _share(no_ops, steps),
        "toggle_share": _share(back, steps),
        "tokens_generated": float(generated),
        "tokens_total": float(generated + context),
    }
    for task_type, outcomes in sorted(by_type.items()):
        metrics[f"success_rate/{metric_name(task_type)}"] = _share(sum(outcomes), len(outcomes))
    for reason, count in stops.items():
        metrics[f"stop/{reason.value}"] = _share(count, episodes)
    return metrics
