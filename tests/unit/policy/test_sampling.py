"""Sampling: a hand-computed case, frequencies, and streams that do not disturb each other."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roleagent.errors import PolicyError
from roleagent.policy.sampling import UniformStreams, sample


def test_hand_computed() -> None:
    """Probabilities 1/8, 5/8, 2/8: the CDF is 0.125, 0.75, 1."""
    logits = torch.tensor([[1.0, 5.0, 2.0]]).log().repeat(6, 1)
    ids, logprobs = sample(logits, 1.0, [0.0, 0.1249, 0.1251, 0.7499, 0.7501, 0.9999999])
    assert ids.tolist() == [0, 0, 1, 1, 2, 2]
    expected = [math.log(p) for p in (1 / 8, 1 / 8, 5 / 8, 5 / 8, 2 / 8, 2 / 8)]
    assert logprobs.tolist() == pytest.approx(expected, abs=1e-6)


def test_temperature_scales_the_recorded_distribution() -> None:
    """At temperature 2 the weights 1 and 9 become 1 and 3."""
    ids, logprobs = sample(torch.tensor([[1.0, 9.0]]).log().repeat(2, 1), 2.0, [0.24, 0.26])
    assert ids.tolist() == [0, 1]
    assert logprobs.tolist() == pytest.approx([math.log(0.25), math.log(0.75)], abs=1e-6)


def test_frequencies() -> None:
    rng = np.random.default_rng(0)
    logits = torch.randn(1, 12, generator=torch.Generator().manual_seed(0))
    n = 40_000
    ids, _ = sample(logits.expand(n, -1), 0.7, rng.random(n))
    found = torch.bincount(ids, minlength=12) / n
    expected = torch.softmax(logits[0] / 0.7, -1)
    assert (found - expected).abs().max() < 4 * math.sqrt(0.25 / n)


def test_impossible_tokens_are_never_drawn() -> None:
    """Also at the ends of the unit interval, in either order of the vocabulary."""
    logits = torch.tensor([[-math.inf, 0.0, -math.inf], [-2000.0, 0.0, -2000.0]])
    for u in (0.0, 0.5, 1.0 - 2**-53):
        ids, logprobs = sample(logits, 1.0, [u, u])
        assert ids.tolist() == [1, 1]
        assert logprobs.tolist() == [0.0, 0.0]


def test_logprobs_match_log_softmax() -> None:
    rng = np.random.default_rng(1)
    logits = torch.randn(64, 5000, generator=torch.Generator().manual_seed(1)) * 5 + 300
    ids, logprobs = sample(logits, 1.3, rng.random(64))
    expected = torch.log_softmax(logits.double() / 1.3, -1).gather(1, ids[:, None]).squeeze(1)
    torch.testing.assert_close(logprobs.double(), expected, atol=5e-5, rtol=0)


def test_at_temperature_zero_the_likeliest_token_is_taken() -> None:
    logits = torch.tensor([[0.1, 2.0, 2.0], [5.0, -1.0, 4.9]])
    ids, logprobs = sample(logits, 0.0, [0.99, 0.99])
    assert ids.tolist() == [1, 0], "of equal ones the first"
    assert logprobs.tolist() == [0.0, 0.0]
    assert (ids.dtype, logprobs.dtype) == (torch.int64, torch.float32)


@pytest.mark.parametrize("temperature", [-1.0, math.nan, math.inf])
def test_temperature_must_not_be_negative(temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature"):
        sample(torch.zeros(1, 2), temperature, [0.5])


def test_streams_are_independent_of_their_company() -> None:
    def generators() -> list[np.random.Generator]:
        return [np.random.default_rng(seed) for seed in range(3)]

    streams = UniformStreams(generators())
    drawn: list[list[float]] = [[], [], []]
    for turn in range(400):
        chosen = [index for index in range(3) if turn % (index + 1) == 0]
        for index, number in zip(chosen, streams.draw(chosen), strict=True):
            drawn[index].append(float(number))
    for numbers, generator in zip(drawn, generators(), strict=True):
        assert numbers == generator.random(len(numbers)).tolist()


def streams_of(count: int) -> UniformStreams:
    return UniformStreams([np.random.default_rng(seed) for seed in range(count)])


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.booleans(),
            st.permutations(range(3)),
            st.lists(st.tuples(st.integers(0, 128), st.floats(0, 1)), min_size=1, max_size=3),
        ),
        max_size=25,
    )
)
def test_numbers_that_are_looked_at_are_those_that_are_drawn(
    calls: list[tuple[bool, list[int], list[tuple[int, float]]]],
) -> None:
    """In any order of draw, peek and skip, a stream is its generator's."""
    streams = streams_of(3)
    expected = [np.random.default_rng(seed).random(25 * 128 + 256).tolist() for seed in range(3)]
    used = [0, 0, 0]
    for draws, order, parts in calls:
        chosen = order[: len(parts)]
        if draws:
            assert streams.draw(chosen).tolist() == [expected[index][used[index]] for index in chosen]
            for index in chosen:
                used[index] += 1
            continue
        counts = [count for count, _ in parts]
        ahead = [
            number
            for index, count in zip(chosen, counts, strict=True)
            for number in expected[index][used[index] : used[index] + count]
        ]
        for _ in range(2):
            assert streams.peek(chosen, counts).tolist() == ahead, "looking uses nothing up"
        for index, (count, share) in zip(chosen, parts, strict=True):
            streams.skip(index, int(count * share))
            used[index] += int(count * share)


def test_too_many_numbers_at_once_are_refused() -> None:
    streams = streams_of(2)
    with pytest.raises(ValueError, match="at most 128 numbers can be looked at ahead, not 129"):
        streams.peek([0, 1], [1, 129])
    with pytest.raises(ValueError, match="stream 1 cannot skip 1 numbers"):
        streams.skip(1, 1)
    streams.peek([1], [5])
    streams.skip(1, 128)
    with pytest.raises(ValueError, match="were not looked at"):
        streams.skip(1, 1)
    assert streams.peek([], []).tolist() == []


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "row",
    [[0.0, math.nan, 1.0], [0.0, math.inf, 1.0], [math.nan] * 3, [-math.inf] * 3],
    ids=["nan", "inf", "all", "no"],
)
def test_logits_that_are_not_finite_are_refused(row: list[float], temperature: float) -> None:
    with pytest.raises(PolicyError, match=r"not finite.*learner\.learning_rate"):
        sample(torch.tensor([[0.0, 1.0, 2.0], row]), temperature, [0.5, 0.5])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_token_may_be_ruled_out(temperature: float) -> None:
    ids, logprobs = sample(torch.tensor([[-math.inf, 3.0, -math.inf]]), temperature, [0.9])
    assert (ids.tolist(), logprobs.tolist()) == ([1], [0.0])
