"""RLOO: every trajectory is compared with the mean of the others.

    A_t = R_E(tau_i) - 1/(N - 1) sum_{j != i} R_E(tau_j) = N/(N - 1) (R_E(tau_i) - mean)

A baseline that does not depend on the trajectory itself leaves REINFORCE unbiased. The whole sequence is one action,
so the recipe takes the ratio of its probabilities (`learner.ratio: product`). The paper puts the KL term into the
reward; here it is in the loss, as for every estimator.

Source: arXiv 2402.14740, section 3.2.
"""

from __future__ import annotations

from dataclasses import dataclass

from roleagent.learning.advantages.base import Array, ScoredGroup, normalise, register


@register("rloo")
@dataclass(frozen=True)
class Rloo:
    """Leave-one-out outcome advantage; 0 for a trajectory alone."""

    def trajectory_rewards(self, group: ScoredGroup) -> Array:
        """Return R_E of each trajectory, [N]."""
        return group.outcomes

    def __call__(self, group: ScoredGroup) -> list[Array]:
        """Return R_E minus the mean of the others' at every step, one array [T] a trajectory."""
        others = max(len(group.outcomes) - 1, 1)
        centred = normalise(group.outcomes, "mean") * (len(group.outcomes) / others)
        return group.split(centred[group.owners])
