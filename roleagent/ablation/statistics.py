"""Means over seeds, paired differences and their p-values: pure functions of numbers.

Two variants with the same seed start from the same policy and are evaluated on the same held-out tasks, so they are
compared as a pair. The test is Student's paired t-test, two-sided. Rank and sign tests were not chosen: their smallest
possible p-value with n pairs is 2^(1-n), that is 0.25 with three seeds and 0.0625 with five, so they could never find
anything here. The t-test pays for its power by taking the differences for normal, which is mild for differences of
success rates over a hundred tasks or more. Intervals are Student's t intervals, for the same reason: resampling three
or five numbers makes intervals that are too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_SPAN = 1e-12  # differences that lie within this of each other have no spread


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over n seeds with its 95 % t interval; without an interval where n is 1, without a mean where n is 0."""

    mean: float | None
    low: float | None
    high: float | None
    n: int

    def as_dict(self) -> dict[str, float | int | None]:
        """Return a JSON-able mapping."""
        return {"mean": self.mean, "low": self.low, "high": self.high, "n": self.n}


def mean_interval(
    values: Sequence[float], *, bounds: tuple[float, float] = (-math.inf, math.inf), confidence: float = 0.95
) -> Estimate:
    """Return mean +- t(1 - (1 - confidence) / 2; n - 1) * s / sqrt(n), with s of divisor n - 1.

    Args:
        values: one a seed, [n].
        bounds: what the quantity can be at all; the interval is cut there. (0, 1) for a rate.
        confidence: coverage of the interval under normality.
    """
    n = len(values)
    if n == 0:
        return Estimate(None, None, None, 0)
    mean = math.fsum(values) / n
    if n == 1:
        return Estimate(mean, None, None, 1)
    from scipy.special import stdtrit

    half = float(stdtrit(n - 1, 0.5 + confidence / 2)) * standard_error(values)
    return Estimate(mean, max(bounds[0], mean - half), min(bounds[1], mean + half), n)


def standard_error(values: Sequence[float]) -> float:
    """Return s / sqrt(n), s with divisor n - 1; 0 for a single value."""
    n = len(values)
    if n < 2:
        return 0.0
    mean = math.fsum(values) / n
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1) / n)


def paired_p_value(differences: Sequence[float]) -> float | None:
    """Return the two-sided p-value of the paired t-test that the mean difference is 0; None for less than two pairs.

    Differences without spread have no t. If they are all 0, p is 1; else it is that of the exact sign-flip test,
    2^(1-n): all n signs agree, and no magnitude speaks against it.

    Args:
        differences: one a seed, variant minus reference, [n].
    """
    n = len(differences)
    if n < 2:
        return None
    if max(differences) - min(differences) <= _SPAN:
        return 1.0 if abs(differences[0]) <= _SPAN else 2.0 ** (1 - n)
    from scipy.special import stdtr

    t = math.fsum(differences) / n / standard_error(differences)
    return float(2 * stdtr(n - 1, -abs(t)))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return p-values corrected for their number after Holm (1979), in the given order; None stays None.

    Sorted upwards, the k-th smallest of m (k from 0) becomes p * (m - k), never less than the one before it, at most 1.
    Rejecting what is then <= 0.05 keeps the chance of any false rejection under 0.05, whatever the tests' dependence.
    """
    order = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for rank, (p, place) in enumerate(order):
        highest = max(highest, min(1.0, p * (len(order) - rank)))
        corrected[place] = highest
    return corrected
