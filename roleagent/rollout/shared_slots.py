"""Episodes whose sequences are the same so far share one slot of the engine.

The episodes of a task begin alike, and a policy that knows what to do goes on alike for many turns. As long as they do,
the model's answer is computed once for all of them, and each draws its own token from it with its own random number:
what an episode samples is what it would sample alone, up to rounding. Where they part, the slot is forked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roleagent.policy.engines.base import Engine


@dataclass(slots=True)
class Reading:
    """What the engine reads next in one slot, for all lanes that share it."""

    slot: int
    held: int  #: tokens of the slot that belong to the sequence; what is behind them is leftovers
    ids: Sequence[int]
    lanes: list[int]


class SharedSlots:
    """The slot of each lane, and how many of its tokens are the lane's sequence.

    Invariant: the first `held[lane]` tokens of a lane's slot are its sequence, whoever else is in the slot. Only lanes
    that hold as much as any other lane of the slot write into it.
    """

    def __init__(self, engine: Engine, lanes: int, max_length: int, *, share: bool) -> None:
        """Open nothing yet. `share` false: a slot a lane."""
        self._engine = engine
        self._max_length = max_length
        self._share = share
        self._slot: list[int | None] = [None] * lanes
        self._members: dict[int, set[int]] = {}
        self.held = [0] * lanes

    def leave(self, lane: int) -> None:
        """The lane's sequence is over; the next one begins in a new slot."""
        slot = self._slot[lane]
        if slot is not None:
            self._members[slot].remove(lane)
            if not self._members[slot]:
                del self._members[slot]
                self._engine.close([slot])
        self._slot[lane], self.held[lane] = None, 0

    def gather(self, rows: Mapping[int, Sequence[int]]) -> list[Reading]:
        """Say what is to be read so that each lane of `rows` reads its row behind what it holds.

        Lanes that hold the same and read the same come together; those that part from others get a slot of their own.
        The slots are cut to what is held.
        """
        together: dict[tuple[object, ...], list[int]] = {}
        for lane, ids in rows.items():
            key = (self._slot[lane], self.held[lane], *ids) if self._share else (lane,)
            together.setdefault(key, []).append(lane)
        owners = self._owners(together.values())
        readings = []
        for lanes in together.values():
            old, held = self._slot[lanes[0]], self.held[lanes[0]]
            if old is None:
                (slot,) = self._engine.open(1, self._max_length)
                self._move(lanes, slot)
            elif owners[old] is not lanes:
                self._move(lanes, self._engine.fork(old, held))
            now = self._slot[lanes[0]]
            assert now is not None
            readings.append(Reading(now, held, rows[lanes[0]], lanes))
        self._engine.truncate([reading.slot for reading in readings], [reading.held for reading in readings])
        return readings

    def close(self) -> None:
        """Give all slots back."""
        self._engine.close(list(self._members))
        self._members.clear()

    def _owners(self, together: Iterable[list[int]]) -> dict[int, list[int] | None]:
        """Which lanes may write into each slot; none, if a lane that reads nothing now holds more."""
        owners: dict[int, list[int] | None] = {}
        reading: set[int] = set()
        for lanes in together:
            slot = self._slot[lanes[0]]
            if slot is None:
                continue
            reading.update(lanes)
            best = owners.get(slot)
            if best is None or self.held[lanes[0]] > self.held[best[0]]:
                owners[slot] = lanes
        for slot, best in owners.items():
            others = self._members[slot] - reading
            if best and others and max(self.held[lane] for lane in others) > self.held[best[0]]:
                owners[slot] = None
        return owners

    def _move(self, lanes: list[int], slot: int) -> None:
        """Put lanes that hold the same into a new slot."""
        self._members[slot] = set(lanes)
        for lane in lanes:
            old = self._slot[lane]
            if old is not None:
                self._members[old].remove(lane)
            self._slot[lane] = slot
