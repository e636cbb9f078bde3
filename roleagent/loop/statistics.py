"""Intervals for reported success rates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_Z95 = 1.959963984540054  # 97.5 % quantile of the standard normal distribution


@dataclass(frozen=True, slots=True)
class Rate:
    """A success rate over n tasks with its 95 % Wilson interval; all values but n are in [0, 1]."""

    success: float
    low: float
    high: float
    n: int

    def as_dict(self) -> dict[str, float]:
        """Return a JSON-able mapping."""
        return {"success": self.success, "low": self.low, "high": self.high, "n": self.n}

    def __str__(self) -> str:
        return f"{self.success:.1%} (95 % interval {self.low:.1%} to {self.high:.1%}, {self.n} tasks)"


def success_rate(wins: int, n: int) -> Rate:
    """Return wins / n with the Wilson score interval (Wilson 1927), which stays in [0, 1] at the ends.

    Raises:
        ValueError: n is not positive, or wins is outside 0..n.
    """
    if n <= 0 or not 0 <= wins <= n:
        raise ValueError(f"{wins} wins of {n} tasks is not a rate")
    share = wins / n
    scale = 1 + _Z95**2 / n
    centre = (share + _Z95**2 / (2 * n)) / scale
    half = _Z95 * math.sqrt(share * (1 - share) / n + _Z95**2 / (4 * n * n)) / scale
    low = 0.0 if wins == 0 else max(0.0, centre - half)
    high = 1.0 if wins == n else min(1.0, centre + half)
    return Rate(share, low, high, n)


def paired_gain_p_value(before: Sequence[bool], after: Sequence[bool]) -> float:
    """Return the one-sided p-value of McNemar's exact test that `after` solves more of the same tasks.

    Only tasks that one of the two solves count: under no difference each is a fair coin.

    Raises:
        ValueError: the two do not speak of the same number of tasks.
    """
    from scipy.stats import binomtest

    gained = sum(new and not old for old, new in zip(before, after, strict=True))
    lost = sum(old and not new for old, new in zip(before, after, strict=True))
    if gained + lost == 0:
        return 1.0
    return float(binomtest(gained, gained + lost, 0.5, alternative="greater").pvalue)
