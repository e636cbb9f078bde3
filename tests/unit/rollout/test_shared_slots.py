"""Lanes that share slots: whatever the schedule, a slot begins with the sequence of every lane that is in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from hypothesis import given, settings
from hypothesis import strategies as st

from roleagent.policy.engines.base import Engine
from roleagent.rollout.shared_slots import SharedSlots

LANES, LIMIT = 5, 1000


class Memory:
    """An engine that remembers what it was given, and nothing else."""

    def __init__(self) -> None:
        self.content: dict[int, list[int]] = {}
        self.opened = 0

    def open(self, count: int, max_length: int) -> list[int]:
        assert max_length == LIMIT
        slots = list(range(self.opened, self.opened + count))
        self.opened += count
        self.content.update((slot, []) for slot in slots)
        return slots

    def truncate(self, slots: Sequence[int], lengths: Sequence[int]) -> None:
        for slot, length in zip(slots, lengths, strict=True):
            assert length <= len(self.content[slot])
            del self.content[slot][length:]

    def fork(self, slot: int, length: int) -> int:
        assert length <= len(self.content[slot])
        (new,) = self.open(1, LIMIT)
        self.content[new] = self.content[slot][:length]
        return new

    def close(self, slots: Sequence[int]) -> None:
        for slot in slots:
            del self.content[slot]


class Play:
    """Lanes that read rows and guesses behind them; each lane keeps some of the guesses."""

    def __init__(self, *, share: bool) -> None:
        self.engine = Memory()
        self.slots = SharedSlots(cast("Engine", self.engine), LANES, LIMIT, share=share)
        self.sequences: list[list[int]] = [[] for _ in range(LANES)]

    def read(self, rows: dict[int, list[int]], guesses: list[int], kept: dict[int, int]) -> list[list[int]]:
        readings = self.slots.gather(rows)
        assert sorted(lane for reading in readings for lane in reading.lanes) == sorted(rows)
        assert len({reading.slot for reading in readings}) == len(readings)
        for reading in readings:
            for lane in reading.lanes:
                assert (reading.held, list(reading.ids)) == (len(self.sequences[lane]), rows[lane])
                assert self.engine.content[reading.slot] == self.sequences[lane], "cut to what is held"
            self.engine.content[reading.slot] += [*reading.ids, *guesses]
            for lane in reading.lanes:
                self.sequences[lane] += [*reading.ids, *guesses[: kept[lane]]]
                self.slots.held[lane] = len(self.sequences[lane])
        return [reading.lanes for reading in readings]

    def leave(self, lane: int) -> None:
        self.slots.leave(lane)
        self.sequences[lane] = []


@settings(max_examples=150, deadline=None)
@given(st.data(), st.booleans())
def test_a_slot_begins_with_the_sequence_of_each_of_its_lanes(data: st.DataObject, share: bool) -> None:
    play = Play(share=share)
    few = st.integers(0, 1)
    for _ in range(data.draw(st.integers(1, 12))):
        lanes = data.draw(st.lists(st.integers(0, LANES - 1), min_size=1, unique=True))
        if data.draw(st.integers(0, 4)) == 0:
            for lane in lanes:
                play.leave(lane)
            continue
        rows = {lane: data.draw(st.lists(few, min_size=1, max_size=2)) for lane in lanes}
        before = {lane: list(play.sequences[lane]) for lane in lanes}
        guesses = data.draw(st.lists(few, max_size=2))
        together = play.read(rows, guesses, {lane: data.draw(st.integers(0, len(guesses))) for lane in lanes})
        for group in together:
            assert len({tuple(before[lane] + rows[lane]) for lane in group}) == 1
            assert share or len(group) == 1
        assert len(play.engine.content) <= LANES
    play.slots.close()
    assert not play.engine.content


def test_lanes_stay_together_until_they_part() -> None:
    play = Play(share=True)
    none = dict.fromkeys(range(LANES), 0)
    assert play.read({0: [7, 7], 1: [7, 7], 2: [7, 8]}, [], none) == [[0, 1], [2]]
    assert play.read({0: [1], 1: [1], 2: [1]}, [5, 6], {0: 2, 1: 1, 2: 0}) == [[0, 1], [2]]
    assert len(play.engine.content) == 2, "lane 1 holds less than lane 0, in the same slot"
    assert play.read({1: [9]}, [], none) == [[1]]
    assert len(play.engine.content) == 3, "it may not write over what lane 0 holds"
    play.leave(0)
    assert len(play.engine.content) == 2
    assert play.engine.opened == 3


def test_who_holds_most_keeps_the_slot() -> None:
    play = Play(share=True)
    play.read({0: [7], 1: [7]}, [5, 6], {0: 1, 1: 2})
    first = set(play.engine.content)
    play.read({0: [3], 1: [3]}, [], dict.fromkeys(range(LANES), 0))
    (other,) = set(play.engine.content) - first
    assert play.engine.content[other] == play.sequences[0] == [7, 5, 3]
    assert play.engine.content[first.pop()] == play.sequences[1] == [7, 5, 6, 3]


def test_lanes_that_come_later_find_their_beginning_untouched() -> None:
    play = Play(share=True)
    none = dict.fromkeys(range(LANES), 0)
    play.read({0: [7], 1: [7]}, [], none)
    play.read({0: [1, 2, 3]}, [], none)
    assert len(play.engine.content) == 1, "lane 1 waits and needs the first token only"
    play.read({1: [4]}, [], none)
    assert sorted(play.engine.content.values()) == [[7, 1, 2, 3], [7, 4]]
