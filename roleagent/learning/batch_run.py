"""One call of `Learner.update`: its batch, and what later passes over it ask for again."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from roleagent.learning.packing import MicroBatch
from roleagent.learning.update_metrics import UpdateMetrics
from roleagent.types import TrainingSequence


class BatchRun:
    """The batch of one update, and the log-probs that stay fixed during it, kept by sequence."""

    def __init__(
        self, sequences: Sequence[TrainingSequence], temperature: float, metrics: UpdateMetrics, *, keep: bool
    ) -> None:
        self.sequences = sequences
        self.temperature = temperature
        self.metrics = metrics
        self.keep = keep  #: a later pass will ask again
        self.untouched = True  #: the weights are still those of the start of the update
        self.firsts: dict[int, Tensor] = {}
        self.references: dict[int, Tensor] = {}

    def first(self, batch: MicroBatch, now: Tensor) -> Tensor:
        """The trainer's log-probs when it first saw these tokens in this update: kept ones, or those of now."""
        found = self.recall(self.firsts, batch)
        if found is None:
            found = now.detach()
            self.remember(self.firsts, batch, found)
        return found

    def recall(self, kept: dict[int, Tensor], batch: MicroBatch) -> Tensor | None:
        """The kept log-probs of a micro batch, [n]; None if one of its sequences is new."""
        if any(index not in kept for index in batch.indices):
            return None
        return torch.cat([kept[index] for index in batch.indices])

    def remember(self, kept: dict[int, Tensor], batch: MicroBatch, logprobs: Tensor) -> None:
        """Keep the log-probs of a micro batch, [n], if a later pass will ask for them."""
        if self.keep:
            kept.update(zip(batch.indices, torch.split(logprobs, list(batch.counts)), strict=True))
