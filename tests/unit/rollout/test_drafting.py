"""The drafter by hand: what it remembers, which guess it takes, and where a draft ends."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roleagent.rollout.drafting import Drafter

MOST = 24


def never(guesses: list[int], token: int) -> bool:
    return False


class Scene:
    """One lane; every sequence begins with tokens that were never there, so only what follows them is known."""

    def __init__(self) -> None:
        self.drafter = Drafter(1, 10_000)
        self.fresh = itertools.count(1000)

    def show(self, *tokens: int) -> None:
        """Read a new sequence as context."""
        self.drafter.begin(0)
        self.drafter.read(0, [next(self.fresh) for _ in range(16)], written=False)
        self.drafter.read(0, tokens, written=False)

    def write(self, *tokens: int) -> None:
        """Go on with the sequence as the model does."""
        self.drafter.read(0, tokens, written=True)

    def draft(self, *tokens: int, most: int = MOST) -> list[int]:
        """Guesses behind a new sequence."""
        self.show(*tokens)
        return self.drafter.draft(0, most, never)


def test_what_followed_most_recently_is_guessed() -> None:
    scene = Scene()
    scene.show(1, 2, 3, 4)
    assert scene.draft(1, 2) == [3, 4]
    scene.show(1, 2, 5, 6)
    assert scene.draft(1, 2) == [5, 6]
    assert scene.draft(2) == scene.draft(2, 1) == [], "two tokens of context are the least"


def test_the_longest_known_context_decides() -> None:
    scene = Scene()
    scene.show(9, 8, 1, 2, 3)
    scene.show(7, 6, 1, 2, 4)
    assert scene.draft(9, 8, 1, 2) == [3], "what four tokens say counts, though two of them were followed by 4 since"
    assert scene.draft(7, 6, 1, 2) == scene.draft(1, 2) == [4]


def test_a_draft_ends_at_its_last_token_and_at_most() -> None:
    scene = Scene()
    scene.show(1, 2, 3, 4, 5, 6)
    asked: list[tuple[list[int], int]] = []

    def last(guesses: list[int], token: int) -> bool:
        asked.append((list(guesses), token))
        return token == 4

    scene.show(1, 2)
    assert scene.drafter.draft(0, MOST, last) == [3, 4]
    assert asked == [([3], 3), ([3, 4], 4)]
    assert scene.drafter.draft(0, 1, never) == [3]
    assert scene.drafter.draft(0, 0, never) == []


def test_a_draft_ends_where_its_chance_falls_below_a_half() -> None:
    """A kind begins with 16 right of 20. The first two guesses here are of context 2, the others of context 4."""
    chain = list(range(1, 12))
    scene = Scene()
    scene.show(*chain)
    assert scene.draft(1, 2) == [3, 4, 5], "0.8 ** 3 = 0.512, 0.8 ** 4 = 0.41"
    for _ in range(20):
        scene.show(1, 2)
        scene.write(3)
    assert scene.draft(1, 2) == [3, 4, 5, 6], "(36 / 40) ** 2 * 0.8 ** 2 = 0.518, and 0.415 with one more"


def test_a_kind_that_is_often_wrong_is_not_guessed() -> None:
    """Twelve wrong guesses: 16 / 32 is worth one guess; thirteen: 16 / 33 is worth none."""
    scene = Scene()
    scene.show(1, 2, 3, 4)
    for wrong in range(1, 14):
        scene.show(100 + wrong, 200 + wrong, 5)
        scene.show(100 + wrong, 200 + wrong)
        scene.write(6)
        assert len(scene.draft(1, 2)) == (2 if wrong < 3 else 1 if wrong <= 12 else 0), wrong


def test_contexts_with_two_continuations_count_apart() -> None:
    scene = Scene()
    scene.show(1, 2, 3)
    scene.show(5, 6, 7)
    scene.show(1, 2, 4)
    for wrong in range(13):
        assert scene.draft(1, 2) == [4 if wrong % 2 == 0 else 3], "the newer one"
        scene.show(1, 2)
        scene.write(3 if wrong % 2 == 0 else 4)
    assert scene.draft(1, 2) == [], "16 of 33"
    assert scene.draft(5, 6) == [7], "one continuation only: another kind"


def test_only_what_the_model_writes_is_counted() -> None:
    scene = Scene()
    scene.show(1, 2, 3, 4)
    for wrong in range(1, 30):
        scene.show(100 + wrong, 200 + wrong, 5)
        scene.show(100 + wrong, 200 + wrong, 6)
    assert scene.draft(1, 2) == [3, 4]


def test_begin_forgets_the_context_and_keeps_the_tables() -> None:
    drafter = Drafter(1, 10)
    drafter.read(0, [1, 2, 3, 1, 2], written=False)
    assert drafter.draft(0, MOST, never) == [3, 1, 2]
    drafter.begin(0)
    assert drafter.draft(0, MOST, never) == [1, 2, 3], "what a sequence began with"


def test_lanes_share_the_tables_and_not_the_context() -> None:
    drafter = Drafter(2, 10)
    drafter.read(0, [1, 2, 3, 4], written=False)
    drafter.read(1, [8, 9, 1, 2], written=False)
    assert drafter.draft(1, MOST, never) == [3, 4]
    drafter.read(0, [5], written=False)
    assert drafter.draft(1, MOST, never) == [3, 4, 5]


def test_full_tables_are_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roleagent.rollout.drafting._LIMIT", 6)
    drafter = Drafter(1, 10)
    drafter.read(0, [7, 7, 1, 2, 3, 4], written=False)
    drafter.begin(0)
    drafter.read(0, [], written=False)
    assert drafter.draft(0, MOST, never) == [7, 7, 1], "six entries are not too many"
    drafter.read(0, [8, 8, 8], written=False)
    drafter.read(0, [9, 1, 2], written=False)
    assert drafter.draft(0, MOST, never) == []


def followers(history: Sequence[tuple[Sequence[int], int]], context: Sequence[int]) -> int | None:
    """The token that followed most recently after the longest of the context's endings."""
    for order in (16, 8, 4, 2):
        for before, token in reversed(history):
            if tuple(before[-order:]) == tuple(context[-order:]):
                return token
    return None


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 1), st.booleans(), st.lists(st.integers(0, 3), max_size=30)), max_size=8),
    st.integers(0, 5),
)
def test_guesses_are_those_of_a_search_through_everything_read(
    reads: list[tuple[int, bool, list[int]]], most: int
) -> None:
    drafter = Drafter(2, 4)
    contexts, history = [[0] * 16, [0] * 16], list[tuple[Sequence[int], int]]()
    for lane, new, tokens in reads:
        if new:
            drafter.begin(lane)
            contexts[lane] = [0] * 16
        drafter.read(lane, iter(tokens), written=False)
        for token in tokens:
            history.append((contexts[lane][-16:], token))
            contexts[lane].append(token)
    for lane in range(2):
        found: list[int] = []
        while len(found) < min(most, 3) and (token := followers(history, [*contexts[lane], *found])) is not None:
            found.append(token)
        assert drafter.draft(lane, most, never) == found
        assert drafter.draft(lane, most, never) == found, "a draft changes nothing"


@pytest.mark.parametrize("size", [1, 2, 32_000])
def test_any_vocabulary(size: int) -> None:
    drafter = Drafter(1, size)
    tokens = [size - 1, 0, size // 2]
    drafter.read(0, tokens, written=True)
    drafter.begin(0)
    assert drafter.draft(0, MOST, never) == tokens
