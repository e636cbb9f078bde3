"""An engine that says what it is told to: real ids through the real loop, without weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from roleagent.policy.tokens import PolicyTokenizer


class ScriptedEngine:
    """Gives all probability to the ids that `answer(text so far)` returns for a slot, each time it is extended."""

    device = torch.device("cpu")

    def __init__(self, tokenizer: PolicyTokenizer, answer: Callable[[str], Sequence[int]], max_context: int) -> None:
        self.vocab_size = tokenizer.vocab_size
        self.max_context = max_context
        self._tokenizer = tokenizer
        self._answer = answer
        self._ids: dict[int, list[int]] = {}
        self._script: dict[int, list[int]] = {}
        self._slots = 0

    def open(self, count: int, max_length: int) -> list[int]:
        slots = list(range(self._slots, self._slots + count))
        self._slots += count
        self._ids |= {slot: [] for slot in slots}
        return slots

    def extend(self, slots: Sequence[int], ids: Sequence[Sequence[int]]) -> torch.Tensor:
        for slot, new in zip(slots, ids, strict=True):
            self._ids[slot] += new
            self._script[slot] = list(self._answer(self._tokenizer.decode(self._ids[slot])))
        return self._logits(slots)

    def step(self, slots: Sequence[int], token_ids: Sequence[int] | torch.Tensor) -> torch.Tensor:
        for slot, token in zip(slots, token_ids, strict=True):
            self._ids[slot].append(int(token))
        return self._logits(slots)

    def truncate(self, slots: Sequence[int], lengths: Sequence[int]) -> None:
        for slot, length in zip(slots, lengths, strict=True):
            assert length <= len(self._ids[slot])
            del self._ids[slot][length:]

    def fork(self, slot: int, length: int) -> int:
        (new,) = self.open(1, self.max_context)
        self._ids[new] = self._ids[slot][:length]
        return new

    def close(self, slots: Sequence[int]) -> None:
        for slot in slots:
            del self._ids[slot]

    def _logits(self, slots: Sequence[int]) -> torch.Tensor:
        logits = torch.full((len(slots), self.vocab_size), -1e9)
        for row, slot in enumerate(slots):
            logits[row, self._script[slot].pop(0)] = 0.0
        return logits
