"""Single-turn generation on an engine whose distribution is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from roleagent.errors import PolicyError
from roleagent.policy.engines.base import Engine
from roleagent.policy.generate import generate
from roleagent.seeding import generator

STOP = 9


class CountingEngine:
    """After token i comes i + 1 for sure; token 0 is followed by 1 or 5, with probabilities 1/4 and 3/4."""

    vocab_size = 10
    max_context = 20
    device = torch.device("cpu")

    def __init__(self) -> None:
        self.slots: dict[int, list[int]] = {}
        self.widest = 0

    def open(self, count: int, max_length: int) -> list[int]:
        first = max(self.slots, default=-1) + 1
        self.slots.update({slot: [] for slot in range(first, first + count)})
        return list(range(first, first + count))

    def extend(self, slots: Sequence[int], ids: Sequence[Sequence[int]]) -> torch.Tensor:
        self.widest = max(self.widest, len(slots))
        logits = torch.full((len(slots), self.vocab_size), -math.inf)
        for row, (slot, new) in enumerate(zip(slots, ids, strict=True)):
            self.slots[slot] += new
            last = self.slots[slot][-1]
            if last == 0:
                logits[row, 1], logits[row, 5] = 0.0, math.log(3)
            else:
                logits[row, (last + 1) % 10] = 2.0
        return logits

    def step(self, slots: Sequence[int], token_ids: Any) -> torch.Tensor:
        return self.extend(slots, [[int(token)] for token in token_ids])

    def length(self, slot: int) -> int:
        return len(self.slots[slot])

    def truncate(self, slots: Sequence[int], lengths: Sequence[int]) -> None:
        raise AssertionError("nothing is taken back")

    def fork(self, slot: int, length: int) -> int:
        raise AssertionError("every prompt has its slot")

    def close(self, slots: Sequence[int]) -> None:
        for slot in slots:
            del self.slots[slot]

    def load_weights(self, weights: Any) -> None:
        raise AssertionError("generation must not touch weights")

    def snapshot(self) -> CountingEngine:
        return CountingEngine()


def test_stops_and_limits() -> None:
    engine = CountingEngine()
    prompts = [[3, 6], [7], [2]]
    answers = generate(engine, prompts, max_tokens=4, temperature=1.0, seeds=[1, 2, 3], stop={STOP})
    assert [answer.ids for answer in answers] == [(7, 8, 9), (8, 9), (3, 4, 5, 6)]
    assert [answer.ended for answer in answers] == [True, True, False]
    assert all(answer.logprobs == (0.0,) * len(answer.ids) for answer in answers)
    assert engine.slots == {}


def test_the_context_limits_an_answer() -> None:
    engine = CountingEngine()
    (answer,) = generate(engine, [[1] * 18], max_tokens=9, temperature=1.0, seeds=[1], stop={STOP})
    assert answer.ids == (2, 3)
    assert not answer.ended
    with pytest.raises(PolicyError, match="20 tokens leaves no room"):
        generate(engine, [[1] * 20], max_tokens=9, temperature=1.0, seeds=[1], stop={STOP})


def test_each_prompt_has_its_own_stream() -> None:
    """The same seed gives the same answer in any company; the draw is the stream's first number."""
    seeds = list(range(40))
    options: dict[str, Any] = {"max_tokens": 1, "temperature": 1.0, "stop": {STOP}}
    together = generate(CountingEngine(), [[0]] * 40, seeds=seeds, **options)
    expected = [1 if generator(seed, "tokens").random() < 0.25 else 5 for seed in seeds]
    assert [answer.ids[0] for answer in together] == expected
    assert {answer.ids[0] for answer in together} == {1, 5}
    engine = CountingEngine()
    assert generate(engine, [[0]] * 40, seeds=seeds, concurrency=7, **options) == together
    assert engine.widest == 7
    assert np.isclose(together[expected.index(1)].logprobs[0], math.log(0.25))


def test_nothing_to_do_and_wrong_seeds() -> None:
    assert generate(CountingEngine(), [], max_tokens=1, temperature=1.0, seeds=[], stop={STOP}) == []
    with pytest.raises(ValueError, match="as many seeds"):
        generate(CountingEngine(), [[1]], max_tokens=1, temperature=1.0, seeds=[], stop={STOP})


def test_slots_are_closed_after_an_error() -> None:
    engine = CountingEngine()
    with pytest.raises(ValueError, match="temperature"):
        generate(engine, [[1]], max_tokens=1, temperature=-1.0, seeds=[1], stop={STOP})
    assert engine.slots == {}
    assert isinstance(engine, Engine)
