"""Intervals, the paired test and Holm's correction, against numbers computed by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roleagent.ablation.statistics import Estimate, holm, mean_interval, paired_p_value, standard_error


def test_interval_of_three_by_hand() -> None:
    # mean 0.5; s^2 = (0.01 + 0 + 0.01) / 2 = 0.01; s / sqrt(3) = 0.1 / 1.7320508 = 0.05773503
    # t(0.975; 2) = 4.302653; half = 0.2484138
    found = mean_interval([0.4, 0.5, 0.6])
    assert found.mean == pytest.approx(0.5)
    assert found.low == pytest.approx(0.2515862, abs=1e-6)
    assert found.high == pytest.approx(0.7484138, abs=1e-6)
    assert found.n == 3


def test_interval_of_two_has_the_closed_form_of_cauchy() -> None:
    # With one degree of freedom t(0.975) = tan(pi * 0.475) = 12.7062; s / sqrt(2) = |a - b| / 2 = 0.1.
    found = mean_interval([0.0, 0.2])
    assert found.high == pytest.approx(0.1 + 0.1 * math.tan(math.pi * 0.475))
    assert mean_interval([0.0, 0.2], bounds=(0.0, 1.0)) == Estimate(0.1, 0.0, 1.0, 2)


def test_one_value_has_no_interval_and_none_no_mean() -> None:
    assert mean_interval([0.3]) == Estimate(0.3, None, None, 1)
    assert mean_interval([]) == Estimate(None, None, None, 0)
    assert standard_error([0.3]) == 0.0


def test_p_value_of_two_pairs_by_hand() -> None:
    # d = 0.1, 0.3: mean 0.2, s = sqrt(0.02) = 0.1414214, t = 0.2 / (0.1414214 / sqrt 2) = 2.
    # One degree of freedom is Cauchy: p = 2 (1/2 - arctan(2) / pi) = 0.2951672.
    assert paired_p_value([0.1, 0.3]) == pytest.approx(1 - 2 * math.atan(2) / math.pi)


def test_p_value_of_three_pairs_by_hand() -> None:
    # d = 1, 2, 3: t = 2 / (1 / sqrt 3) = 3.4641016. Two degrees of freedom: P(T > t) = (1 - t / sqrt(2 + t^2)) / 2.
    t = 2 * math.sqrt(3)
    assert paired_p_value([1, 2, 3]) == pytest.approx(1 - t / math.sqrt(2 + t * t))
    assert paired_p_value([1, 2, 3]) == pytest.approx(0.0741799, abs=1e-6)


def test_p_value_without_spread() -> None:
    assert paired_p_value([0.0, 0.0, 0.0]) == 1.0
    assert paired_p_value([0.1, 0.1, 0.1]) == 0.25  # all three signs of 2^3 equally likely patterns, or none
    assert paired_p_value([0.1]) is None
    assert paired_p_value([]) is None


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=6))
def test_p_value_is_one_of_a_two_sided_test(differences: list[float]) -> None:
    p = paired_p_value(differences)
    assert p is not None
    assert 0.0 <= p <= 1.0
    assert p == paired_p_value([-value for value in differences])


def test_the_test_and_the_interval_agree() -> None:
    # A 95 % interval that ends at 0 belongs to p = 0.05.
    half = (mean_interval([0.1, 0.2, 0.4]).high or 0.0) - 0.7 / 3
    shifted = [value - 0.7 / 3 + half for value in (0.1, 0.2, 0.4)]
    assert mean_interval(shifted).low == pytest.approx(0.0, abs=1e-12)
    assert paired_p_value(shifted) == pytest.approx(0.05)


def test_holm_by_hand() -> None:
    # Sorted 0.01, 0.02, 0.03, 0.04: x4 = 0.04, x3 = 0.06, x2 = 0.06, x1 = 0.04 raised to 0.06.
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([None, 0.02, None]) == [None, 0.02, None]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), max_size=6))
def test_holm_never_lowers_and_keeps_the_order(p_values: list[float]) -> None:
    corrected = holm(p_values)
    assert all(p is not None and before <= p <= 1.0 for before, p in zip(p_values, corrected, strict=True))
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    assert [corrected[place] for place in order] == sorted(p for p in corrected if p is not None)
