"""Dr.GRPO: GRPO without the two divisions that bias it.

    A_t = R_E(tau_i) - mean

Dividing by the group's deviation makes tasks that are nearly always or nearly never solved count more; dividing by a
sequence's length makes long failures cheap. The first is left out here, the second by the recipe's loss
(`learner.aggregation: constant`).

Source: arXiv 2503.20783, section 3.2.
"""

from __future__ import annotations

from dataclasses import dataclass

from roleagent.learning.advantages.base import Normalisation, register
from roleagent.learning.advantages.grpo import Grpo


@register("dr_grpo")
@dataclass(frozen=True)
class DrGrpo(Grpo):
    """Outcome minus the group's mean outcome."""

    normalisation: Normalisation = "mean"
