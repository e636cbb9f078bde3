"""Turns that are decoded side by side: one lane each, kept as arrays over the lanes.

The Python work of a decode step does not grow with the number of lanes, except for the few whose new token may end
an action or the turn. The cache of a lane's slot lives as long as its sequence: a token goes to the engine once. The
last token of a turn is sampled but not yet read by the model; it goes first when the lane is prefilled again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from roleagent.policy.sampling import sample

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
        *,
        lanes: int,
        max_context: int,
        max_turn_tokens: int,
        temperature: float,
        meter: RolloutMeter,
    ) -> None:
        self._engine = engine
        self._streams = streams
        self._kinds = kinds
        self._max_context = max_context
        self._max_turn = max_turn_tokens
        self._temperature = temperature
        self._meter = meter
        self._slots = np.array(engine.open(lanes, max_context), dtype=np.int64)
        self._fresh = [True] * lanes  # the slot holds no tokens
        self._stream = np.zeros(lanes, dtype=np.int64)
        self._tokens = np.zeros((lanes, max_turn_tokens), dtype=np.int64)
        self._logprobs = np.zeros((lanes, max_turn_tokens), dtype=np.float32)
        self._length = np.zeros(lanes, dtype=np.int64)
        self._last = np.zeros(lanes, dtype=np.int64)
        self._decodes = np.zeros(lanes, dtype=np.bool_)
        self._active: NDArray[np.int64] = np.zeros(0, dtype=np.int64)  # the lanes where it is true
        self._acted = np.zeros(lanes, dtype=np.bool_)  # the turn's action is complete; what follows are predictions

    @property
    def decoding(self) -> int:
        """Number of lanes that decode."""
        return len(self._active)

    def assign(self, lane: int, stream: int) -> None:
        """Give the lane to another episode, which draws from the stream of this index."""
        self._stream[lane] = stream

    def prefill(self, lanes: Sequence[int], contexts: Sequence[Sequence[int]], continues: Sequence[bool]) -> list[int]:
        """Read contexts and sample the first token of each lane's turn; return the lanes to look at (see `step`)."""
        rows = {}
        for lane, context, extends in zip(lanes, contexts, continues, strict=True):
            if extends:
                rows[lane] = [int(self._last[lane]), *context]
            else:
                self._renew(lane)
                rows[lane] = list(context)
            self._fresh[lane] = False
            self._length[lane] = 0
            self._acted[lane] = False
        look: list[int] = []
        for group in _chunks(rows):
            started = time.perf_counter()
            logits = self._engine.extend(self._slots[group].tolist(), [rows[lane] for lane in group])
            places = np.array(group, dtype=np.int64)
            ids, logprobs = self._sample(places, logits)
            self._meter.prefill_seconds += time.perf_counter() - started
            self._meter.prefilled_tokens += sum(len(rows[lane]) for lane in group)
            look += self._append(places, ids, logprobs)
        self._decodes[list(rows)] = True
        self._active = self._decodes.nonzero()[0]
        return look

    def step(self) -> list[int]:
        """Sample one token in every decoding lane; return the lanes whose new token may end something.

        These are the lanes whose token may complete a closing tag or ends the turn, and those at the turn's limit.
        """
        started = time.perf_counter()
        active = self._active
        logits = self._engine.step(self._slots[active].tolist(), torch.from_numpy(self._last[active]))
        ids, logprobs = self._sample(active, logits)
        seconds = time.perf_counter() - started
        self._meter.decoded(seconds, len(active), int(np.count_nonzero(self._acted[active])))
        return self._append(active, ids, logprobs)

    def acted(self, lane: int) -> None:
        """Note that the lane's turn has its action: the tokens from here to its end are predictions."""
        self._acted[lane] = True

    def length(self, lane: int) -> int:
        """Tokens of the lane's turn."""
        return int(self._length[lane])

    def full(self, lane: int) -> bool:
        """Whether the lane's turn has reached its limit."""
        return bool(self._length[lane] >= self._max_turn)

    def last_kind(self, lane: int) -> int:
        """Kind of the lane's newest token (see `roleagent.rollout.turn_end`)."""
        return int(self._kinds[self._last[lane]])

    def ids(self, lane: int) -> list[int]:
        """Tokens of the lane's turn."""
        ids: list[int] = self._tokens[lane, : self._length[lane]].tolist()
        return ids

    def logprobs(self, lane: int) -> list[float]:
        """Log-probabilities of the turn's tokens; each is exact in 32 bits."""
        logprobs: list[float] = self._logprobs[lane, : self._length[lane]].tolist()
        return logprobs

    def finish(self, lanes: Sequence[int]) -> None:
        """End the turns of these lanes: they stop decoding, and their caches stay."""
        self._decodes[list(lanes)] = False
        self._active = self._decodes.nonzero()[0]

    def close(self) -> None:
        """Give the slots back."""
        self._engine.close(self._slots.tolist())

    def _sample(self, lanes: NDArray[np.int64], logits: torch.Tensor) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        uniforms = self._streams.draw(self._stream[lanes])
        ids, logprobs = sample(logits, self._temperature, uniforms)
        return ids.cpu().numpy(), logprobs.cpu().numpy()

    def _append(self, lanes: NDArray[np.int64], ids: NDArray[np.int64], logprobs: NDArray[np.float32]) -> list[int]:
        """Add a token to each lane's turn; return the lanes to look at."""
        position = self._length[lanes]
        self._tokens[lanes, position] = ids
        self._logprobs[lanes, position] = logprobs
        self._last[lanes] = ids
        position += 1
        self._length[lanes] = position
        self._meter.decoded_tokens += len(lanes)
        look: list[int] = lanes[(self._kinds[ids] > 0) | (position >= self._max_turn)].tolist()
        return look

    def _renew(self, lane: int) -> None:
        """Empty the lane's slot."""
        if not self._fresh[lane]:
            self._engine.close([int(self._slots[lane])])
            self._slots[lane] = self._engine.open(1, self._max_context)[0]


def _chunks(rows: dict[int, list[int]]) -> list[list[int]]:
    """Split lanes into calls of similar lengths, each of at most PREFILL_TOKENS with padding (or one lane)."""
    chunks: list[list[int]] = []
    for lane in sorted(rows, key=lambda lane: (len(rows[lane]), lane)):
        if chunks and (len(chunks[-1]) + 1) * len(rows[lane]) <= PREFILL_TOKENS:
            chunks[-1].append(lane)
        else:
            chunks.append([lane])
    return chunks
