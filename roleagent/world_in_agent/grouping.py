"""State groups: which steps of a task's trajectories started from the same state.

Greedy in the order given: a state joins the group of the first representative that it matches, else it founds a
group and is its representative. This is how public GiGPO code does it, and it depends on nothing but the order.

Two states match when m at character level is at least the threshold, or when they are equal after normalisation
(`matching.normalise`). The second clause only matters for empty texts, which m never matches. A threshold of 1.0
leaves equality alone.

The plain loop costs one comparison a state and representative. Here equal states are collapsed first. A pair of the
rest is compared, by rapidfuzz, only if its characters could match: a common subsequence has no character more often
than either text has it, so the counts of characters bound m from above, and most pairs fall short of the threshold.
The result is that of the plain loop, exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rapidfuzz import process
from rapidfuzz.distance import LCSseq

from roleagent.errors import ConfigError
from roleagent.world_in_agent.matching import normalise

_BLOCK = 512  # states compared at once: bounds the memory to a block by the number of groups
_COLUMNS = 64  # characters that are counted apart


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
    compared = _States(distinct, threshold)
    groups: list[int] = []
    representatives: list[int] = []
    for start in range(0, len(distinct), _BLOCK):
        _assign(range(start, min(start + _BLOCK, len(distinct))), compared, representatives, groups)
    return [groups[rank] for rank in where]


def _assign(block: Sequence[int], states: _States, representatives: list[int], groups: list[int]) -> None:
    """Give each state of a block its group; `representatives` and `groups` grow in place."""
    assigned = [-1] * len(block)
    for row, place in states.matches(block, representatives):
        if assigned[row] < 0:  # places ascend within a row, so the first one wins
            assigned[row] = place
    # Only states without an old group can found one, so only they are compared with each other.
    left = [row for row, group in enumerate(assigned) if group < 0]
    earlier: list[list[int]] = [[] for _ in left]  # places that match and come before, ascending
    mine = [block[row] for row in left]
    for place, before in states.matches(mine, mine, below=True):
        earlier[place].append(before)
    founders = [False] * len(left)
    for place, row in enumerate(left):
        founder = next((before for before in earlier[place] if founders[before]), None)
        if founder is None:
            founders[place] = True
            assigned[row] = len(representatives)
            representatives.append(mine[place])
        else:
            assigned[row] = assigned[left[founder]]
    groups.extend(assigned)


class _States:
    """Normalised texts and how often each has each character."""

    def __init__(self, texts: list[str], threshold: float) -> None:
        self._texts = texts
        self._threshold = threshold
        self._lengths = np.asarray([len(text) for text in texts])
        self._counts = _character_counts(texts, self._lengths)

    def matches(self, left: Sequence[int], right: Sequence[int], *, below: bool = False) -> Iterator[tuple[int, int]]:
        """Yield the places (i, j) with m(left[i], right[j]) >= threshold at character level, by i, then by j.

        With `below`, those with j < i only.
        """
        from scipy.spatial.distance import cdist

        if not left or not right:
            return iter(())
        ours, theirs = np.asarray(left), np.asarray(right)
        lengths = np.add.outer(self._lengths[ours], self._lengths[theirs])
        # The counts of two texts have (|p| + |s| - distance) / 2 in common: whole numbers, so this is exact.
        most = (lengths - cdist(self._counts[ours], self._counts[theirs], "cityblock")) / 2.0
        possible = _ratio(most, lengths) >= self._threshold
        rows, columns = np.nonzero(np.tril(possible, -1) if below else possible)
        # Whole numbers and the expression of `matching`: rapidfuzz's own ratios and cut-offs round another way, and
        # drop pairs that lie on the threshold.
        common = process.cpdist(
            [self._texts[place] for place in ours[rows].tolist()],
            [self._texts[place] for place in theirs[columns].tolist()],
            scorer=LCSseq.similarity,
            dtype=np.int32,
        )
        found = _ratio(common, lengths[rows, columns]) >= self._threshold
        return zip(rows[found].tolist(), columns[found].tolist(), strict=True)


def _ratio(common: NDArray[Any], lengths: NDArray[np.int64]) -> NDArray[np.float64]:
    ratio: NDArray[np.float64] = 2.0 * common / np.maximum(lengths, 1)
    return ratio


def _character_counts(texts: list[str], lengths: NDArray[np.int64]) -> NDArray[np.float64]:
    """How often each text has each character; shape [texts, at most 64 columns].

    Rare characters share a column when there are more: this only weakens the bound.
    """
    codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    known = np.zeros(int(codes.max(initial=0)) + 1, dtype=np.int64)
    known[codes] = 1
    width = int(min(max(known.sum(), 1), _COLUMNS))
    columns = (np.cumsum(known) - 1)[codes] % width
    counts = np.bincount(np.repeat(np.arange(len(texts)), lengths) * width + columns, minlength=len(texts) * width)
    return counts.reshape(len(texts), width).astype(np.float64)
