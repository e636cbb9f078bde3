"""Scoring a batch: predictions are compared, rewards modulated, states grouped, and every step gets its advantage.

The order is that of the formulas on docs/world-in-agent.md and docs/advantages.md. The trajectories of one task form
one group, in the order of their sample index, so the result does not depend on the order in which episodes ended.
The learner sees nothing of this but `ScoredBatch.step_advantages`.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from roleagent.config.models import TrainConfig
from roleagent.errors import ConfigError
from roleagent.learning.advantages.base import (
    SPAN,
    Estimator,
    ScoredGroup,
    ValueEstimator,
    advantages_of,
    get_estimator,
)
from roleagent.types import Trajectory
from roleagent.world_in_agent.behaviour import action_shares, behaviour_metrics
from roleagent.world_in_agent.grouping import state_groups
from roleagent.world_in_agent.reward import (
    prediction_bonus,
    prediction_matrices,
    r_pre,
    step_penalties,
    step_returns,
)

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ScoredBatch:
    """What scoring found out about a batch. The keys of the dictionaries are trajectory ids; T differs among them."""

    step_advantages: dict[str, Array]  #: A_t, [T]: the weight of every token generated in step t
    rewards: dict[str, float]  #: the trajectory reward that the estimator compared, R(tau) for role_agent
    matches: dict[str, Array]  #: r~, [T, H], NaN where there is no true state; H = 0 without World-In-Agent
    r_pre: dict[str, Array]  #: R_pre(a_t), [T]
    returns: dict[str, Array]  #: G_t, [T], not modulated
    penalties: dict[str, Array]  #: amounts >= 0 that were subtracted from step returns, [T]
    state_groups: dict[str, NDArray[np.int64]]  #: id of each step's state group within the task's group, [T]
    metrics: dict[str, float]  #: see docs/advantages.md; all finite
    values: Mapping[str, Array] | None = None  #: V(s_t), [T], as they were given; None without a value head
    value_targets: dict[str, Array] = field(default_factory=dict)  #: R_t, [T]; empty without a value head


def make_estimator(config: TrainConfig) -> Estimator:
    """Build the estimator that a configuration names, with its knobs.

    Raises:
        ConfigError: it is unknown, or there is a value head without an estimator for it, or the other way round.
    """
    estimator = get_estimator(
        config.advantage.estimator,
        {
            "alpha": config.advantage.alpha,
            "normalisation": config.advantage.normalisation,
            "weight": config.world_in_agent.weight,
            "form": config.world_in_agent.form,
            "discount": config.world_in_agent.discount,
            "gae_lambda": config.advantage.gae_lambda,
        },
    )
    if isinstance(estimator, ValueEstimator) != (config.learner.value_coefficient > 0):
        needs = (
            "needs a value head: set it above 0" if isinstance(estimator, ValueEstimator) else "uses none: set it to 0"
        )
        raise ConfigError(f"learner.value_coefficient: the estimator {config.advantage.estimator!r} {needs}")
    return estimator


def score_batch(
    trajectories: Sequence[Trajectory], config: TrainConfig, values: Mapping[str, Array] | None = None
) -> ScoredBatch:
    """Score all trajectories of one iteration.

    Args:
        trajectories: the batch, in any order; those that share a `task_id` form a group.
        config: reads `horizon`, `world_in_agent`, `advantage` and the penalties of `rollout`.
        values: trajectory id -> V(s_t), [T], for an estimator that needs them.

    Raises:
        ValueError: two trajectories have the same id, or the estimator needs values and there are none.
        ConfigError: the estimator or the matching unit is unknown.
    """
    started = time.perf_counter()
    estimator = make_estimator(config)
    groups: defaultdict[str, list[Trajectory]] = defaultdict(list)
    for run in sorted(trajectories, key=lambda run: (run.task.task_id, run.sample_index, run.trajectory_id)):
        groups[run.task.task_id].append(run)
    ordered = [run for members in groups.values() for run in members]
    if len({run.trajectory_id for run in ordered}) != len(ordered):
        raise ValueError("two trajectories of the batch have the same trajectory_id")

    matrices = prediction_matrices(ordered, config.world_in_agent.matching, config.horizon)
    batch = ScoredBatch({}, {}, {}, {}, {}, {}, {}, {}, values)
    cells = np.concatenate(matrices) if matrices else np.zeros((0, config.horizon))
    ends = np.cumsum([len(run.steps) for run in ordered]).tolist()
    prediction_rewards = r_pre(cells)
    matched = time.perf_counter()
    for run, matrix, end in zip(ordered, matrices, ends, strict=True):
        batch.matches[run.trajectory_id] = matrix
        batch.r_pre[run.trajectory_id] = prediction_rewards[end - len(run.steps) : end]
    scored = [_score_group(members, config, batch, values) for members in groups.values()]
    for members, group, advantages in zip(groups.values(), scored, advantages_of(estimator, scored), strict=True):
        ids = [run.trajectory_id for run in members]
        batch.rewards.update(zip(ids, estimator.trajectory_rewards(group).tolist(), strict=True))
        batch.step_advantages.update(zip(ids, advantages, strict=True))
        if isinstance(estimator, ValueEstimator):
            batch.value_targets.update(zip(ids, estimator.value_targets(group), strict=True))

    batch.metrics.update(_reward_metrics(ordered, batch))
    batch.metrics.update(_match_metrics(cells, prediction_rewards))
    batch.metrics.update(action_shares(ordered))
    if config.horizon:
        paid = prediction_bonus(
            _joined([batch.returns[run.trajectory_id] for run in ordered]),
            prediction_rewards,
            getattr(estimator, "weight", 0.0),
            config.world_in_agent.form,
        )
        batch.metrics.update(behaviour_metrics(ordered, prediction_rewards, paid))
        batch.metrics["scoring/match_seconds"] = matched - started
        batch.metrics["advantage/prediction_share"] = _prediction_share(estimator, scored, ordered, batch)
    batch.metrics.update(_group_metrics(list(groups.values()), scored, batch))
    batch.metrics["scoring/seconds"] = time.perf_counter() - started
    return batch


def _score_group(
    members: Sequence[Trajectory], config: TrainConfig, batch: ScoredBatch, values: Mapping[str, Array] | None
) -> ScoredGroup:
    """Make the group that the estimator gets, and note its parts in the batch."""
    ids = [run.trajectory_id for run in members]
    for run in members:
        batch.returns[run.trajectory_id] = step_returns(
            [step.reward for step in run.steps], config.world_in_agent.discount
        )
        batch.penalties[run.trajectory_id] = step_penalties(
            run, config.rollout.invalid_action_penalty, config.rollout.overlong_penalty
        )
    states = [step.state for run in members for step in run.steps]
    group = ScoredGroup(
        task_id=members[0].task.task_id,
        outcomes=np.asarray([run.score for run in members], dtype=np.float64),
        lengths=np.asarray([len(run.steps) for run in members], dtype=np.int64),
        returns=np.concatenate([batch.returns[key] for key in ids]),
        r_pre=np.concatenate([batch.r_pre[key] for key in ids]),
        penalties=np.concatenate([batch.penalties[key] for key in ids]),
        state_groups=np.asarray(state_groups(states, config.advantage.state_similarity), dtype=np.int64),
        rewards=np.asarray([step.reward for run in members for step in run.steps], dtype=np.float64),
        values=None if values is None else np.concatenate([values[key] for key in ids]),
    )
    ends = np.cumsum(group.lengths)
    batch.state_groups.update(zip(ids, np.split(group.state_groups, ends[:-1]), strict=True))
    return group


def _reward_metrics(trajectories: Sequence[Trajectory], batch: ScoredBatch) -> dict[str, float]:
    """Rewards, penalties and advantages of the whole batch."""
    penalties = _joined(batch.penalties.values())
    advantages = np.abs(_joined(batch.step_advantages.values()))
    return {
        "reward/success": _mean([run.success for run in trajectories]),
        "reward/outcome": _mean([run.score for run in trajectories]),
        "reward/mean": _mean(list(batch.rewards.values())),
        "penalty/mean": _mean(penalties),
        "penalty/share": _mean(penalties > 0),
        "advantage/abs_mean": _mean(advantages),
        "advantage/abs_max": float(advantages.max(initial=0.0)),
        "advantage/zero_share": _mean(advantages == 0),
    }


def _match_metrics(cells: Array, prediction_rewards: Array) -> dict[str, float]:
    """Prediction match, over all steps [S] and by horizon [S, H]; nothing where no state was predicted."""
    if not cells.size:
        return {}
    metrics = {"match/mean": _mean(prediction_rewards)}
    for h in range(cells.shape[1]):
        defined = cells[:, h][~np.isnan(cells[:, h])]
        if defined.size:
            metrics[f"match/h{h + 1}"] = _mean(defined)
    metrics["match/zero_share"] = float((cells == 0).sum() / (~np.isnan(cells)).sum())
    return metrics


def _prediction_share(
    estimator: Estimator, scored: Sequence[ScoredGroup], ordered: Sequence[Trajectory], batch: ScoredBatch
) -> float:
    """How far the prediction reward turns the advantages A: 1 - cos^2 of their angle to those with w = 0, over tokens.

    It is the share of |A|^2 that no scaling of the latter explains.
    """
    if not getattr(estimator, "weight", 0.0):
        return 0.0
    plain = advantages_of(replace(cast("Any", estimator), weight=0.0), scored)
    without = _joined(array for group in plain for array in group)
    paid = _joined(batch.step_advantages[run.trajectory_id] for run in ordered)
    tokens = np.asarray([len(step.generated_ids) for run in ordered for step in run.steps], dtype=np.float64)
    product, own, other = ((tokens * a * b).sum() for a, b in ((paid, without), (paid, paid), (without, without)))
    if own == 0 or other == 0:
        return float(own > 0)
    return float(max(0.0, 1.0 - product**2 / (own * other)))


def _group_metrics(
    groups: Sequence[Sequence[Trajectory]], scored: Sequence[ScoredGroup], batch: ScoredBatch
) -> dict[str, float]:
    """Groups that cannot teach, and how far steps share their states."""
    wins = [[run.success for run in members] for members in groups]
    rewards = [np.asarray([batch.rewards[run.trajectory_id] for run in members]) for members in groups]
    advantages = [_joined([batch.step_advantages[run.trajectory_id] for run in members]) for members in groups]
    sizes = _joined([np.bincount(group.state_groups) for group in scored]).astype(np.int64)
    steps = max(int(sizes.sum()), 1)
    return {
        "groups/count": float(len(groups)),
        "groups/all_win": _mean([all(group) for group in wins]),
        "groups/all_fail": _mean([not any(group) for group in wins]),
        "groups/degenerate": _mean([float(values.max() - values.min()) <= SPAN for values in rewards]),
        "groups/equal_advantages": _mean([np.ptp(values) <= SPAN if values.size else True for values in advantages]),
        "groups/silent": _mean([not values.any() for values in advantages]),
        "state_groups/count": float(len(sizes)),
        "state_groups/mean_size": _mean(sizes),
        "state_groups/max_size": float(sizes.max(initial=0)),
        "state_groups/shared_share": float(sizes[sizes > 1].sum() / steps),
        "state_groups/single_share": float((sizes == 1).sum() / max(len(sizes), 1)),
    }


def _joined(arrays: Iterable[NDArray[Any]]) -> NDArray[Any]:
    """All arrays end to end; empty for none."""
    parts = list(arrays)
    return np.concatenate(parts) if parts else np.zeros(0)


def _mean(values: Sequence[float] | Array | NDArray[np.bool_] | NDArray[np.int64]) -> float:
    """Arithmetic mean; 0 of nothing."""
    return float(np.mean(values)) if len(values) else 0.0
