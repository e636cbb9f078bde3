"""Turns that are decoded side by side: one lane each.

The cache of a lane's slot lives as long as its sequence: a token goes to the engine once. The last token of a turn is
sampled but not yet read by the model; it goes first when the lane is prefilled again.

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
        meter: RolloutMeter,
    ) -> None:
        """`complete` says whether the tokens of a turn end it; nothing is guessed beyond that."""
        self._engine = engine
        self._streams = streams
        self._kinds = kinds.tobytes()
        self._complete = complete
        self._max_context = max_context
        self._max_turn = max_turn_tokens
        self._temperature = temperature
        self._meter = meter
        self._verifier = engine if draft_tokens and isinstance(engine, VerifyingEngine) else None
        self._drafter = Drafter(lanes, engine.vocab_size) if self._verifier else None
        self._most = draft_tokens
        self._slots = engine.open(lanes, max_context)
        self._fresh = [True] * lanes  # the slot holds no tokens
        self._held = [0] * lanes  # tokens of the slot that belong to the sequence
        self._stream = np.zeros(lanes, dtype=np.int64)
        self._ids: list[list[int]] = [[] for _ in range(lanes)]
        self._logprobs: list[list[float]] = [[] for _ in range(lanes)]
        self._unseen: list[list[tuple[int, float]]] = [[] for _ in range(lanes)]  # sampled, not yet revealed
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
        rows = {}
        for lane, context, extends in zip(lanes, contexts, continues, strict=True):
            if extends:
                rows[lane] = [self._ids[lane][-1], *context]
            else:
                self._renew(lane)
                rows[lane] = list(context)
            if self._drafter:
                if not extends:
                    self._drafter.begin(lane)
                self._drafter.read(lane, context, written=False)
            self._fresh[lane] = False
            self._ids[lane], self._logprobs[lane] = [], []
            self._acted[lane] = False
        look: list[int] = []
        for group in _chunks(rows):
            look += self._pass(group, [rows[lane] for lane in group], prefill=True)
        self._active = sorted({*self._active, *rows})
        return look

    def step(self) -> list[int]:
        """Sample tokens in every decoding lane; return the lanes whose newest token may end something.

        These are the lanes whose token may complete a closing tag or ends the turn, and those at the turn's limit.
        There may be more tokens behind it: see `reveal`.
        """
        return self._pass(self._active, [[self._ids[lane][-1]] for lane in self._active], prefill=False)

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
        self._held[lane] += count
        self._streams.skip(int(self._stream[lane]), count)
        if self._drafter:
            self._drafter.read(lane, ids[old:], written=True)
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
        self._engine.close(self._slots)

    def _pass(self, lanes: Sequence[int], rows: list[list[int]], *, prefill: bool) -> list[int]:
        """Give each lane's row and a draft to the engine, sample behind them, and reveal the first tokens."""
        self._settle()
        drafts = [self._draft(lane) for lane in lanes]
        started = time.perf_counter()
        slots = [self._slots[lane] for lane in lanes]
        if self._verifier:
            self._verifier.truncate(slots, [self._held[lane] for lane in lanes])
        tails = [len(draft) + 1 for draft in drafts]
        if self._verifier and any(drafts):
            logits = self._verifier.verify(slots, [row + draft for row, draft in zip(rows, drafts, strict=True)], tails)
        elif prefill:
            logits = self._engine.extend(slots, rows)
        else:
            logits = self._engine.step(slots, [row[0] for row in rows])
        drawn, scores = sample(logits, self._temperature, self._streams.peek(self._stream[list(lanes)], tails))
        sampled = list(zip(drawn.tolist(), scores.tolist(), strict=True))
        seconds = time.perf_counter() - started
        read = sum(map(len, rows)) if prefill else 0
        # Without a draft the quotient is 1 exactly, and the pass leaves no time that would count as decoding.
        context = seconds * (read / (read + sum(map(len, drafts)))) if prefill else 0.0
        self._meter.prefill_seconds += context
        self._meter.prefilled_tokens += read
        self._seconds = seconds - context
        look, at = [], 0
        for lane, row, draft, tail in zip(lanes, rows, drafts, tails, strict=True):
            right = next((n for n, token in enumerate(draft) if sampled[at + n][0] != token), len(draft))
            self._unseen[lane] = sampled[at : at + right + 1]
            # The last revealed token is not in the cache yet, or, as a wrong guess was, it will be overwritten.
            self._held[lane] += len(row) - 1
            if self.reveal(lane):
                look.append(lane)
            at += tail
        return look

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

    def _renew(self, lane: int) -> None:
        """Empty the lane's slot."""
        if not self._fresh[lane]:
            self._engine.close([self._slots[lane]])
            self._slots[lane] = self._engine.open(1, self._max_context)[0]
        self._held[lane] = 0


def _chunks(rows: dict[int, list[int]]) -> list[list[int]]:
    """Split lanes into calls of similar lengths, each of at most PREFILL_TOKENS with padding (or one lane)."""
    chunks: list[list[int]] = []
    for lane in sorted(rows, key=lambda lane: (len(rows[lane]), lane)):
        if chunks and (len(chunks[-1]) + 1) * len(rows[lane]) <= PREFILL_TOKENS:
            chunks[-1].append(lane)
        else:
            chunks.append([lane])
    return chunks
