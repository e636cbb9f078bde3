"""GiGPO: the trajectory's place in its group, and the step's place among the steps that met the same state.

    A_t = A_E(tau_i) + alpha A_S(s_t, a_t)
    A_E  normalises R_E over the task's N trajectories
    A_S  normalises G_t - penalty_t over the state group; 0 in a group of one

Source: arXiv 2505.10978, equations 3 and 5 to 8; the method, section 1, "Advantage".
"""

from __future__ import annotations

from dataclasses import dataclass

from roleagent.learning.advantages.base import (
    Array,
    Normalisation,
    ScoredGroup,
    normalise,
    normalise_within,
    register,
)


@register("gigpo")
@dataclass(frozen=True)
class Gigpo:
    """Trajectory and state-group advantage of the task reward."""

    alpha: float = 1.0
    normalisation: Normalisation = "mean_std"

    def trajectory_rewards(self, group: ScoredGroup) -> Array:
        """Return R_E of each trajectory, [N]."""
        return group.outcomes

    def step_rewards(self, group: ScoredGroup) -> Array:
        """Return G_t - penalty_t of each step, [S]."""
        rewards: Array = group.returns - group.penalties
        return rewards

    def __call__(self, group: ScoredGroup) -> list[Array]:
        """Return A_E + alpha A_S, one array [T] a trajectory."""
        by_trajectory = normalise(self.trajectory_rewards(group), self.normalisation)[group.owners]
        by_state = normalise_within(self.step_rewards(group), group.state_groups, self.normalisation)
        return group.split(by_trajectory + self.alpha * by_state)
