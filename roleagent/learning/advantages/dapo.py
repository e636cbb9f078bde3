"""DAPO: GRPO's advantage; what is new is beside it.

    A_t = (R_E(tau_i) - mean) / (std + eps)

Its recipe sets clip-higher (0.2, 0.28), the token-level loss, dynamic sampling with refill (groups whose outcomes are
all equal are not trained on, other tasks are played for them), overlong filtering and no KL term.

Source: arXiv 2503.14476, equations 8 to 12 and section 3.4.
"""

from __future__ import annotations

from dataclasses import dataclass

from roleagent.learning.advantages.base import register
from roleagent.learning.advantages.grpo import Grpo


@register("dapo")
@dataclass(frozen=True)
class Dapo(Grpo):
    """Group-relative outcome advantage."""
