"""The tokens of several sequences with what they begin with in common once.

Under causal attention a token's hidden states depend on what stands before it alone. So the tokens of sequences that
begin alike are computed once, as the nodes of a tree whose paths are the sequences.

Pure NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Tree:
    """The m different tokens of some sequences, sequence by sequence in the order of their ids.

    A sequence whose tokens are all those of another one is no path of its own.
    """

    ids: IntArray  #: [m]
    positions: IntArray  #: [m], in their sequences
    owners: IntArray  #: [m], rising: the first path that has the token
    lengths: tuple[int, ...]  #: of the paths
    tokens: IntArray  #: [B, L], the tree's token at each place of the padded rows; -1 at padding
    spread: IntArray | None  #: [sum of lengths], the paths' tokens, one path after the other; None: nothing is shared


def common_prefix(first: npt.NDArray[np.integer], second: npt.NDArray[np.integer]) -> int:
    """Number of tokens, [n] and [m], with which both begin."""
    length = min(len(first), len(second))
    different = np.flatnonzero(first[:length] != second[:length])
    return int(different[0]) if len(different) else length


def grow(input_ids: IntArray, lengths: Sequence[int]) -> Tree:
    """Build the tree of rows [B, L], padded on the right, of which row i has lengths[i] tokens."""
    rows = [input_ids[row, :length] for row, length in enumerate(lengths)]
    # In the order of the ids, no sequence has more in common with an earlier one than with its neighbour.
    order = sorted(range(len(rows)), key=lambda row: (rows[row].tolist(), row))
    tokens = np.full(input_ids.shape, -1, dtype=np.int64)
    paths: list[tuple[int, int]] = []  # row, and where its own tokens begin
    count = 0
    for place, row in enumerate(order):
        before, length = order[place - 1], lengths[row]
        begin = common_prefix(rows[before], rows[row]) if place else 0
        tokens[row, :begin] = tokens[before, :begin]
        tokens[row, begin:length] = np.arange(count, count + length - begin)
        count += length - begin
        if begin < length:
            paths.append((row, begin))
    shared = any(begin for _, begin in paths)
    return Tree(
        ids=np.concatenate([rows[row][begin:] for row, begin in paths]),
        positions=np.concatenate([np.arange(begin, lengths[row]) for row, begin in paths]),
        owners=np.repeat(np.arange(len(paths)), [lengths[row] - begin for row, begin in paths]),
        lengths=tuple(lengths[row] for row, _ in paths),
        tokens=tokens,
        spread=np.concatenate([tokens[row, : lengths[row]] for row, _ in paths]) if shared else None,
    )
