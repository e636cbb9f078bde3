"""Sampling: inverse CDF, one uniform number a token, no top-p and no top-k.

The recorded log-probability is that of the distribution that was sampled, softmax(logits / temperature) over the
whole vocabulary, so the ratio of the update starts at 1 (the method, section 6, fault 6).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from roleagent.errors import PolicyError

_BLOCK = 128  # uniforms drawn ahead for each stream


@torch.inference_mode()
def sample(
    logits: Tensor, temperature: float, uniforms: NDArray[np.float64] | Sequence[float] | Tensor
) -> tuple[Tensor, Tensor]:
    """Draw one token a row, or k tokens that are independent of each other.

    Args:
        logits: [n, V], any float type; computed in float32, the cumulative sum in float64.
        temperature: at least 0. At 0 the likeliest token is taken, the first of several, with log-probability 0.
        uniforms: [n] or [n, k] numbers in [0, 1); a token depends on its row and its number alone.

    Returns:
        ids (int64) and their log-probabilities (float32), shaped as the numbers, on the device of the logits.

    Raises:
        PolicyError: a row has no likeliest token: a logit is NaN or +inf, or all are -inf.
    """
    if not 0 <= temperature < math.inf:
        raise ValueError(f"temperature must be at least 0 and finite, not {temperature}")
    u = torch.as_tensor(uniforms, dtype=torch.float64, device=logits.device)
    shape, u = u.shape, u.reshape(len(logits), -1)
    if temperature == 0:
        _check_finite(logits.amax(dim=-1))
        ids = logits.argmax(dim=-1, keepdim=True).expand_as(u).reshape(shape)
        return ids, torch.zeros_like(ids, dtype=torch.float32)
    scaled = logits.float() / temperature
    shifted = scaled - scaled.amax(dim=-1, keepdim=True)
    cdf = torch.cumsum(shifted.exp(), dim=-1, dtype=torch.float64)
    total = cdf[:, -1:]
    _check_finite(total)
    # Strictly below the total, so that the first index whose CDF exceeds it exists and has a probability above 0.
    target = torch.minimum(u * total, torch.nextafter(total, torch.zeros_like(total)))
    ids = torch.searchsorted(cdf, target, right=True)
    logprobs = shifted.gather(1, ids).double() - total.log()
    return ids.view(shape), logprobs.float().view(shape)


def _check_finite(of_rows: Tensor) -> None:
    # Both the largest logit and the sum of the weights tell of every logit that is not a number.
    if not bool(torch.isfinite(of_rows).all()):
        raise PolicyError(
            "the policy gives logits that are not finite: its weights are damaged, or training let them explode; begin "
            "another run with a lower learner.learning_rate, or with another policy.model"
        )


class UniformStreams:
    """One stream of uniform numbers an episode, drawn in blocks.

    Stream i gives the same numbers whichever other streams are drawn beside it.
    """

    def __init__(self, generators: Sequence[np.random.Generator]) -> None:
        self._generators = list(generators)
        self._buffer = np.empty((len(self._generators), 2 * _BLOCK), dtype=np.float64)
        self._next = np.zeros(len(self._generators), dtype=np.int64)
        self._end = np.zeros(len(self._generators), dtype=np.int64)

    def draw(self, indices: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float64]:
        """Next number of each named stream, [len(indices)] in [0, 1). No index may be given twice."""
        rows = np.asarray(indices, dtype=np.int64)
        self._fill(rows, 1)
        numbers = self._buffer[rows, self._next[rows]]
        self._next[rows] += 1
        return numbers

    def peek(
        self, indices: Sequence[int] | NDArray[np.int64], counts: Sequence[int] | NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Next counts[i] numbers of each named stream, [sum(counts)], stream after stream; they are not used up.

        Raises:
            ValueError: a count is more than a block of 128 numbers.
        """
        rows, many = np.asarray(indices, dtype=np.int64), np.asarray(counts, dtype=np.int64)
        if many.max(initial=0) > _BLOCK:
            raise ValueError(f"at most {_BLOCK} numbers can be looked at ahead, not {many.max()}")
        self._fill(rows, many)
        begin = np.cumsum(many) - many
        offset = np.arange(many.sum()) - np.repeat(begin, many)
        numbers: NDArray[np.float64] = self._buffer[np.repeat(rows, many), np.repeat(self._next[rows], many) + offset]
        return numbers

    def skip(self, index: int, count: int) -> None:
        """Use up `count` numbers of a stream that were looked at.

        Raises:
            ValueError: so many are not drawn yet; the stream would lose numbers.
        """
        if self._next[index] + count > self._end[index]:
            raise ValueError(f"stream {index} cannot skip {count} numbers: they were not looked at")
        self._next[index] += count

    def _fill(self, rows: NDArray[np.int64], counts: NDArray[np.int64] | int) -> None:
        """Have counts[i] numbers ready in each stream."""
        for row in rows[self._next[rows] + counts > self._end[rows]]:
            rest = self._buffer[row, self._next[row] : self._end[row]].copy()
            self._buffer[row, : len(rest)] = rest
            self._buffer[row, len(rest) : len(rest) + _BLOCK] = self._generators[row].random(_BLOCK)
            self._next[row], self._end[row] = 0, len(rest) + _BLOCK
