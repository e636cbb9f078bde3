"""GSPO: GRPO's advantage under a ratio of whole sequences.

    A_t = (R_E(tau_i) - mean) / (std + eps)
    s_i = (pi(y_i) / pi_old(y_i))^(1 / |y_i|)        in the place of the token's ratio

The ratio, its narrow clips and the mean of sequence means are in the recipe (`learner.ratio: sequence`).

Source: arXiv 2507.18071, equations 5 to 7.
"""

from __future__ import annotations

from dataclasses import dataclass

from roleagent.learning.advantages.base import register
from roleagent.learning.advantages.grpo import Grpo


@register("gspo")
@dataclass(frozen=True)
class Gspo(Grpo):
    """Group-relative outcome advantage."""
