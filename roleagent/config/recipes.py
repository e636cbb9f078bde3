"""Recipes: what an estimator's paper sets beside the advantage.

`advantage.estimator` is the one value that chooses an algorithm. Its recipe is a set of values that stand in the place
of the class defaults; a key that is written anywhere (preset, file, override) wins over it. A recipe holds what defines
the algorithm: loss, ratio, clips, KL, sampling. Batch sizes, learning rates and models are left alone, so two
estimators under one preset differ in the algorithm and in nothing else.

Sources and formulas: docs/advantages.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

Section = Mapping[str, object]

#: Algorithms that know neither half of Role-Agent.
_PLAIN: Mapping[str, Section] = {"world_in_agent": {"enabled": False}, "agent_in_world": {"enabled": False}}

#: estimator -> section -> key -> value. An estimator without an entry keeps every class default.
RECIPES: Mapping[str, Mapping[str, Section]] = {
    # The class defaults are this recipe.
    "role_agent": {},
    # The paper's ablations: the same loop without one of its two halves.
    "role_agent_without_aiw": {"agent_in_world": {"enabled": False}},
    "role_agent_without_prediction": {"world_in_agent": {"enabled": False, "weight": 0.0}},
    # arXiv 2505.10978: anchor states are equal states; KL 0.01 as in its experiments.
    "gigpo": {"advantage": {"state_similarity": 1.0}, **_PLAIN},
    # arXiv 2402.03300, equation 3 and section 4.2: mean of sequence means, KL 0.04.
    "grpo": {
        "learner": {"aggregation": "sequence", "kl_coefficient": 0.04},
        **_PLAIN,
    },
    # arXiv 2503.20783: no division by the deviation, none by the length, no KL.
    "dr_grpo": {
        "advantage": {"normalisation": "mean"},
        "learner": {"aggregation": "constant", "kl_coefficient": 0.0},
        **_PLAIN,
    },
    # arXiv 2503.14476, sections 3 and 4.1: clip-higher, token-level loss, dynamic sampling, overlong filtering, no KL,
    # 16 gradient steps a batch.
    "dapo": {
        "learner": {"clip_high": 0.28, "kl_coefficient": 0.0, "overlong_mask": True, "minibatches": 16},
        "rollout": {"dynamic_sampling": True},
        **_PLAIN,
    },
    # arXiv 2402.14740: the sequence is one action. beta 0.03; here the KL term is in the loss, not in the reward.
    "rloo": {
        "learner": {"ratio": "product", "aggregation": "sequence", "kl_coefficient": 0.03},
        **_PLAIN,
    },
    # arXiv 2501.03262: PPO's clip on globally normalised advantages, KL 0.01.
    "reinforce_pp": _PLAIN,
    # arXiv 2507.18071, section 5.1: ratio of sequence likelihoods, clips 3e-4 and 4e-4, four minibatches, no KL.
    "gspo": {
        "learner": {
            "ratio": "sequence",
            "aggregation": "sequence",
            "clip_low": 3e-4,
            "clip_high": 4e-4,
            "kl_coefficient": 0.0,
            "minibatches": 4,
        },
        **_PLAIN,
    },
    # arXiv 1707.06347: clip 0.2 (table 1), 3 epochs of 4 minibatches and value coefficient 1 (table 5, Atari).
    "ppo": {
        "learner": {"value_coefficient": 1.0, "epochs": 3, "minibatches": 4, "kl_coefficient": 0.0},
        **_PLAIN,
    },
}


def with_recipe(values: Mapping[str, Any], default: str) -> dict[str, Any]:
    """Return configuration values with those of the chosen estimator's recipe where none is written.

    Args:
        values: section -> keys; a section may be a model, of which the keys that were set count as written.
        default: the estimator where none is chosen.
    """
    merged = dict(values)
    recipe = RECIPES.get(str(_written(merged.get("advantage", {})).get("estimator", default)), {})
    for section, keys in recipe.items():
        given = merged.get(section, {})
        if isinstance(given, Mapping | BaseModel):  # anything else is an error, which validation tells
            merged[section] = {**keys, **_written(given)}
    return merged


def _written(section: Any) -> Mapping[str, Any]:
    if isinstance(section, BaseModel):
        return section.model_dump(exclude_unset=True)
    return section if isinstance(section, Mapping) else {}
