"""GRPO: every step of a trajectory gets the trajectory's place in its group.

    A_t = A_E(tau_i) = (R_E(tau_i) - mean) / (std + eps)

Source: arXiv 2402.03300; the paper's equation 1. `normalisation="mean"` is Dr.GRPO's (arXiv 2503.20783).
"""

from __future__ import annotations

from dataclasses import dataclass

from roleagent.learning.advantages.base import Array, Normalisation, ScoredGroup, normalise, register


@register("grpo")
@dataclass(frozen=True)
class Grpo:
    """Group-relative outcome advantage. It compares trajectories only: predictions and penalties have no effect."""

    normalisation: Normalisation = "mean_std"

    def trajectory_rewards(self, group: ScoredGroup) -> Array:
        """Return R_E of each trajectory, [N]."""
        return group.outcomes

    def __call__(self, group: ScoredGroup) -> list[Array]:
        """Return A_E(tau_i) at every step, one array [T] a trajectory."""
        return group.split(normalise(self.trajectory_rewards(group), self.normalisation)[group.owners])
