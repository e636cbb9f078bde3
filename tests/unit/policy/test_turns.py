"""The turn format: what is written is read back, and any text is read without an error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roleagent.policy.turns import TAGS, complete_action, parse_turn, render_turn, turn_instructions, without_tags

_pieces = st.lists(st.one_of(st.sampled_from(TAGS), st.text(max_size=8), st.sampled_from(["<", "</", " ", "\n"])))
noisy = _pieces.map("".join)
plain = st.text(max_size=40).map(lambda text: without_tags(text).strip())


@given(plain, plain.filter(bool), st.lists(plain, max_size=4))
def test_round_trip(reasoning: str, action: str, predictions: list[str]) -> None:
    parsed = parse_turn(render_turn(reasoning, action, predictions), len(predictions))
    assert (parsed.reasoning, parsed.action, list(parsed.predictions)) == (reasoning, action, predictions)
    assert not parsed.malformed


@given(noisy, noisy, st.lists(noisy, max_size=3))
def test_fields_with_tags_cannot_break_the_turn(reasoning: str, action: str, predictions: list[str]) -> None:
    text = render_turn(reasoning, action, predictions)
    parsed = parse_turn(text, len(predictions))
    assert parsed.action == without_tags(action).strip()
    assert list(parsed.predictions) == [without_tags(prediction).strip() for prediction in predictions]


@given(noisy, st.integers(0, 4))
def test_any_text_is_read(text: str, horizon: int) -> None:
    parsed = parse_turn(text, horizon)
    assert len(parsed.predictions) == horizon
    assert parsed.malformed == (parsed.action == "")
    assert not any(tag in parsed.reasoning for tag in TAGS)


@given(noisy, noisy, st.integers(0, 2))
def test_an_action_once_complete_stays(text: str, more: str, horizon: int) -> None:
    """What is sent to the environment early is what the finished turn is recorded with."""
    action = complete_action(text)
    if action is not None:
        assert parse_turn(text + more, horizon).action == action
        assert complete_action(text + more) == action


@pytest.mark.parametrize(
    ("text", "reasoning", "action", "predictions"),
    [
        ("<think>r</think><action>a</action><predict>p</predict><predict>q</predict>", "r", "a", ("p", "q")),
        ("\n <think> r </think>\n\n<action>\n a b \n</action>\n<predict> p\n</predict>", "r", "a b", ("p", "")),
        ("<action>a</action>", "", "a", ("", "")),
        ("so I go <action>a</action><predict>p</predict>", "so I go", "a", ("p", "")),
        ("<think>never closed <action>a</action>", "never closed", "a", ("", "")),
        ("<think>not <action>x</action> yet</think><action>a</action>", "not  x  yet", "a", ("", "")),
        ("<action>a</action><action>b</action><predict>p</predict>", "", "a", ("p", "")),
        ("<action>a <action>b</action>", "", "b", ("", "")),
        ("<predict>early</predict><action>a</action><predict>p</predict>", "early", "a", ("p", "")),
        ("<action>a</action><predict>p<predict>q</predict><predict>open", "", "a", ("q", "")),
        ("<action>a</action><predict></predict><predict>q</predict>", "", "a", ("", "q")),
        ("<action>a</action><predict>1</predict><predict>2</predict><predict>3</predict>", "", "a", ("1", "2")),
    ],
)
def test_cases(text: str, reasoning: str, action: str, predictions: tuple[str, ...]) -> None:
    parsed = parse_turn(text, 2)
    assert (parsed.reasoning, parsed.action, parsed.predictions) == (reasoning, action, predictions)
    assert not parsed.malformed


@pytest.mark.parametrize("text", ["", "go north", "<action>", "<action>go", "<action> </action>", "</action>a<action>"])
def test_malformed(text: str) -> None:
    parsed = parse_turn(text, 1)
    assert parsed.malformed
    assert parsed.predictions == ("",)


def test_an_open_think_block_delays_the_action() -> None:
    assert complete_action("<think>maybe <action>a</action>") is None
    assert complete_action("<think>maybe <action>a</action></think><action>b</action>") == "b"
    assert complete_action("<action>a</action") is None
    assert complete_action("<action></action>") == ""


def test_empty_reasoning_writes_no_think_block() -> None:
    assert render_turn("", "go", ["x"]) == "<action>go</action><predict>x</predict>"


def test_instructions_show_the_format_that_the_parser_reads() -> None:
    text = turn_instructions("go to X", 2)
    assert text.endswith("Actions:\ngo to X")
    example = text[text.index("<think>") :]
    parsed = parse_turn(example, 3)
    assert parsed.action == "one action"
    assert parsed.predictions == ("the next observation", "the observation 2 steps from now", "")
    assert "predict" not in turn_instructions("go to X", 0)
