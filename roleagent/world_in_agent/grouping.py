"""State groups: which steps of a task's trajectories started from the same state.

Greedy in the order given: a state joins the group of the first representative that it matches, else it founds a
group and is its representative. This is how public GiGPO code does it, and it depends on nothing but the order.

Two states match when m at character level is at least the threshold, or when they are equal after normalisation
(`matching.normalise`). The second clause only matters for empty texts, which m never matches. A threshold of 1.0
leaves equality alone.

The plain loop costs one comparison a state and representative. Here equal states are collapsed first, and the rest
is compared by rapidfuzz in one call a block. The result is that of the plain loop, exactly.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from rapidfuzz import process
from rapidfuzz.distance import LCSseq

from roleagent.errors import ConfigError
from roleagent.world_in_agent.matching import normalise

_BLOCK = 512  # states compared at once: bounds the memory to a block by the number of groups


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
    assigned = [-1] * len(block)
    if representatives:
        old = _matches(block, representatives, threshold)
        assigned = np.where(old.any(axis=1), old.argmax(axis=1), -1).tolist()
    earlier: list[list[int]] = [[] for _ in block]  # rows of this block that match and come before, ascending
    for row, before in np.argwhere(np.tril(_matches(block, block, threshold), -1)).tolist():
        earlier[row].append(before)
    founders = [False] * len(block)
    for row, state in enumerate(block):
        if assigned[row] < 0:
            founder = next((before for before in earlier[row] if founders[before]), None)
            if founder is None:
                founders[row] = True
                assigned[row] = len(representatives)
                representatives.append(state)
            else:
                assigned[row] = assigned[founder]
    groups.extend(assigned)


def _matches(left: list[str], right: list[str], threshold: float) -> NDArray[np.bool_]:
    """Whether m(left[i], right[j]) >= threshold at character level, for normalised texts; shape [left, right]."""
    # Whole numbers and the expression of `matching`: rapidfuzz's own ratios and cut-offs round another way, and drop
    # pairs that lie on the threshold.
    common = process.cdist(left, right, scorer=LCSseq.similarity, dtype=np.int32)
    lengths = np.add.outer([len(text) for text in left], [len(text) for text in right])
    matches: NDArray[np.bool_] = 2.0 * common / np.maximum(lengths, 1) >= threshold
    return matches
