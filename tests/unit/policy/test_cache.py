"""The slot cache keeps every slot's content while rows move, grow and are reused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roleagent.errors import PolicyError
from roleagent.policy.engines.cache import SlotCache, causal_bias


class _Model:
    """Writes running numbers into a cache as an engine would, and remembers them."""

    def __init__(self) -> None:
        self.cache = SlotCache(10_000)
        self.content: dict[int, list[float]] = {}
        self.number = 0.0

    @torch.inference_mode()
    def append(self, slots: list[int], count: int, slack: float) -> None:
        rows, span = self.cache.arrange(slots, slack)
        assert span <= int(np.ceil(slack * len(slots)))
        counts = np.full(len(slots), count)
        self.cache.advance(slots, rows, counts)
        for layer in range(2):
            store = self.cache.layer(layer, 1, 2, 3, torch.zeros(1))
            for slot, row in zip(slots, rows.tolist(), strict=True):
                for offset in range(count):
                    store.keys[row, :, self.cache.length(slot) + offset] = self.number + offset + 0.25 * layer
                    store.values[row, :, self.cache.length(slot) + offset] = -(self.number + offset)
        for slot in slots:
            self.content[slot] += [self.number + offset for offset in range(count)]
        self.number += count
        self.cache.commit(rows, counts)

    def truncate(self, slots: list[int], lengths: list[int]) -> None:
        self.cache.truncate(slots, lengths)
        for slot, length in zip(slots, lengths, strict=True):
            del self.content[slot][length:]

    def check(self) -> None:
        for slot, expected in self.content.items():
            rows, _ = self.cache.arrange([slot], 1e9)
            length = self.cache.length(slot)
            assert length == len(expected)
            for layer, store in self.cache.layers.items() if expected else ():
                keys, values = store.keys[rows[0], 0, :length], store.values[rows[0], 0, :length]
                assert keys[:, 1].tolist() == [number + 0.25 * layer for number in expected]
                assert values[:, 2].tolist() == [-number for number in expected]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_content_follows_its_slot(data: st.DataObject) -> None:
    model = _Model()
    for _ in range(data.draw(st.integers(1, 12))):
        if not model.content or data.draw(st.booleans()):
            for slot in model.cache.open(data.draw(st.integers(1, 4)), 5000):
                model.content[slot] = []
        live = data.draw(st.permutations(list(model.content)))
        chosen = live[: data.draw(st.integers(1, len(live)))]
        action = data.draw(st.integers(0, 5))
        if action == 0:
            model.cache.close(chosen)
            for slot in chosen:
                del model.content[slot]
        elif action == 5:
            for slot in chosen:
                length = data.draw(st.integers(0, len(model.content[slot])))
                model.content[model.cache.fork(slot, length)] = model.content[slot][:length]
        elif action == 1:
            model.truncate(chosen, [data.draw(st.integers(0, len(model.content[slot]))) for slot in chosen])
        else:
            model.append(chosen, data.draw(st.sampled_from([1, 3, 150])), data.draw(st.sampled_from([1.0, 1.25, 2.0])))
        model.check()


def test_truncated_tokens_are_written_over() -> None:
    model = _Model()
    first, second = slots = model.cache.open(2, 10)
    model.content = {slot: [] for slot in slots}
    model.append(slots, 4, 1.0)
    model.truncate([second, first], [0, 3])
    assert [model.cache.length(slot) for slot in slots] == [3, 0]
    model.check()
    model.append(slots, 2, 1.0)
    assert model.content == {first: [0.0, 1.0, 2.0, 4.0, 5.0], second: [4.0, 5.0]}
    model.check()
    for length in (3, -1):
        with pytest.raises(ValueError, match=f"slot {second} holds 2 tokens and cannot keep {length}"):
            model.cache.truncate([second], [length])
    rows = model.cache.rows([second, first])
    assert model.cache.lengths_of(rows).tolist() == [2, 5]


def test_a_fork_goes_its_own_way() -> None:
    model = _Model()
    (slot,) = model.cache.open(1, 6)
    model.content = {slot: []}
    model.append([slot], 4, 1.0)
    for length in (5, -1):
        with pytest.raises(ValueError, match=f"slot {slot} holds 4 tokens, of which {length} are asked for"):
            model.cache.fork(slot, length)
    forks = [model.cache.fork(slot, length) for length in (3, 0, 4)]
    assert len({slot, *forks}) == 4
    model.content.update({fork: model.content[slot][: model.cache.length(fork)] for fork in forks})
    assert [model.cache.length(fork) for fork in forks] == [3, 0, 4]
    model.check()
    model.append([forks[0], slot], 2, 1.0)
    model.check()
    with pytest.raises(ValueError, match="opened for 6 tokens"):
        model.append([forks[2]], 3, 1.0)


def test_rows_are_added_several_at_a_time() -> None:
    model = _Model()
    (slot,) = model.cache.open(1, 10)
    model.content = {slot: []}
    model.append([slot], 2, 1.0)
    sizes = set()
    for _ in range(40):
        fork = model.cache.fork(slot, 2)
        model.content[fork] = list(model.content[slot])
        sizes.add(len(model.cache.layers[0].keys))
    model.check()
    assert len(sizes) < 20


def test_memory_goes_with_the_last_slot() -> None:
    model = _Model()
    slots = model.cache.open(2, 10)
    model.content = {slot: [] for slot in slots}
    model.append(slots, 2, 1.0)
    model.cache.close(slots[:1])
    assert model.cache.layers
    model.cache.close(slots[1:])
    assert not model.cache.layers
    assert set(model.cache.open(2, 10)).isdisjoint(slots)


def test_misuse_is_refused() -> None:
    cache = SlotCache(100)
    with pytest.raises(PolicyError, match=r"101 tokens .* takes 100; lower policy.max_context"):
        cache.open(1, 101)
    slots = cache.open(3, 100)
    with pytest.raises(ValueError, match="twice"):
        cache.arrange([slots[2], slots[2]], 1.0)
    with pytest.raises(KeyError):
        cache.length(99)


def test_causal_bias() -> None:
    low = torch.finfo(torch.float32).min
    expected = torch.tensor([[0.0, low, low], [0.0, 0.0, 0.0]])
    assert torch.equal(causal_bias(torch.tensor([0, 2]), 3, torch.float32), expected)
