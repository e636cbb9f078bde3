"""When is a turn complete? Found on the text of the sampled tokens, at a cost of a table look-up a token.

A closing tag can only be completed by a token whose text holds the tag, or brings a part of the tag up to its ">".
These tokens are known before the first one is sampled. All others need no look at the text, whether the tokenizer
has a token for each tag or splits it into several.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol
from weakref import WeakKeyDictionary

from roleagent.policy.turns import ACTION_END, PREDICT_END, THINK, THINK_END

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PLAIN, MAY_CLOSE, END_OF_TURN = 0, 1, 2  #: kinds of tokens
_TAGS = (ACTION_END, PREDICT_END)


class TokenTexts(Protocol):
    """The part of `roleagent.policy.tokens.PolicyTokenizer` that the detection uses."""

    vocab_size: int
    stop_ids: frozenset[int]

    def token_text(self, token_id: int) -> str:
        """Return the text of one token."""
        ...


def may_close(text: str) -> bool:
    """Whether a token with this text can complete a closing tag, given some text before it."""
    pieces = text.split(">")[:-1]
    return any(tag.endswith(f"{piece}>") or f"{piece}>".endswith(tag) for piece in pieces for tag in _TAGS)


def turn_complete(text: str, horizon: int) -> bool:
    """Whether a turn's text holds an action's end and, after it, `horizon` ends of predictions."""
    start = max(0, text.find(THINK_END)) if text.lstrip().startswith(THINK) else 0
    end = text.find(ACTION_END, start)
    return end >= 0 and text.count(PREDICT_END, end) >= horizon


class TokenKinds:
    """The kind of every token of a vocabulary."""

    def __init__(self, tokenizer: TokenTexts, vocab_size: int) -> None:
        """Classify ids 0..`vocab_size`-1; ids that the tokenizer does not know are plain and have no text."""
        import numpy as np

        self._texts = [tokenizer.token_text(token) for token in range(min(vocab_size, tokenizer.vocab_size))]
        self._texts += [""] * (vocab_size - len(self._texts))
        self.kinds: NDArray[np.uint8] = np.zeros(vocab_size, dtype=np.uint8)
        for token, text in enumerate(self._texts):
            if ">" in text and may_close(text):
                self.kinds[token] = MAY_CLOSE
        for token in tokenizer.stop_ids:
            self.kinds[token] = END_OF_TURN

    def text(self, ids: Iterable[int] | Sequence[int]) -> str:
        """Return the texts of tokens, joined. It is good for finding tags; for reading a turn, decode the ids."""
        texts = self._texts
        return "".join([texts[token] for token in ids])


_known: WeakKeyDictionary[TokenTexts, TokenKinds] = WeakKeyDictionary()


def token_kinds(tokenizer: TokenTexts, vocab_size: int) -> TokenKinds:
    """Return the kinds of a tokenizer's tokens; worked out once, since a large vocabulary takes about a second."""
    kinds = _known.get(tokenizer)
    if kinds is None or len(kinds.kinds) != vocab_size:
        kinds = _known[tokenizer] = TokenKinds(tokenizer, vocab_size)
    return kinds
