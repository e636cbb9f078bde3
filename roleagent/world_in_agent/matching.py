"""m(p, s): how much of a state's text a prediction got right, from 0 to 1.

    m(p, s) = 2 |LCS(p, s)| / (|p| + |s|)

LCS is the longest common subsequence (the paper's longest matching subsequence) over words or characters; |.| counts
the same units. `gestalt` is the ratio of `difflib.SequenceMatcher` instead, as public code has it. All units see
normalised texts: case folded, white space folded to single blanks.

For every unit: m is symmetric, lies in [0, 1], and is 1 exactly when the normalised texts are equal. One exception
goes before all: an empty text matches nothing, not even another empty text, so that silence is never paid.

The work is done by rapidfuzz (bit-parallel, exact). Words are first replaced by single characters, one for each
distinct word, because rapidfuzz compares strings several times faster than lists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from rapidfuzz import process
from rapidfuzz.distance import LCSseq

from roleagent.errors import ConfigError

MatchUnit = Literal["words", "characters", "gestalt"]
UNITS: tuple[MatchUnit, ...] = ("words", "characters", "gestalt")

_Units = TypeVar("_Units", bound=Sequence[str])

_SURROGATES = range(0xD800, 0xE000)
_WORDS_IN_CODE = 0x110000 - len(_SURROGATES)


def normalise(text: str) -> str:
    """Fold case (Unicode casefold) and white space (runs become one blank, none at the ends)."""
    return " ".join(text.casefold().split())


def match(prediction: str, state: str, unit: MatchUnit = "words") -> float:
    """Return m(prediction, state) in [0, 1] (the method, section 1, "Match").

    Raises:
        ConfigError: `unit` is not one of `UNITS`.
    """
    return float(match_many([(prediction, state)], unit)[0])


def match_many(pairs: Sequence[tuple[str, str]], unit: MatchUnit = "words") -> NDArray[np.float64]:
    """Return m of every pair, in order; shape [number of pairs].

    Each text is normalised once and each distinct pair is compared once, however often they come. The result of a
    pair does not depend on the others.

    Raises:
        ConfigError: `unit` is not one of `UNITS`.
    """
    if unit not in UNITS:
        raise ConfigError(f"matching unit {unit!r} is unknown: choose one of {', '.join(UNITS)}")
    if unit == "words":
        coded, where = _distinct_words(pairs)
        values = _subsequence(coded)
    else:
        texts, where = _distinct(pairs, normalise)
        values = _gestalt(texts) if unit == "gestalt" else _subsequence(texts)
    return values[np.asarray(where, dtype=np.intp)]


class _TooManyWordsError(Exception):
    """There are more distinct words than characters to stand for them."""


class _WordCode(dict[str, str]):
    """word -> a character that stands for it, given on first use; surrogates are left out."""

    def __missing__(self, word: str) -> str:
        rank = len(self)
        if rank >= _WORDS_IN_CODE:
            raise _TooManyWordsError
        self[word] = value = chr(rank if rank < _SURROGATES.start else rank + len(_SURROGATES))
        return value

    def encode(self, text: str) -> str:
        """Return the text with one character a word: equal exactly where the normalised texts are."""
        return "".join(map(self.__getitem__, text.casefold().split()))


def _distinct_words(
    pairs: Sequence[tuple[str, str]],
) -> tuple[Sequence[tuple[Sequence[str], Sequence[str]]], list[int]]:
    """As :func:`_distinct`, with one character or one string a word."""
    try:
        return _distinct(pairs, _WordCode().encode)
    except _TooManyWordsError:
        # Past 1.1 million distinct words: slower, and compared by 64-bit hashes, but without a limit.
        return _distinct(pairs, lambda text: tuple(text.casefold().split()))


def _distinct(
    pairs: Sequence[tuple[str, str]], encode: Callable[[str], _Units]
) -> tuple[list[tuple[_Units, _Units]], list[int]]:
    """Return the distinct pairs of encoded texts, and for each given pair its place among them."""
    coded: dict[str, _Units] = {}
    for pair in pairs:
        for text in pair:
            if text not in coded:
                coded[text] = encode(text)
    slots: dict[tuple[_Units, _Units], int] = {}
    where = [slots.setdefault((coded[p], coded[s]), len(slots)) for p, s in pairs]
    return list(slots), where


def _subsequence(pairs: Sequence[tuple[Sequence[str], Sequence[str]]]) -> NDArray[np.float64]:
    """2 |LCS| / (|p| + |s|) of encoded texts."""
    if not pairs:
        return np.zeros(0)
    left, right = zip(*pairs, strict=True)
    common = process.cpdist(left, right, scorer=LCSseq.similarity, dtype=np.int64)
    lengths = np.fromiter((len(p) + len(s) for p, s in pairs), np.int64, len(pairs))
    # An empty side has no common subsequence, so only "both empty" needs the guard against 0 / 0.
    values: NDArray[np.float64] = 2.0 * common / np.maximum(lengths, 1)
    return values


def _gestalt(pairs: Sequence[tuple[str, str]]) -> NDArray[np.float64]:
    """difflib's ratio of normalised texts, in an order that does not depend on which one is the prediction.

    `SequenceMatcher.ratio` depends on the order of its arguments. The shorter text goes first, and of two equally
    long ones the smaller; this makes m symmetric. `autojunk` is off: it would drop every frequent character of texts
    of 200 characters or more.
    """
    values = np.zeros(len(pairs))
    for row, (p, s) in enumerate(pairs):
        if p and s:
            first, second = sorted((p, s), key=lambda text: (len(text), text))
            values[row] = 1.0 if p == s else SequenceMatcher(None, first, second, autojunk=False).ratio()
    return values
