"""REINFORCE++: outcomes normalised over the whole batch instead of within their group.

    B_i = R_E(tau_i) - mean of its group        B_i = R_E(tau_i) in a group of one
    A_t = (B_i - mean over the batch) / (std over the batch + eps)

A small group's deviation is a poor estimate, and dividing by it a biased one; the batch's is neither. With several
trajectories a task this is the paper's form with a baseline, with one a task its plain form. The paper normalises over
tokens; here every trajectory counts once, as in every statistic of this project, so that long episodes do not weigh
more.

Source: arXiv 2501.03262, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from roleagent.learning.advantages.base import (
    Array,
    Normalisation,
    ScoredGroup,
    normalise,
    normalise_together,
    register,
)


@register("reinforce_pp")
@dataclass(frozen=True)
class ReinforcePP:
    """Outcome advantage with the statistics of the batch."""

    normalisation: Normalisation = "mean_std"

    def trajectory_rewards(self, group: ScoredGroup) -> Array:
        """Return R_E of each trajectory, [N]."""
        return group.outcomes

    def __call__(self, group: ScoredGroup) -> list[Array]:
        """Return the advantages of a batch of one group, one array [T] a trajectory."""
        return self.over_batch([group])[0]

    def over_batch(self, groups: Sequence[ScoredGroup]) -> list[list[Array]]:
        """Return the advantages of all groups, one array [T] a trajectory."""
        centred = [normalise(group.outcomes, "mean") if len(group.outcomes) > 1 else group.outcomes for group in groups]
        values = normalise_together(centred, self.normalisation)
        return [group.split(part[group.owners]) for group, part in zip(groups, values, strict=True)]
