"""PPO: a learned value of every state, and generalised advantage estimation over the steps.

    delta_t = r_t - penalty_t + gamma V(s_{t+1}) - V(s_t),     V(s_{T+1}) = 0
    B_t     = delta_t + gamma lambda B_{t+1}
    A_t     = (B_t - mean over the batch's steps) / (std + eps)
    R_t     = B_t + V(s_t)                                     what the value head is moved towards

The step of the estimate is the agent's step and not the token. The reward, the discount gamma and the state are those
of the environment, which a turn changes and a token within it does not; a token-level lambda would fade with the length
of the turns. There is one value a step, read before the turn's first token, and the advantage goes to all of the turn's
tokens, as with every other estimator here. An episode that was cut off is worth what it was paid: what lies beyond its
last step counts 0, since the environment's limit is part of the task.

V comes from the value head (`Learner.values`), before the update.

Source: arXiv 1707.06347, equations 11 and 12; arXiv 1506.02438, equation 16. Normalising the batch's advantages is the
habit of public PPO code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from roleagent.learning.advantages.base import Array, Normalisation, ScoredGroup, normalise_together, register


@register("ppo")
@dataclass(frozen=True)
class Ppo:
    """Generalised advantages of a value head, over steps."""

    discount: float = 0.95
    gae_lambda: float = 0.95
    normalisation: Normalisation = "mean_std"

    def trajectory_rewards(self, group: ScoredGroup) -> Array:
        """Return R_E of each trajectory, [N]; for the metrics alone."""
        return group.outcomes

    def __call__(self, group: ScoredGroup) -> list[Array]:
        """Return the advantages of a batch of one group, one array [T] a trajectory."""
        return self.over_batch([group])[0]

    def over_batch(self, groups: Sequence[ScoredGroup]) -> list[list[Array]]:
        """Return the advantages of all groups, normalised together, one array [T] a trajectory."""
        raw = [np.concatenate([np.zeros(0), *self._raw(group)]) for group in groups]
        values = normalise_together(raw, self.normalisation)
        return [group.split(part) for group, part in zip(groups, values, strict=True)]

    def value_targets(self, group: ScoredGroup) -> list[Array]:
        """Return R_t = B_t + V(s_t), one array [T] a trajectory."""
        return [raw + values for raw, values in zip(self._raw(group), group.split(_values(group)), strict=True)]

    def _raw(self, group: ScoredGroup) -> list[Array]:
        rewards = group.split(group.rewards - group.penalties)
        return [
            generalised_advantages(row, values, self.discount, self.gae_lambda)
            for row, values in zip(rewards, group.split(_values(group)), strict=True)
        ]


def _values(group: ScoredGroup) -> Array:
    if group.values is None:
        raise ValueError(f"group {group.task_id}: the estimator needs the values of its states")
    return group.values


def generalised_advantages(rewards: Array, values: Array, discount: float, trace: float) -> Array:
    """Return B_t of one trajectory, [T], from rewards [T] and values [T] of the states before each step.

    `trace` is lambda: 0 gives r_t + gamma V(s_{t+1}) - V(s_t), 1 gives the discounted return minus V(s_t).
    """
    advantages = np.zeros(len(rewards))
    following = 0.0
    next_value = 0.0
    for t in range(len(rewards) - 1, -1, -1):
        delta = rewards[t] + discount * next_value - values[t]
        advantages[t] = following = delta + discount * trace * following
        next_value = values[t]
    return advantages
