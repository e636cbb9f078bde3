"""Turns that are decoded side by side: one lane each.

The cache of a lane's slot lives as long as its sequence: a token goes to the engine once. The last token of a turn is
sampled but not yet read by the model; it goes first when the lane is prefilled again. Lanes whose sequences are equal
so far share a slot (see `shared_slots`): the model's answer is computed once, and each lane draws from it.

Where the engine can verify, a lane reads guesses at its next tokens in the same pass (see `drafting`). Every position
is sampled with the number that it would get anyway; what is sampled stands up to the first position where it differs
from the guess, that token included, and the rest is forgotten. So tokens and log-probabilities are those of decoding
one token at a time, up to rounding. Tokens of a pass come out one after the other (`reveal`), so an action is acted on
and a turn is ended at its own token.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from roleagent.policy.engines.base import VerifyingEngine
from roleagent.policy.sampling import sample
from roleagent.rollout.drafting import Drafter
from roleagent.rollout.shared_slots import Reading, SharedSlots
from roleagent.rollout.turn_end import END_OF_TURN, MAY_CLOSE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from roleagent.policy.engines.base import Engine
    from roleagent.policy.sampling import UniformStreams
    from roleagent.rollout.meter import RolloutMeter

#: Most tokens, padding included, that one call of the engine prefills: bounds its memory.
PREFILL_TOKENS = 16384


class TurnBatch:
    """The lanes' slots in the engine, and the tokens that their present turns have so far.

    A lane decodes from its `prefill` to its `finish`.
    """

    def __init__(
        self,
        engine: Engine,
        streams: UniformStreams,
        kinds: NDArray[np.uint8],
        complete: Callable[[Sequence[int]], bool],
        *,
        lanes: int,
        max_context: int,
        max_turn_tokens: int,
        temperature: float,
        draft_tokens: int,
        share: bool,
        meter: RolloutMeter,
    ) -> None:
        """`complete` says whether the tokens of a turn end it; nothing is guessed beyond that."""
        self._engine = engine
        self._streams = streams
        self._kinds = kinds.tobytes()
        self._complete = complete
        self._max_turn = max_turn_tokens
        self._temperature = temperature
        self._meter = meter
        self._verifier = engine if draft_tokens and isinstance(engine, VerifyingEngine) else None
        self._drafter = Drafter(lanes, engine.vocab_size) if self._verifier else None
        self._most = draft_tokens
        self._slots = SharedSlots(engine, lanes, max_context, share=share)
        self._stream = np.zeros(lanes, dtype=np.int64)
        self._ids: list[list[int]] = [[] for _ in range(lanes)]
        self._logprobs: list[list[float]] = [[] for _ in range(lanes)]
        self._unseen: list[list[tuple[int, float]]] = [[] for _ in range(lanes)]  # sampled, not yet revealed
        self._read_in = [-1] * lanes  # the slot of the lane's last pass: lanes that shared it had the same sequence
        self._drafted: dict[tuple[object, ...], int] = {}  # what the drafter has read in this pass, and in which lane
        self._active: list[int] = []
        self._acted = [False] * lanes  # the turn's action is complete; what follows are predictions
        self._seconds, self._shown, self._predicted = 0.0, 0, 0  # of the present pass

    @property
    def decoding(self) -> int:
        """Number of lanes that decode."""
        return len(self._active)

    def assign(self, lane: int, stream: int) -> None:
        """Give the lane to another episode, which draws from the stream of this index."""
        self._stream[lane] = stream

    def prefill(self, lanes: Sequence[int], contexts: Sequence[Sequence[int]], continues: Sequence[bool]) -> list[int]:
        """Read contexts and sample the first tokens of each lane's turn; return the lanes to look at (see `step`)."""
        rows: dict[int, Sequence[int]] = {}
        for lane, context, extends in zip(lanes, contexts, continues, strict=True):
            if extends:
                rows[lane] = [self._ids[lane][-1], *context]
            else:
                self._slots.leave(lane)
                rows[lane] = context
            self._ids[lane], self._logprobs[lane] = [], []
            self._acted[lane] = False
        look: list[int] = []
        for group in _chunks(self._slots.gather(rows)):
            look += self._pass(group, prefill=True)
        self._active = sorted({*self._active, *rows})
        return look

    def step(self) -> list[int]:
        """Sample tokens in every decoding lane; return the lanes whose newest token may end something.

        These are the lanes whose token may complete a closing tag or ends the turn, and those at the turn's limit.
        There may be more tokens behind it: see `reveal`.
        """
        rows = {lane: [self._ids[lane][-1]] for lane in self._active}
        return self._pass(self._slots.gather(rows), prefill=False)

    def reveal(self, lane: int) -> bool:
        """Add the tokens that this pass sampled to the lane's turn, up to one that may end something.

        Returns:
            Whether there was such a token: then the lane is to be looked at, and there may be more.
        """
        ids, unseen, kinds, most = self._ids[lane], self._unseen[lane], self._kinds, self._max_turn - 1
        old = len(ids)
        stop = next((at for at, (token, _) in enumerate(unseen) if kinds[token] or old + at >= most), -1)
        shown = unseen if stop < 0 else unseen[: stop + 1]
        self._unseen[lane] = unseen[len(shown) :]
        count = len(shown)
        ids.extend([token for token, _ in shown])
        self._logprobs[lane].extend([logprob for _, logprob in shown])
        self._streams.skip(int(self._stream[lane]), count)
        if self._drafter:
            self._teach(self._drafter, lane, ids[old:])
        self._slots.held[lane] += count
        self._meter.decoded_tokens += count
        self._shown += count
        if self._acted[lane]:
            self._predicted += count
        return stop >= 0

    def acted(self, lane: int) -> None:
        """Note that the lane's turn has its action: the tokens from here to its end are predictions."""
        self._acted[lane] = True

    def length(self, lane: int) -> int:
        """Tokens of the lane's turn."""
        return len(self._ids[lane])

    def full(self, lane: int) -> bool:
        """Whether the lane's turn has reached its limit."""
        return len(self._ids[lane]) >= self._max_turn

    def last_kind(self, lane: int) -> int:
        """Kind of the lane's newest token (see `roleagent.rollout.turn_end`)."""
        return self._kinds[self._ids[lane][-1]]

    def ids(self, lane: int) -> list[int]:
        """Tokens of the lane's turn."""
        return list(self._ids[lane])

    def logprobs(self, lane: int) -> list[float]:
        """Log-probabilities of the turn's tokens; each is exact in 32 bits."""
        return list(self._logprobs[lane])

    def finish(self, lanes: Sequence[int]) -> None:
        """End the turns of these lanes: they stop decoding, and their caches stay. What was not revealed is dropped."""
        done = set(lanes)
        for lane in done:
            self._unseen[lane] = []
        self._active = [lane for lane in self._active if lane not in done]

    def close(self) -> None:
        """Give the slots back."""
        self._settle()
        self._slots.close()

    def _pass(self, readings: list[Reading], *, prefill: bool) -> list[int]:
        """Give each reading and a draft to the engine, sample behind them, and reveal the first tokens."""
        self._settle()
        if prefill and self._drafter:
            for reading in readings:
                self._drafter.context(reading.lanes, reading.ids, begins=not reading.held)
        drafts = [self._draft(reading.lanes[0]) for reading in readings]
        started = time.perf_counter()
        slots = [reading.slot for reading in readings]
        tails = [len(draft) + 1 for draft in drafts]
        if self._verifier and any(drafts):
            rows = [[*reading.ids, *draft] for reading, draft in zip(readings, drafts, strict=True)]
            logits = self._verifier.verify(slots, rows, tails)
        elif prefill:
            logits = self._engine.extend(slots, [reading.ids for reading in readings])
        else:
            logits = self._engine.step(slots, [reading.ids[0] for reading in readings])
        drawn, scores = sample(logits, self._temperature, self._uniforms(readings, tails))
        tokens, logprobs = drawn.tolist(), scores.tolist()
        seconds = time.perf_counter() - started
        read = sum(len(reading.ids) for reading in readings) if prefill else 0
        # Without a draft the quotient is 1 exactly, and the pass leaves no time that would count as decoding.
        context = seconds * (read / (read + sum(map(len, drafts)))) if prefill else 0.0
        self._meter.passed(len(readings), sum(len(reading.lanes) for reading in readings))
        self._meter.prefill_seconds += context
        self._meter.prefilled_tokens += read
        self._seconds = seconds - context
        look, at = [], 0
        for reading, draft in zip(readings, drafts, strict=True):
            for place, lane in enumerate(reading.lanes):
                right = next((n for n, token in enumerate(draft) if tokens[at + n][place] != token), len(draft))
                self._unseen[lane] = [(tokens[at + n][place], logprobs[at + n][place]) for n in range(right + 1)]
                self._read_in[lane] = reading.slot
                # The last revealed token is not in the cache yet, or, as a wrong guess was, it will be overwritten.
                self._slots.held[lane] += len(reading.ids) - 1
                if self.reveal(lane):
                    look.append(lane)
            at += len(draft) + 1
        return look

    def _uniforms(self, readings: Sequence[Reading], tails: Sequence[int]) -> NDArray[np.float64]:
        """Numbers for each position of each reading, a column a lane, [sum(tails), most lanes of a reading]."""
        lanes = [lane for reading in readings for lane in reading.lanes]
        counts = [tail for reading, tail in zip(readings, tails, strict=True) for _ in reading.lanes]
        numbers = self._streams.peek(self._stream[lanes], counts)
        matrix = np.zeros((sum(tails), max(len(reading.lanes) for reading in readings)))
        row = at = 0
        for reading, tail in zip(readings, tails, strict=True):
            size = tail * len(reading.lanes)
            matrix[row : row + tail, : len(reading.lanes)] = numbers[at : at + size].reshape(-1, tail).T
            row, at = row + tail, at + size
        return matrix

    def _teach(self, drafter: Drafter, lane: int, ids: list[int]) -> None:
        """Have the drafter read what the lane wrote; of lanes that wrote the same behind the same, the first one."""
        key = (self._read_in[lane], self._slots.held[lane], *ids)
        other = self._drafted.setdefault(key, lane)
        if other == lane:
            drafter.read(lane, ids, written=True)
        else:
            drafter.follow(lane, other)

    def _draft(self, lane: int) -> list[int]:
        if self._drafter is None:
            return []
        ids, kinds = self._ids[lane], self._kinds

        def last(guesses: list[int], token: int) -> bool:
            kind = kinds[token]
            return kind == END_OF_TURN or (kind == MAY_CLOSE and self._complete(ids + guesses))

        return self._drafter.draft(lane, min(self._most, self._max_turn - len(ids) - 1), last)

    def _settle(self) -> None:
        """Meter the pass before: only now it is known which of its tokens were predictions."""
        if self._shown and self._seconds:
            self._meter.decoded(self._seconds, self._shown, self._predicted)
        self._seconds, self._shown, self._predicted = 0.0, 0, 0
        self._drafted.clear()


def _chunks(readings: list[Reading]) -> list[list[Reading]]:
    """Split readings into calls of similar lengths, each of at most PREFILL_TOKENS with padding (or one reading)."""
    chunks: list[list[Reading]] = []
    for reading in sorted(readings, key=lambda reading: len(reading.ids)):
        if chunks and (len(chunks[-1]) + 1) * len(reading.ids) <= PREFILL_TOKENS:
            chunks[-1].append(reading)
        else:
            chunks.append([reading])
    return chunks
