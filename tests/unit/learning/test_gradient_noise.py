"""The gradient noise scale: by hand, exactly over all halves, and unbiased on synthetic gradients."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
import torch

from roleagent.learning.gradient_noise import (
    SIGNAL,
    TRACE,
    draw_half,
    estimate,
    noise_interval,
    noise_scale,
    squared_norm,
)
from roleagent.types import TrainingSequence


def sequence(trajectory_id: str = "", group: str = "") -> TrainingSequence:
    return TrainingSequence((1, 2), (False, True), (0.0, 1.0), (0.0, -1.0), trajectory_id, group=group)


def test_by_hand() -> None:
    # Four units with the gradients (3, 0), (1, 0), (0, 2), (0, 0): their mean is (1, 0.5), |g_B|^2 = 1.25. The half
    # of the first two adds (1, 0) to it, of squared norm 1; its own gradient is (2, 0), |g_b|^2 = 4.
    # signal = (4 * 1.25 - 2 * 4) / 2 = -1.5;  trace = (4 - 1.25) / (1/2 - 1/4) = 11
    assert estimate(1.0, 1.25, 2, 4) == (pytest.approx(-1.5), pytest.approx(11.0))


def test_units_that_agree_have_no_noise() -> None:
    signal, trace = estimate(9.0, 36.0, 1, 2)
    assert (signal, trace) == (pytest.approx(36.0), pytest.approx(0.0))


@pytest.mark.parametrize("count", [2, 3, 4, 7])
def test_over_all_halves_it_is_the_sample_variance(count: int) -> None:
    """Averaged over every half the two are the textbook's unbiased estimates: tr of the sample covariance, and
    |mean|^2 less its noise.
    """
    gradients = np.random.default_rng(count).normal(size=(count, 5))
    mean, covariance = gradients.mean(axis=0), np.cov(gradients.T)
    small = count // 2
    found = [
        estimate(float(((gradients[list(half)].sum(axis=0) / count) ** 2).sum()), float(mean @ mean), small, count)
        for half in combinations(range(count), small)
    ]
    signal, trace = np.mean(found, axis=0)
    assert trace == pytest.approx(np.trace(covariance))
    assert signal == pytest.approx(mean @ mean - np.trace(covariance) / count)


def test_unbiased_on_gradients_whose_noise_is_known() -> None:
    # |G|^2 = 0.25 and S = 10 * 2.25 = 22.5, so B_simple = 90 tasks: far more than the 8 of a batch.
    draw = np.random.default_rng(0)
    true = np.full(10, np.sqrt(0.025))
    steps = 40_000
    gradients = true + 1.5 * draw.normal(size=(steps, 8, 10))
    half = (gradients[:, :4].sum(axis=1) / 8) ** 2
    whole = gradients.mean(axis=1) ** 2
    rows = []
    for small, big in zip(half.sum(axis=1).tolist(), whole.sum(axis=1).tolist(), strict=True):
        signal, trace = estimate(small, big, 4, 8)
        rows.append({SIGNAL: signal, TRACE: trace})
    signals, traces = np.array([row[SIGNAL] for row in rows]), np.array([row[TRACE] for row in rows])
    for values, truth in ((signals, 0.25), (traces, 22.5)):
        assert abs(values.mean() - truth) < 4 * values.std() / np.sqrt(steps)
    assert noise_scale(rows) == pytest.approx(90, rel=0.1)
    assert (signals < 0).mean() > 0.3  # of a single step it says little: this is why no step has a ratio


def test_a_half_keeps_groups_whole_and_is_drawn_from_its_name() -> None:
    batch = [sequence(f"t{place}", f"task-{place % 5}") for place in range(15)]
    half = draw_half(batch, range(15), seed=1, iteration=2, step=0)
    assert half is not None
    assert (half.small, half.big, len(half.first)) == (2, 5, 6)
    assert len({batch[place].group for place in half.first}) == 2
    first, rest = half.parts(range(15))
    assert sorted(first + rest) == list(range(15))
    assert set(first) == half.first
    assert half == draw_half(batch, range(15), seed=1, iteration=2, step=0)
    others = [draw_half(batch, range(15), seed=1, iteration=n, step=0) for n in range(3, 13)]
    assert any(other != half for other in others)


def test_without_groups_a_trajectory_is_the_unit_and_without_those_a_sequence() -> None:
    half = draw_half([sequence("a"), sequence("a"), sequence("b")], [0, 1, 2], seed=0, iteration=0, step=0)
    assert half is not None
    assert half.first in ({0, 1}, {2})
    loose = draw_half([sequence(), sequence()], [0, 1], seed=0, iteration=0, step=0)
    assert loose is not None
    assert loose.big == 2
    assert draw_half([sequence("a"), sequence("a")], [0, 1], seed=0, iteration=0, step=0) is None


def test_the_scale_is_a_ratio_of_means_and_nothing_without_a_signal() -> None:
    rows = [{SIGNAL: 3.0, TRACE: 10.0}, {"update/loss": 1.0}, {SIGNAL: -1.0, TRACE: 30.0}]
    assert noise_scale(rows) == pytest.approx(20.0)
    assert noise_scale([{SIGNAL: -1.0, TRACE: 5.0}]) is None
    assert noise_scale([{SIGNAL: 1.0, TRACE: -5.0}]) == 0.0
    assert noise_scale([]) is None


def test_the_interval_holds_the_scale_and_has_a_lower_end_without_a_signal() -> None:
    draw = np.random.default_rng(1)

    def rows(signal: float, spread: float) -> list[dict[str, float]]:
        return [{SIGNAL: signal + spread * z, TRACE: 20.0} for z in draw.normal(size=100)]

    # The mean of 100 signals of 2 +- 4 is 2 +- 0.4: 20 / (2 +- 1.96 * 0.4).
    found = noise_interval(rows(2.0, 4.0))
    assert found is not None
    assert found == pytest.approx((20 / 2.78, 20 / 1.22), rel=0.3)
    low, high = noise_interval(rows(0.0, 4.0)) or (0.0, 0.0)  # 0 +- 0.78 at 95 %
    assert 20 / 1.6 < low < 20 / 0.3
    assert high == math.inf
    assert noise_interval(rows(-9.0, 4.0)) == (math.inf, math.inf)


def test_an_interval_takes_iterations() -> None:
    measured = {SIGNAL: 2.0, TRACE: 10.0}
    assert noise_interval([measured] * 8) == pytest.approx((5.0, 5.0))
    assert noise_interval([measured] * 7) is None
    assert noise_interval([{"update/loss": 1.0}] * 8) is None
    assert noise_interval([{SIGNAL: 2.0, TRACE: -1.0}] * 8) == (0.0, 0.0)
    mixed = [measured] * 3 + [{SIGNAL: -1.0, TRACE: 4.0}] * 9
    assert noise_interval(mixed) == noise_interval(mixed)


def test_squared_norm() -> None:
    gradients = [torch.tensor([3.0, 0.0]), None, torch.tensor([[4.0]])]
    assert float(squared_norm(gradients)) == pytest.approx(25.0)
    assert float(squared_norm([None])) == 0.0
