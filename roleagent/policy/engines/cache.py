"""The key-value cache of an engine: rows that grow, move and are reused.

A slot is a name that a caller holds; a row is where its keys and values lie. The rows of the slots in a step are
brought to the front, so that attention reads one contiguous block and no copy of the cache is made. A row moves only
when the set of slots has changed by more than `slack` allows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from roleagent.errors import PolicyError

_GROWTH = 128  # columns are added in multiples of this


@dataclass(slots=True)
class LayerCache:
    """Keys [rows, kv_heads, capacity, key_dim] and values [rows, kv_heads, capacity, value_dim] of one layer."""

    keys: Tensor
    values: Tensor


class SlotCache:
    """Rows of keys and values for every layer.

    Layers are allocated when they are first written, so their shapes follow the model. Columns behind a row's length
    hold finite leftovers; attention masks them.
    """

    def __init__(self, max_context: int) -> None:
        self.max_context = max_context
        self.layers: dict[int, LayerCache] = {}
        self.capacity = 0
        self._rows = 0
        self._row_of: dict[int, int] = {}
        self._slot_at: list[int | None] = []
        self._limit: dict[int, int] = {}
        self._lengths: NDArray[np.int64] = np.zeros(0, dtype=np.int64)  # by row
        self._next_slot = 0

    def open(self, count: int, max_length: int) -> list[int]:
        """Reserve `count` empty slots of at most `max_length` tokens; memory follows when they are filled."""
        if max_length > self.max_context:
            raise PolicyError(
                f"a sequence of {max_length} tokens is asked for, but the model takes {self.max_context}; "
                "lower policy.max_context"
            )
        free = [row for row, slot in enumerate(self._slot_at) if slot is None]
        missing = max(0, count - len(free))
        free += range(len(self._slot_at), len(self._slot_at) + missing)
        self._slot_at += [None] * missing
        self._lengths = np.concatenate([self._lengths, np.zeros(missing, dtype=np.int64)])
        slots = list(range(self._next_slot, self._next_slot + count))
        self._next_slot += count
        for slot, row in zip(slots, free, strict=False):
            self._row_of[slot], self._slot_at[row], self._limit[slot] = row, slot, max_length
            self._lengths[row] = 0
        return slots

    def close(self, slots: Sequence[int]) -> None:
        """Free the rows of slots; when none is left, the memory goes too."""
        for slot in slots:
            row = self._row_of.pop(slot)
            del self._limit[slot]
            self._slot_at[row] = None
            self._lengths[row] = 0
        if not self._row_of:
            self.clear()

    def clear(self) -> None:
        """Drop all slots and their memory. Numbers of slots are not used again."""
        self.layers.clear()
        self._row_of.clear()
        self._limit.clear()
        self._slot_at.clear()
        self._lengths = np.zeros(0, dtype=np.int64)
        self._rows = self.capacity = 0

    def length(self, slot: int) -> int:
        """Tokens in a slot."""
        return int(self._lengths[self._row_of[slot]])

    def lengths(self, span: int) -> NDArray[np.int64]:
        """Tokens in each of the first `span` rows; 0 for a free row."""
        return self._lengths[:span].copy()

    def arrange(self, slots: Sequence[int], slack: float) -> tuple[NDArray[np.int64], int]:
        """Bring the rows of slots to the front.

        Returns:
            rows [n] of the slots in their order, and the span: all of them are smaller than it. The span is at most
            `slack` times n (rounded up); rows in between belong to other slots or to none.
        """
        rows = self.rows(slots)
        count = len(slots)
        span = int(rows.max()) + 1
        if span <= int(np.ceil(slack * count)):
            return rows, span
        wanted = set(rows.tolist())
        if len(wanted) != count:
            raise ValueError("a slot is named twice in one call")
        outside = sorted(row for row in wanted if row >= count)
        inside = [row for row in range(count) if row not in wanted]
        self._swap(outside, inside)
        return self.rows(slots), count

    def advance(self, slots: Sequence[int], rows: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        """Make room for counts[i] more tokens in each slot; refuse what exceeds its limit. Lengths do not change."""
        after = self._lengths[rows] + counts
        for slot, length in zip(slots, after.tolist(), strict=True):
            if length > self._limit[slot]:
                raise ValueError(f"slot {slot} was opened for {self._limit[slot]} tokens and would hold {length}")
        self.reserve(int(after.max()))

    def commit(self, rows: NDArray[np.int64], counts: NDArray[np.int64] | int) -> None:
        """Count tokens that have been written to rows."""
        self._lengths[rows] += counts

    def reserve(self, length: int) -> None:
        """Grow every layer to hold all rows and `length` columns; both grow by a share, so that copies stay few."""
        if length > self.capacity:
            wanted = max(length, self.capacity + self.capacity // 2)
            self.capacity = -(-wanted // _GROWTH) * _GROWTH
        if len(self._slot_at) > self._rows:
            self._rows = max(len(self._slot_at), self._rows + self._rows // 4)
        for index in self.layers:
            layer = self.layers[index]
            layer.keys = self._grown(layer.keys)
            layer.values = self._grown(layer.values)

    def layer(self, index: int, kv_heads: int, key_dim: int, value_dim: int, like: Tensor) -> LayerCache:
        """Layer `index`, allocated with the type and device of `like` when it is new."""
        layer = self.layers.get(index)
        if layer is None:
            shape = (self._rows, kv_heads, self.capacity)
            layer = LayerCache(_zeros((*shape, key_dim), like), _zeros((*shape, value_dim), like))
            self.layers[index] = layer
        return layer

    def rows(self, slots: Sequence[int]) -> NDArray[np.int64]:
        """Rows of slots, [n]."""
        return np.fromiter((self._row_of[slot] for slot in slots), dtype=np.int64, count=len(slots))

    def lengths_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Tokens in each of the rows."""
        return self._lengths[rows]

    def truncate(self, slots: Sequence[int], lengths: Sequence[int]) -> None:
        """Keep the first lengths[i] tokens of slots[i].

        Raises:
            ValueError: a slot holds fewer.
        """
        for slot, length in zip(slots, lengths, strict=True):
            row = self._row_of[slot]
            if not 0 <= length <= self._lengths[row]:
                raise ValueError(f"slot {slot} holds {self._lengths[row]} tokens and cannot keep {length}")
            self._lengths[row] = length

    @torch.inference_mode()
    def fork(self, slot: int, length: int) -> int:
        """Open a slot with the limit of another one and its first `length` tokens.

        Raises:
            ValueError: the other slot holds fewer.
        """
        source = self._row_of[slot]
        if not 0 <= length <= self._lengths[source]:
            raise ValueError(f"slot {slot} holds {self._lengths[source]} tokens, of which {length} are asked for")
        (new,) = self.open(1, self._limit[slot])
        row = self._row_of[new]
        try:
            self.reserve(length)
        except BaseException:  # no memory: the caller never hears of the slot, so nobody else could close it
            self.close([new])
            raise
        for layer in self.layers.values():
            for tensor in (layer.keys, layer.values):
                tensor[row, :, :length] = tensor[source, :, :length]
        self._lengths[row] = length
        return new

    def _swap(self, first: list[int], second: list[int]) -> None:
        """Exchange the rows first[i] and second[i]."""
        length = int(self._lengths[first + second].max())
        if length:
            self.reserve(length)
            for layer in self.layers.values():
                for tensor in (layer.keys, layer.values):
                    tensor[first + second, :, :length] = tensor[second + first, :, :length]
        for a, b in zip(first, second, strict=True):
            self._slot_at[a], self._slot_at[b] = self._slot_at[b], self._slot_at[a]
            for row in (a, b):
                slot = self._slot_at[row]
                if slot is not None:
                    self._row_of[slot] = row
        self._lengths[first + second] = self._lengths[second + first]

    def _grown(self, tensor: Tensor) -> Tensor:
        rows, heads, columns, size = tensor.shape
        if rows >= self._rows and columns >= self.capacity:
            return tensor
        grown = _zeros((max(rows, self._rows), heads, max(columns, self.capacity), size), tensor)
        grown[:rows, :, :columns] = tensor
        return grown


def _zeros(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Zeros of the type and device of `like`.

    On the CPU they are numpy's: pages that the system gives when they are first written, large ones where it has them.
    Torch would write all of them at once, and most of a cache is never used.
    """
    if like.device.type != "cpu":
        return like.new_zeros(shape)
    count = math.prod(shape) * like.element_size()
    return torch.from_numpy(np.zeros(count, dtype=np.uint8)).view(like.dtype).view(shape)


def causal_bias(positions: Tensor, columns: int, dtype: torch.dtype) -> Tensor:
    """Additive mask [*positions.shape, columns]: 0 up to each position, the type's lowest number behind it."""
    hidden = torch.arange(columns, device=positions.device) > positions.unsqueeze(-1)
    return torch.zeros(hidden.shape, dtype=dtype, device=positions.device).masked_fill_(hidden, torch.finfo(dtype).min)
