"""The gradient noise scale: at how many tasks a batch stops paying for itself.

    g        gradient of a minibatch's loss, over B units;  G the true gradient, S = tr(Sigma), Sigma the covariance of
             the gradient of one unit
    E |g|^2 = |G|^2 + S / B                                                (McCandlish et al. 2018, appendix A.1)

    signal = (B |g_B|^2 - b |g_b|^2) / (B - b)                             unbiased estimate of |G|^2
    trace  = (|g_b|^2 - |g_B|^2) / (1 / b - 1 / B)                         unbiased estimate of S
    B_simple = mean trace / mean signal                                    in units; means over a run's optimizer steps

Below B_simple twice the batch is nearly as good as two steps; far above it, a larger batch changes little.

A unit is what a minibatch holds of a task's group: within a group the advantages are made together, so its episodes
are not independent draws, and groups are. With one minibatch a pass that is the whole group. Several share every group
out among themselves: a unit is then a part of it, which is noisier than the whole, and B_simple is a count of such
parts. The small batch is a random half of the minibatch's units: gradients are accumulated half after half,
so |g_b| is read in the middle of a pass that is made anyway. Everything is of the loss that is minimised, KL, entropy
and value terms included, before clipping; units of zero gradient count. `signal` and `trace` of one step are very
noisy, and `signal` may be negative, so no ratio is taken of them: only means over many steps may be divided.

Where G is small beside the noise, mean signal may not be positive and B_simple has no value. Its interval still has a
lower end: the optimizer steps are drawn again with replacement (percentile bootstrap), and draws without a positive
signal count as infinite.

Source: arXiv 1812.06162, section 2.2 and appendix A.1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from roleagent.seeding import generator
from roleagent.types import TrainingSequence

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

SIGNAL = "gradient_noise/signal"
TRACE = "gradient_noise/trace"
BATCH = "gradient_noise/batch"  #: B, units of a minibatch

_FEWEST = 8  # iterations that an interval takes
_RESAMPLES = 2000


class Half(NamedTuple):
    """A random half of a minibatch's units."""

    first: frozenset[int]  #: positions of its sequences
    small: int  #: its units, b
    big: int  #: units of the minibatch, B

    def parts(self, positions: Sequence[int]) -> list[list[int]]:
        """Split positions into those of the half and the others; a part may be empty."""
        return [[place for place in positions if (place in self.first) == chosen] for chosen in (True, False)]


def draw_half(
    sequences: Sequence[TrainingSequence], share: Sequence[int], *, seed: int, iteration: int, step: int
) -> Half | None:
    """Draw floor(B / 2) of the units of a minibatch; None if it has one unit only.

    Args:
        sequences: the whole batch. Those of one `group` are a unit; without it, those of one trajectory; else each.
        share: positions of the minibatch.
        seed, iteration, step: name the draw.
    """
    units: dict[str, list[int]] = {}
    for position in share:
        sequence = sequences[position]
        units.setdefault(sequence.group or sequence.trajectory_id or f"\0{position}", []).append(position)
    if len(units) < 2:
        return None
    order = generator(seed, iteration, "gradient noise", step).permutation(len(units))
    members = list(units.values())
    small = len(units) // 2
    return Half(frozenset(place for unit in order[:small] for place in members[unit]), small, len(units))


def estimate(half_square: float, whole_square: float, small: int, big: int) -> tuple[float, float]:
    """Return (signal, trace) from two accumulated gradients of one minibatch.

    Args:
        half_square: squared norm of what the `small` units of the half contribute to the minibatch's gradient. As the
            loss is divided by the whole minibatch, the half's own gradient g_b is big / small times as long.
        whole_square: |g_B|^2.
        small: b, at least 1.
        big: B, above b.
    """
    small_square = half_square * (big / small) ** 2
    signal = (big * whole_square - small * small_square) / (big - small)
    trace = (small_square - whole_square) / (1.0 / small - 1.0 / big)
    return signal, trace


def squared_norm(gradients: Iterable[Tensor | None]) -> Tensor:
    """Return the sum of squares of all gradients, a float64 scalar on their device; 0 where there is none yet."""
    import torch

    norms = [torch.linalg.vector_norm(gradient.detach()) for gradient in gradients if gradient is not None]
    return torch.stack(norms).double().square().sum() if norms else torch.zeros((), dtype=torch.float64)


def noise_scale(rows: Iterable[Mapping[str, float]]) -> float | None:
    """Return B_simple over the iterations of a run, in tasks; None where it was not measured or no signal was found."""
    signal, trace = _measured(rows).sum(axis=0).tolist()
    return max(trace, 0.0) / signal if signal > 0 else None


def noise_interval(rows: Iterable[Mapping[str, float]]) -> tuple[float, float] | None:
    """Return the 95 % bootstrap interval of B_simple, in tasks; infinity where there is no end.

    None with fewer than `_FEWEST` iterations that were measured.
    """
    found = _measured(rows)
    if len(found) < _FEWEST:
        return None
    picks = generator(0, 0, "gradient noise interval").integers(len(found), size=(_RESAMPLES, len(found)))
    signals, traces = np.moveaxis(found[picks].sum(axis=1), 1, 0)
    scales = np.full(_RESAMPLES, math.inf)
    np.divide(np.maximum(traces, 0.0), signals, out=scales, where=signals > 0)
    low, high = np.quantile(scales, [0.025, 0.975], method="inverted_cdf").tolist()
    return low, high


def _measured(rows: Iterable[Mapping[str, float]]) -> NDArray[np.float64]:
    """Signal and trace of the iterations that have them, [n, 2]."""
    return np.asarray([(row[SIGNAL], row[TRACE]) for row in rows if SIGNAL in row and TRACE in row]).reshape(-1, 2)
