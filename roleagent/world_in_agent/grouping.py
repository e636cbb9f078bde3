"""State groups: which steps of a task's trajectories started from the same state.

Greedy in the order given: a state joins the group of the first representative that it matches, else it founds a
group and is its representative. This is how public GiGPO code does it, and it depends on nothing but the order.

Two states match when m at character level is at least the threshold, or when they are equal after normalisation
(`matching.normalise`). The second clause only matters for empty texts, which m never matches. A threshold of 1.0
leaves equality alone.

The plain loop costs one comparison a state and representative. Here equal states are collapsed first, and rapidfuzz
compares the rest in C++ with the threshold as a cut-off: a pair whose lengths alone keep it under the threshold is
never looked at. The result is that of the plain loop, exactly.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from rapidfuzz import process
from rapidfuzz.distance import Indel

from roleagent.errors import ConfigError
from roleagent.world_in_agent.matching import match_many, normalise

_BLOCK = 512  # states compared at once: bounds the memory to a block by the number of groups
_ROUNDING = 1e-9  # well above the rounding error of a similarity, far below the least step between two of them


def state_groups(states: Sequence[str], threshold: float = 0.9) -> list[int]:
    """Return a group id for every state, in order; ids count up from 0 as groups are founded.

    Args:
        states: texts s_t of one task's trajectories, trajectory after trajectory, without history or step counters.
        threshold: least similarity in (0, 1]; 1.0 is equality after normalisation.

    Raises:
        ConfigError: the threshold is not in (0, 1].

    Source: the method, section 1, "State groups"; GiGPO's anchor states (arXiv 2505.10978).
    """
    if not 0.0 < threshold <= 1.0:
        raise ConfigError(f"state similarity {threshold} is not in (0, 1]: use 0.9, or 1.0 for equal states only")
    ranks: dict[str, int] = {}
    seen: dict[str, int] = {}
    where: list[int] = []
    for state in states:
        rank = ranks.get(state)
        if rank is None:
            rank = ranks[state] = seen.setdefault(normalise(state), len(seen))
        where.append(rank)
    distinct = list(seen)
    if threshold == 1.0 or len(distinct) < 2:
        return where
    groups: list[int] = []
    representatives: list[str] = []
    for start in range(0, len(distinct), _BLOCK):
        _assign(distinct[start : start + _BLOCK], representatives, groups, threshold)
    return [groups[rank] for rank in where]


def _assign(block: list[str], representatives: list[str], groups: list[int], threshold: float) -> None:
    """Give each state of a block its group; `representatives` and `groups` grow in place."""
    founded = len(representatives)
    old = _matches(block, representatives, threshold) if representatives else np.zeros((len(block), 0), dtype=np.bool_)
    new = _matches(block, block, threshold)
    rows: list[int] = []  # rows of this block that founded a group
    for row, state in enumerate(block):
        group = int(old[row].argmax()) if old[row].any() else None
        if group is None:
            group = next((founded + k for k, other in enumerate(rows) if new[row, other]), None)
        if group is None:
            group = len(representatives)
            representatives.append(state)
            rows.append(row)
        groups.append(group)


def _matches(left: list[str], right: list[str], threshold: float) -> NDArray[np.bool_]:
    """Whether m(left[i], right[j]) >= threshold at character level; shape [left, right]."""
    # Indel's normalised similarity is 1 - (|p| + |s| - 2 |LCS|) / (|p| + |s|), which is m up to rounding.
    close = process.cdist(
        left, right, scorer=Indel.normalized_similarity, score_cutoff=threshold - _ROUNDING, dtype=np.float64
    )
    matches: NDArray[np.bool_] = close >= threshold + _ROUNDING
    doubtful = np.argwhere((close >= threshold - _ROUNDING) & ~matches)
    if len(doubtful):
        values = match_many(((left[i], right[j]) for i, j in doubtful), "characters")
        matches[tuple(doubtful.T)] = values >= threshold
    return matches
