"""Role-Agent: GiGPO on rewards that are worth more where the model foresaw what it did.

    A_t = A_E(tau_i) + alpha A_S(s_t, a_t)
    A_E  normalises R(tau) = R_E(tau) (1 + w mean_t R_pre(a_t)) over the task's N trajectories
    A_S  normalises R_t - penalty_t, R_t = G_t (1 + w R_pre(a_t)), over the state group; 0 in a group of one

With R_pre = 0 everywhere it is GiGPO, with alpha = 0 too it is GRPO, to the last bit. `form="additive"` adds w R_pre
where these equations multiply by 1 + w R_pre; it is no part of the method, but what its form is compared with.

Source: arXiv 2606.10917; the method, section 1, "Modulated reward" and "Advantage".
"""

from __future__ import annotations

from dataclasses import dataclass

from roleagent.learning.advantages.base import Array, ScoredGroup, register
from roleagent.learning.advantages.gigpo import Gigpo
from roleagent.world_in_agent.reward import Form, modulated_returns


@register("role_agent")
@dataclass(frozen=True)
class RoleAgent(Gigpo):
    """Trajectory and state-group advantage of the reward modulated by the prediction match."""

    weight: float = 1.0
    form: Form = "multiplicative"

    def trajectory_rewards(self, group: ScoredGroup) -> Array:
        """Return R(tau) of each trajectory, [N]."""
        return modulated_returns(group.outcomes, group.mean_r_pre(), self.weight, self.form)

    def step_rewards(self, group: ScoredGroup) -> Array:
        """Return R_t - penalty_t of each step, [S]."""
        rewards: Array = modulated_returns(group.returns, group.r_pre, self.weight, self.form) - group.penalties
        return rewards
