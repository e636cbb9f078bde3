"""Closing tags are found whatever the tokens are, and only where they can be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollout_doubles import split_tags, whole_tags

from roleagent.rollout.turn_end import END_OF_TURN, MAY_CLOSE, PLAIN, may_close, token_kinds, turn_complete


@pytest.mark.parametrize(
    ("text", "closes"),
    [
        ("</action>", True),
        (" </predict>\n", True),
        (">", True),
        ("on>", True),
        ("ct>", True),
        ("x</predict><predict>", True),
        ("></", True),
        ("<action>", False),
        ("<think>", False),
        ("</think>", False),
        ("nk>", False),
        ("</action", False),
        ("word", False),
        ("a > b", False),
        ("", False),
    ],
)
def test_may_close(text: str, closes: bool) -> None:
    assert may_close(text) is closes


@given(
    st.lists(st.sampled_from(["<", "/", "act", "ion", "action", "predict", ">", "a>", "n>", "</", "<action>", "x>"]))
)
def test_no_closing_tag_is_missed(pieces: list[str]) -> None:
    """Whenever a piece completes a closing tag, that piece is one to look at."""
    text = ""
    for piece in pieces:
        before = text.count("</action>") + text.count("</predict>")
        text += piece
        if text.count("</action>") + text.count("</predict>") > before:
            assert may_close(piece)


@pytest.mark.parametrize(
    ("text", "horizon", "complete"),
    [
        ("<action>a</action>", 0, True),
        ("<action>a</action>", 1, False),
        ("<action>a</action><predict>b</predict>", 1, True),
        ("<action>a</action><predict>b</predict>", 2, False),
        ("<predict>b</predict><action>a</action>", 1, False),
        ("<think></action></predict></think>", 1, False),
        ("<think></action></think><action>a</action><predict>b</predict>", 1, True),
        (" <think>x<action>a</action>", 0, True),
        ("a</action>", 0, True),
        ("", 0, False),
    ],
)
def test_turn_complete(text: str, horizon: int, complete: bool) -> None:
    assert turn_complete(text, horizon) is complete


def test_whole_tags_are_single_tokens_of_their_kind() -> None:
    tokenizer = whole_tags()
    kinds = token_kinds(tokenizer, tokenizer.vocab_size + 7)
    assert len(kinds.kinds) == tokenizer.vocab_size + 7
    kind = {
        text: int(kinds.kinds[tokenizer.encode_text(text)[0]])
        for text in ("</action>", "</predict>", "<action>", "</think>", " room")
    }
    assert kind == {
        "</action>": MAY_CLOSE,
        "</predict>": MAY_CLOSE,
        "<action>": PLAIN,
        "</think>": PLAIN,
        " room": PLAIN,
    }
    assert kinds.kinds[tokenizer.eot_id] == END_OF_TURN
    assert kinds.kinds[-1] == PLAIN
    assert kinds.text([tokenizer.vocab_size + 6]) == ""


def test_split_tags_look_at_their_last_byte_only() -> None:
    tokenizer = split_tags()
    kinds = token_kinds(tokenizer, tokenizer.vocab_size)
    looked_at = [
        tokenizer.token_text(token) for token in range(tokenizer.vocab_size) if kinds.kinds[token] == MAY_CLOSE
    ]
    assert looked_at == [">"]


def test_kinds_are_worked_out_once() -> None:
    tokenizer = whole_tags()
    assert token_kinds(tokenizer, 500) is token_kinds(tokenizer, 500)
    assert token_kinds(tokenizer, 501) is not token_kinds(tokenizer, 500)
