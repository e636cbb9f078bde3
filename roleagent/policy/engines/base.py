"""What an engine is: slots that hold growing token sequences, and logits for the next token of each.

An engine keeps the key-value cache of every slot across turns, so a token is computed once in an episode. It does
not sample and knows no text. One thread at a time may use an engine; `snapshot` gives another thread its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor, device, nn

    Weights = nn.Module | Mapping[str, Tensor]


@runtime_checkable
class Engine(Protocol):
    """Batched incremental decoding.

    Logits are float32 [n, V] on `device`, row i for slots[i]. They do not depend on the other slots of a call beyond
    rounding. Slots of one call must be different from each other.
    """

    vocab_size: int
    max_context: int  #: longest sequence that the model can take

    @property
    def device(self) -> device:
        """Where the logits are."""

    def open(self, count: int, max_length: int) -> list[int]:
        """Reserve `count` empty slots, each for at most `max_length` tokens.

        Raises:
            PolicyError: `max_length` is more than the model can take.
        """

    def extend(self, slots: Sequence[int], ids: Sequence[Sequence[int]]) -> Tensor:
        """Append ids[i] (at least one token) to slots[i]; return the logits after the last token of each."""

    def step(self, slots: Sequence[int], token_ids: Sequence[int] | Tensor) -> Tensor:
        """Append one token to each slot; return the logits after it."""

    def length(self, slot: int) -> int:
        """Tokens in a slot."""

    def truncate(self, slots: Sequence[int], lengths: Sequence[int]) -> None:
        """Keep the first lengths[i] tokens of slots[i].

        Raises:
            ValueError: a slot holds fewer.
        """

    def fork(self, slot: int, length: int) -> int:
        """Open another slot, of the same limit, that holds the first `length` tokens of this one.

        Raises:
            ValueError: the slot holds fewer.
        """

    def close(self, slots: Sequence[int]) -> None:
        """Give slots back. Their numbers may be reused."""

    def load_weights(self, weights: Weights) -> None:
        """Take over the weights of a model or a state dict of the same shape. Open slots are dropped: their
        caches were computed with other weights."""

    def snapshot(self) -> Engine:
        """Return an engine without slots that has its own copy of the weights, which later updates leave alone."""


@runtime_checkable
class VerifyingEngine(Engine, Protocol):
    """An engine that can look at several positions of a slot at once: for guesses at next tokens."""

    def verify(self, slots: Sequence[int], ids: Sequence[Sequence[int]], tails: Sequence[int]) -> Tensor:
        """Append ids[i] to slots[i]; return the logits after each of its last tails[i] tokens, [sum(tails), V], one
        slot after the other."""
