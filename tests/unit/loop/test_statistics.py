"""Intervals and the paired test, against numbers computed by hand or published."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roleagent.loop.statistics import paired_gain_p_value, success_rate

Z = 1.959963984540054


def test_wilson_of_five_in_ten() -> None:
    # z^2 = 3.841459; centre (0.5 + 3.841459/20) / 1.3841459 = 0.5;
    # half = 1.959964 sqrt(0.025 + 3.841459/400) / 1.3841459 = 1.959964 x 0.186021 / 1.3841459 = 0.263406
    rate = success_rate(5, 10)
    assert (rate.success, rate.n) == (0.5, 10)
    assert rate.low == pytest.approx(0.236593, abs=1e-6)
    assert rate.high == pytest.approx(0.763407, abs=1e-6)


def test_wilson_of_a_published_case() -> None:
    # Newcombe 1998, table I: 81 of 263 has the score interval 0.2553 to 0.3662.
    rate = success_rate(81, 263)
    assert rate.low == pytest.approx(0.2553, abs=5e-5)
    assert rate.high == pytest.approx(0.3662, abs=5e-5)


@pytest.mark.parametrize(("wins", "low", "high"), [(0, 0.0, 3.841459 / 13.841459), (10, 10 / 13.841459, 1.0)])
def test_wilson_at_the_ends(wins: int, low: float, high: float) -> None:
    # With no wins the bound is z^2 / (n + z^2), with all of them n / (n + z^2).
    rate = success_rate(wins, 10)
    assert rate.low == pytest.approx(low, abs=1e-6)
    assert rate.high == pytest.approx(high, abs=1e-6)


@pytest.mark.parametrize(("wins", "n"), [(0, 0), (-1, 5), (6, 5)])
def test_what_is_no_rate_is_refused(wins: int, n: int) -> None:
    with pytest.raises(ValueError, match="is not a rate"):
        success_rate(wins, n)


@given(st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_interval_holds_the_share_and_its_ends_solve_the_score_equation(case: tuple[int, int]) -> None:
    wins, n = case
    rate = success_rate(wins, n)
    assert 0.0 <= rate.low <= rate.success <= rate.high <= 1.0
    mirror = success_rate(n - wins, n)
    assert rate.low == pytest.approx(1.0 - mirror.high, abs=1e-12)
    for bound in (rate.low, rate.high):
        if 0.0 < bound < 1.0:  # |share - bound| = z sqrt(bound (1 - bound) / n)
            assert abs(rate.success - bound) == pytest.approx(Z * math.sqrt(bound * (1 - bound) / n), abs=1e-9)


def test_rate_as_text_and_mapping() -> None:
    rate = success_rate(5, 10)
    assert str(rate) == "50.0% (95 % interval 23.7% to 76.3%, 10 tasks)"
    assert rate.as_dict() == {"success": 0.5, "low": rate.low, "high": rate.high, "n": 10}


def outcomes(gained: int, lost: int, both: int = 3, none: int = 2) -> tuple[list[bool], list[bool]]:
    before = [False] * gained + [True] * lost + [True] * both + [False] * none
    after = [True] * gained + [False] * lost + [True] * both + [False] * none
    return before, after


@pytest.mark.parametrize(
    ("gained", "lost", "p_value"),
    [
        (9, 1, 11 / 1024),  # (C(10,9) + C(10,10)) / 2^10
        (3, 0, 1 / 8),
        (5, 0, 1 / 32),
        (2, 2, 11 / 16),  # (6 + 4 + 1) / 2^4
        (0, 4, 1.0),
        (1, 3, 15 / 16),
        (0, 0, 1.0),
    ],
)
def test_exact_paired_test(gained: int, lost: int, p_value: float) -> None:
    assert paired_gain_p_value(*outcomes(gained, lost)) == pytest.approx(p_value, abs=1e-12)


@given(st.integers(0, 12), st.integers(0, 12), st.integers(0, 50), st.integers(0, 50))
def test_tasks_that_both_solve_or_fail_do_not_count(gained: int, lost: int, both: int, none: int) -> None:
    assert paired_gain_p_value(*outcomes(gained, lost, both, none)) == paired_gain_p_value(
        *outcomes(gained, lost, 0, 0)
    )


def test_paired_test_needs_the_same_tasks() -> None:
    with pytest.raises(ValueError, match="shorter"):
        paired_gain_p_value([True, False], [True])
