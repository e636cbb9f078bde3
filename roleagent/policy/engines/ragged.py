"""Attention of ragged runs of new tokens over the rows of a cache, block by block.

A pass has some new tokens for each row, packed one row after the other; matrices run over the packed tokens. Attention
runs over blocks of neighbouring rows, padded to the longest run and the longest row of the block: a block ends where
padding would cost more than another call. A block is small enough for its scores to stay in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_QUERIES = 96  # most tokens of a row in one block: later tokens of a long run see more columns
_BLOCK_ROWS = 8
_BLOCK_SCORES = 1 << 21  # most scores of a block, all heads together: bounds memory
_CALL_COST = 1500  # a call costs about as much as this many scores of one head


@dataclass(frozen=True, slots=True)
class Runs:
    """One run of queries a row, [n] each, by rising row: the row, its first token among the packed ones, the position
    of that token in the row, and the number of tokens."""

    row: NDArray[np.int64]
    token: NDArray[np.int64]
    position: NDArray[np.int64]
    count: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Block:
    """Neighbouring rows with their queries, padded to `width`."""

    pairs: slice  #: (row, key-value head) pairs of the cache
    columns: int  #: of the cache that are read
    query: Tensor  #: [pairs * width] places of the queries among (token, key-value head) pairs
    real: Tensor  #: [tokens * kv_heads] places of the block's tokens in its output
    outputs: slice  #: where they go, in (token, key-value head) pairs
    seen: int  #: columns before this one are visible to every query
    bias: Tensor | None  #: [rows, 1, width * group, columns - seen]; None when all is visible


def plan(runs: Runs, kv_heads: int, group: int, dtype: torch.dtype) -> list[Block]:
    """Cut runs into blocks. Outputs are packed as the runs are: one after the other."""
    blocks, done = [], 0
    for part in _parts(runs, kv_heads * group):
        blocks.append(_block(part, kv_heads, group, dtype, done))
        done += int(part.count.sum())
    return blocks


def attend(qkv: Tensor, keys: Tensor, values: Tensor, blocks: list[Block], tokens: int) -> Tensor:
    """Attend in every block.

    Args:
        qkv: [packed tokens * kv_heads, group + 2, head_dim]; queries are scaled and rotated.
        keys, values: [rows * kv_heads, capacity, head_dim], the new tokens' own included.
        blocks: of :func:`plan`.
        tokens: queries in all blocks.

    Returns:
        [tokens, heads * head_dim].
    """
    group, size = qkv.shape[1] - 2, qkv.shape[2]
    queries = qkv[:, :group]
    kv_heads = sum(len(block.real) for block in blocks) // tokens
    attended = qkv.new_empty((tokens * kv_heads, group * size))
    for block in blocks:
        pairs = block.pairs.stop - block.pairs.start
        query = queries.index_select(0, block.query).view(pairs, -1, size)
        scores = torch.bmm(query, keys[block.pairs, : block.columns].transpose(1, 2))
        if block.bias is not None:
            scores.view(len(block.bias), kv_heads, -1, block.columns)[..., block.seen :].add_(block.bias)
        out = torch.bmm(torch.softmax(scores, -1), values[block.pairs, : block.columns]).view(-1, group * size)
        torch.index_select(out, 0, block.real, out=attended[block.outputs])
    return attended.view(tokens, -1)


def _parts(runs: Runs, heads: int) -> Iterator[Runs]:
    """Runs of the blocks: neighbouring rows, or a piece of a long run."""
    rows, counts = runs.row.tolist(), runs.count.tolist()
    columns = (runs.position + runs.count).tolist()
    start = 0
    while start < len(rows):
        if counts[start] > _QUERIES:
            yield from _pieces(runs, start, heads)
            start += 1
            continue
        width, height, cost, stop = counts[start], columns[start], counts[start] * columns[start], start + 1
        while stop < len(rows) and rows[stop] == rows[stop - 1] + 1 and stop - start < _BLOCK_ROWS:
            wider, higher = max(width, counts[stop]), max(height, columns[stop])
            padded, alone = (stop + 1 - start) * wider * higher, counts[stop] * columns[stop] + _CALL_COST
            if counts[stop] > _QUERIES or padded > cost + alone or padded * heads > _BLOCK_SCORES:
                break
            width, height, cost, stop = wider, higher, padded, stop + 1
        part = slice(start, stop)
        yield Runs(runs.row[part], runs.token[part], runs.position[part], runs.count[part])
        start = stop


def _pieces(runs: Runs, index: int, heads: int) -> Iterator[Runs]:
    """One long run, a piece at a time."""
    total = int(runs.count[index])
    size = max(1, min(_QUERIES, _BLOCK_SCORES // (heads * int(runs.position[index] + total))))
    for begin in range(0, total, size):
        place = slice(index, index + 1)
        yield Runs(
            runs.row[place],
            runs.token[place] + begin,
            runs.position[place] + begin,
            np.array([min(size, total - begin)], dtype=np.int64),
        )


def _block(part: Runs, kv_heads: int, group: int, dtype: torch.dtype, done: int) -> Block:
    count, width = part.count[:, None], int(part.count.max())
    column = np.minimum(np.arange(width), count - 1)  # padding repeats a run's last query
    head = np.arange(kv_heads)
    query = ((part.token[:, None] + column)[:, None, :] * kv_heads + head[:, None]).ravel()
    row, place = np.nonzero(np.arange(width) < count)
    real = ((row[:, None] * kv_heads + head) * width + place[:, None]).ravel()
    columns = int((part.position + part.count).max())
    seen = int(part.position.min()) + 1
    bias = None
    if seen < columns:
        positions = torch.from_numpy((part.position[:, None] + column).repeat(group, axis=1))
        hidden = torch.arange(seen, columns) > positions.unsqueeze(-1)
        bias = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, torch.finfo(dtype).min).unsqueeze(1)
    first = int(part.row[0])
    return Block(
        pairs=slice(first * kv_heads, (first + len(part.row)) * kv_heads),
        columns=columns,
        query=torch.from_numpy(query),
        real=torch.from_numpy(real),
        outputs=slice(done * kv_heads, done * kv_heads + len(real)),
        seen=seen,
        bias=bias,
    )
