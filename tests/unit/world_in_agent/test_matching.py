"""m(p, s): hand-computed values, the invariants of the method's section 1, and equality with a plain DP."""

import difflib
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roleagent.errors import ConfigError
from roleagent.world_in_agent import matching
from roleagent.world_in_agent.matching import UNITS, MatchUnit, match, match_many, normalise

# Few letters, both cases, blanks and some awkward characters: many near matches, which is where errors live.
texts = st.text(alphabet="abAB .\n\tßé\u2003", max_size=24)
units = st.sampled_from(UNITS)


def plain_lcs(a: list[str] | str, b: list[str] | str) -> int:
    """Length of the longest common subsequence by the textbook table."""
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            table[i + 1][j + 1] = table[i][j] + 1 if x == y else max(table[i][j + 1], table[i + 1][j])
    return table[-1][-1]


def plain_match(p: str, s: str, unit: MatchUnit) -> float:
    p, s = " ".join(p.casefold().split()), " ".join(s.casefold().split())
    if not p or not s:
        return 0.0
    if unit == "gestalt":
        first, second = sorted((p, s), key=lambda text: (len(text), text))
        return difflib.SequenceMatcher(None, first, second, autojunk=False).ratio()
    left, right = (p.split(" "), s.split(" ")) if unit == "words" else (p, s)
    return 2 * plain_lcs(left, right) / (len(left) + len(right))


@pytest.mark.parametrize(
    ("p", "s", "unit", "expected"),
    [
        ("you open the drawer", "you close the drawer", "words", 2 * 3 / 8),
        ("a b c d", "d c b a", "words", 2 * 1 / 8),  # a subsequence keeps its order
        ("a b c", "a x b y c z", "words", 2 * 3 / 9),  # and may have gaps
        ("abc", "axbycz", "characters", 2 * 3 / 9),
        ("ab", "ba", "characters", 2 * 1 / 4),
        ("abcd", "bcde", "gestalt", 2 * 3 / 8),
        ("You  OPEN\nthe drawer ", "you open the drawer", "words", 1.0),
        ("drawer 1.", "drawer 1", "words", 2 * 1 / 4),  # words are what blanks separate
        ("STRASSE", "straße", "characters", 1.0),  # casefold, not lower
        ("", "you see a mug", "words", 0.0),
        ("  \n", "you see a mug", "words", 0.0),
    ],
)
def test_hand_computed(p: str, s: str, unit: MatchUnit, expected: float) -> None:
    assert match(p, s, unit) == expected
    assert match(s, p, unit) == expected


@pytest.mark.parametrize("unit", UNITS)
def test_empty_matches_nothing_not_even_empty(unit: MatchUnit) -> None:
    assert match("", "", unit) == 0.0
    assert match(" ", "\n", unit) == 0.0


@given(texts, texts, units)
def test_equals_the_plain_table(p: str, s: str, unit: MatchUnit) -> None:
    assert match(p, s, unit) == plain_match(p, s, unit)


@given(texts, texts, units)
def test_symmetric_bounded_and_one_only_for_equal_texts(p: str, s: str, unit: MatchUnit) -> None:
    value = match(p, s, unit)
    assert value == match(s, p, unit)
    assert 0.0 <= value <= 1.0
    assert (value == 1.0) == (normalise(p) == normalise(s) != "")


@given(st.lists(st.tuples(texts, texts), max_size=12), units)
def test_many_is_one_by_one(pairs: list[tuple[str, str]], unit: MatchUnit) -> None:
    # Doubled: repeated pairs are compared once and must still come out at each place.
    values = match_many(pairs + pairs, unit)
    assert values.shape == (2 * len(pairs),)
    assert values.tolist() == [plain_match(p, s, unit) for p, s in pairs + pairs]


def test_long_texts_equal_the_plain_table() -> None:
    # Beyond 64 units rapidfuzz takes another path than for short texts.
    draw = random.Random(3)
    for unit in UNITS:
        for _ in range(4):
            p, s = (" ".join(draw.choices(["red", "blue", "mug", "cup", "on", "in"], k=90)) for _ in range(2))
            assert match(p, s, unit) == plain_match(p, s, unit)


def test_gestalt_has_no_autojunk() -> None:
    # The method, section 6, fault 8: from 200 characters on, difflib's default drops every frequent character.
    p = "the mug is on the shelf and " * 9
    s = "the cup is on the shelf and " * 9
    p, s = normalise(p), normalise(s)
    first, second = sorted((p, s))
    fair = difflib.SequenceMatcher(None, first, second, autojunk=False).ratio()
    junked = difflib.SequenceMatcher(None, first, second).ratio()
    assert match(p, s, "gestalt") == fair
    assert junked < 0.5 < fair


def test_gestalt_is_symmetric_where_difflib_is_not() -> None:
    p, s = "tide", "diet"
    forth = difflib.SequenceMatcher(None, p, s, autojunk=False).ratio()
    back = difflib.SequenceMatcher(None, s, p, autojunk=False).ratio()
    assert forth != back
    assert match(p, s, "gestalt") == match(s, p, "gestalt") == back  # "diet" < "tide" goes first


def test_more_words_than_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [("a b c d", "a c d e"), ("f g", "g f"), ("", "a"), ("x", "x")]
    expected = [plain_match(p, s, "words") for p, s in pairs]
    monkeypatch.setattr(matching, "_WORDS_IN_CODE", 3)
    assert match_many(pairs).tolist() == expected


def test_word_codes_are_characters_and_no_surrogates() -> None:
    code = matching._WordCode()
    given_out = [code[str(rank)] for rank in range(0xD800 + 3)]
    assert len(set(given_out)) == len(given_out)
    assert [ord(c) for c in given_out[-4:]] == [0xD7FF, 0xE000, 0xE001, 0xE002]


def test_no_pairs() -> None:
    for unit in UNITS:
        assert match_many([], unit).shape == (0,)
        assert match_many([], unit).dtype == np.float64


def test_unknown_unit() -> None:
    with pytest.raises(ConfigError, match="'letters' is unknown: choose one of words, characters, gestalt"):
        match("a", "b", "letters")  # type: ignore[arg-type]
