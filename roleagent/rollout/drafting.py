"""Guesses at the tokens that come next, taken from what the episodes have read and written so far.

Text games repeat themselves: a turn copies names out of the last observation, a prediction copies the words of the
environment, and the episodes of one task walk through the same rooms. A table of token runs finds most of what follows.
Whether a guess is right is decided by sampling (see `TurnBatch`), so guesses cost or save time and change nothing else
(prompt lookup decoding, as in transformers' `prompt_lookup_num_tokens`, with one table for all episodes).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

_ORDERS = (16, 8, 4, 2)  # tokens of context, longest first; powers of two keep the tables few
_LIMIT = 400_000  # entries of the longest table; a full one is emptied with the others
_WORTH = 0.5  # a guess is made while the chance that all up to it are right is above this
_PRIOR_TRIES, _PRIOR_RATE = 20.0, 0.8


class Drafter:
    """What followed after the last 16, 8, 4 or 2 tokens, most recently and in any lane.

    Each kind of guess (length of the context, and whether something else has followed it before) keeps count of how
    often it was right; a draft ends where the chances, multiplied, are no longer worth it.
    """

    def __init__(self, lanes: int, vocab_size: int) -> None:
        self._bits = max(1, (vocab_size - 1).bit_length())
        self._masks = tuple((1 << self._bits * order) - 1 for order in _ORDERS)
        # The value is the next token, or -1 - token when another one has been seen too.
        self._tables: tuple[dict[int, int], ...] = tuple({} for _ in _ORDERS)
        self._context = [0] * lanes  # the last 16 tokens of each lane, packed into one number
        self._tries = [_PRIOR_TRIES] * (2 * len(_ORDERS))
        self._hits = [_PRIOR_TRIES * _PRIOR_RATE] * (2 * len(_ORDERS))

    def begin(self, lane: int) -> None:
        """A new sequence begins in the lane."""
        self._context[lane] = 0

    def context(self, lanes: Sequence[int], ids: Sequence[int], *, begins: bool) -> None:
        """Lanes that hold the same read a context: a new sequence's, or their own last token and what follows it."""
        first = lanes[0]
        if begins:
            self.begin(first)
        self.read(first, ids if begins else ids[1:], written=False)
        for lane in lanes[1:]:
            self.follow(lane, first)

    def follow(self, lane: int, other: int) -> None:
        """The lane has read what the other one has."""
        self._context[lane] = self._context[other]

    def read(self, lane: int, ids: Iterable[int], written: bool) -> None:
        """Learn the next tokens of the lane's sequence; `written`: by the model, so guesses at them count."""
        context, bits, longest = self._context[lane], self._bits, self._masks[0]
        if len(self._tables[0]) > _LIMIT:
            for table in self._tables:
                table.clear()
        for token in ids:
            kind, judged = 0, not written
            for table, mask in zip(self._tables, self._masks, strict=True):
                key = context & mask
                known = table.get(key)
                if known is None:
                    table[key] = token
                else:
                    right = token == known or -1 - token == known
                    if not judged:
                        judged = True
                        self._tries[kind + (known < 0)] += 1
                        self._hits[kind + (known < 0)] += right
                    if not right:
                        table[key] = -1 - token
                kind += 2
            context = (context << bits | token) & longest
        self._context[lane] = context

    def draft(self, lane: int, most: int, last: Callable[[list[int], int], bool]) -> list[int]:
        """Return at most `most` guesses; one for which `last(guesses with it, guess)` holds ends them."""
        guesses: list[int] = []
        context, chance = self._context[lane], 1.0
        while len(guesses) < most:
            kind = 0
            for table, mask in zip(self._tables, self._masks, strict=True):
                token = table.get(context & mask)
                if token is not None:
                    break
                kind += 2
            else:
                break
            if token < 0:
                kind, token = kind + 1, -1 - token
            chance *= self._hits[kind] / self._tries[kind]
            if chance < _WORTH:
                break
            guesses.append(token)
            if last(guesses, token):
                break
            context = (context << self._bits | token) & self._masks[0]
        return guesses
