"""Role-Agent's ablations: the same advantage with one half of the loop switched off by the recipe.

    role_agent_without_aiw          no failure is diagnosed, tasks are always drawn uniformly
    role_agent_without_prediction   no state is predicted: R_pre = 0, so R_t = G_t and R(tau) = R_E, which is GiGPO's
                                    advantage, in the state groups of Role-Agent

Source: arXiv 2606.10917, ablation study; the method, section 4.
"""

from __future__ import annotations

from dataclasses import dataclass

from roleagent.learning.advantages.base import register
from roleagent.learning.advantages.role_agent import RoleAgent


@register("role_agent_without_aiw")
@dataclass(frozen=True)
class RoleAgentWithoutAiw(RoleAgent):
    """Role-Agent without Agent-In-World."""


@register("role_agent_without_prediction")
@dataclass(frozen=True)
class RoleAgentWithoutPrediction(RoleAgent):
    """Role-Agent without World-In-Agent's prediction reward, whatever predictions there are."""

    weight: float = 0.0
