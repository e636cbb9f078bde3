"""Reading diagnoses: what a model may write, what it may not, and what an attacker might."""

from __future__ import annotations

import json
import time
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roleagent.agent_in_world.parsing import (
    MAX_LABEL,
    MAX_QUERY,
    MAX_SENTENCES,
    Record,
    Rejection,
    clean,
    normalise_label,
    parse_record,
    parse_selection,
)

GOOD: dict[str, Any] = {
    "failure_type": "Wrong_Target  Location.",
    "root_cause": "The pen was put\non the desk.",
    "critical_step": 3,
    "lesson": "Read the goal again before putting something down.",
    "retrieval_query": "object put on the wrong receptacle",
}
EXPECTED = Record(
    failure_type="wrong target location",
    root_cause="The pen was put on the desk.",
    critical_step=3,
    lesson="Read the goal again before putting something down.",
    retrieval_query="object put on the wrong receptacle",
)

words = st.text(alphabet=st.characters(codec="utf-8", exclude_categories=("C",)), min_size=1, max_size=40).filter(
    lambda text: any(char.isalnum() for char in text) and not text.strip().startswith("<")
)


def answer(**changes: Any) -> str:
    return json.dumps({**GOOD, **changes})


@pytest.mark.parametrize(
    "text",
    [
        answer(),
        f"```json\n{answer()}\n```",
        f"Here is my diagnosis:\n\n{answer()}\nI hope that it helps {{}}!",
        f'<think>Maybe {{"failure_type": "x"}} or {answer(critical_step=1)}</think>\n{answer()}',
        f"{{not json}} {answer()}",
        f'{{"note": 1}} {answer()} {answer(critical_step=1)}',
        answer(extra={"nested": [1, 2]}),
        answer(critical_step="3"),
        answer(critical_step="Step 3"),
        answer(critical_step=3.0),
        json.dumps(GOOD, indent=2),
        answer().replace("\\n", "\n"),  # a raw line break inside a string
    ],
)
def test_valid_answers(text: str) -> None:
    assert parse_record(text, steps=5) == EXPECTED


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no JSON object"),
        ("I do not know.", "no JSON object"),
        (answer()[:-20], "no JSON object"),
        ("[1, 2]", "no JSON object"),
        ("{}", "failure_type is missing"),
        (json.dumps({key: value for key, value in GOOD.items() if key != "lesson"}), "lesson is missing"),
        (answer(root_cause=None), "root_cause is not a text"),
        (answer(lesson=["a"]), "lesson is not a text"),
        (answer(failure_type=" \n "), "failure_type is empty"),
        (answer(retrieval_query="..."), "retrieval_query is empty"),
        (answer(lesson="<one sentence>"), "lesson is a placeholder"),
        (answer(failure_type="x" * (MAX_LABEL + 1)), "failure_type is longer than 60"),
        (answer(retrieval_query="x" * (MAX_QUERY + 1)), "retrieval_query is longer than 300"),
        (answer(root_cause="x" * (MAX_SENTENCES + 1)), "root_cause is longer than 1000"),
        (answer(critical_step=0), "critical_step 0 is not in 1..5"),
        (answer(critical_step=6), "critical_step 6 is not in 1..5"),
        (answer(critical_step=-1), "critical_step -1 is not in 1..5"),
        (answer(critical_step=2.5), "critical_step is not a whole number"),
        (answer(critical_step=True), "critical_step is not a whole number"),
        (answer(critical_step=None), "critical_step is not a whole number"),
        (answer(critical_step="the third"), "critical_step is not a whole number"),
        (answer(critical_step="٣"), "critical_step is not a whole number"),
        (answer(critical_step=float("nan")), "critical_step is not a whole number"),
        (answer(critical_step=float("inf")), "critical_step is not a whole number"),
        (answer(critical_step=10**4000), "critical_step is not a whole number"),
    ],
)
def test_rejections_name_the_reason(text: str, reason: str) -> None:
    outcome = parse_record(text, steps=5)
    assert isinstance(outcome, Rejection)
    assert outcome.reason.startswith(reason)
    assert "\n" not in outcome.reason


def test_the_reason_is_that_of_the_object_that_came_nearest() -> None:
    text = f'{{"a": 1}} {answer(critical_step=9)} {{"b": 2}}'
    assert parse_record(text, steps=5) == Rejection("critical_step 9 is not in 1..5")


@pytest.mark.parametrize("bad", ["\x00", "\x1b[31m", "\u202e", "\ud800", "\u200b", "\ue000", "\uffff"])
def test_invisible_characters_are_removed(bad: str) -> None:
    outcome = parse_record(answer(root_cause=f"a{bad}b", failure_type=f"{bad}wrong {bad}object"), steps=5)
    assert isinstance(outcome, Record)
    assert outcome.root_cause in {"ab", "a[31mb"}
    assert outcome.failure_type.endswith("object")
    outcome.render().encode("utf-8")


@pytest.mark.parametrize(
    "text",
    [
        "{" * 100_000,
        "[" * 100_000,
        '{"a":' * 50_000,
        '{"failure_type": "' + "x" * 1_000_000,
        "{}" * 100_000,
        '{"critical_step": ' + "9" * 100_000 + "}",
        "\x00{\x00}" * 10_000,
        "</think>" * 10_000 + answer(),
    ],
)
def test_hostile_answers_are_read_in_bounded_time(text: str) -> None:
    begin = time.process_time()
    assert isinstance(parse_record(text, steps=5), Rejection)
    assert time.process_time() - begin < 0.5


@given(st.text(max_size=400), st.integers(1, 50))
def test_no_text_raises(text: str, steps: int) -> None:
    outcome = parse_record(text, steps)
    assert isinstance(outcome, Record | Rejection)


@given(st.dictionaries(st.sampled_from([*GOOD, "other"]), st.one_of(st.text(), st.integers(), st.floats(), st.none())))
def test_whatever_is_accepted_is_clean(fields: dict[str, Any]) -> None:
    outcome = parse_record(json.dumps({**GOOD, **fields}), steps=5)
    if isinstance(outcome, Record):
        for text in (outcome.failure_type, outcome.root_cause, outcome.lesson, outcome.retrieval_query):
            assert text
            assert text == " ".join(text.split())
            assert not any(unicodedata.category(char).startswith("C") for char in text)
            text.encode("utf-8")
        assert 1 <= outcome.critical_step <= 5
        assert len(outcome.failure_type) <= MAX_LABEL


@given(words, words, words, words, st.integers(1, 50))
def test_a_rendered_record_is_read_back_as_itself(kind: str, cause: str, lesson: str, query: str, step: int) -> None:
    text = json.dumps(
        {"failure_type": kind, "root_cause": cause, "critical_step": step, "lesson": lesson, "retrieval_query": query}
    )
    record = parse_record(text, steps=50)
    if isinstance(record, Record):
        assert parse_record(record.render(), steps=50) == record


@given(st.text(max_size=80))
def test_cleaning_twice_is_cleaning_once(text: str) -> None:
    assert clean(clean(text)) == clean(text)


@given(st.text(max_size=80))
def test_normalising_a_label_twice_is_normalising_it_once(text: str) -> None:
    assert normalise_label(normalise_label(text)) == normalise_label(text)


def test_labels_that_differ_in_form_are_one_type() -> None:
    forms = ["Repeated exploration", "repeated_exploration.", " REPEATED\nexploration ", '"repeated exploration"']
    assert {normalise_label(form) for form in forms} == {"repeated exploration"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[1, 3]", [1, 3]),
        ("[3,1,3]", [3, 1]),
        ("The list is [2].", [2]),
        ("```json\n[\n 1,\n 2\n]\n```", [1, 2]),
        ("[]", []),
        ("<think>[1]</think>[2]", [2]),
        ("", None),
        ("1, 2", None),
        ("[0]", None),
        ("[6]", None),
        ("[1, 2", None),
        ("[1,,2]", None),
        ("[1 2]", None),
        ("[one]", None),
        ("[99999999999999999999]", None),
    ],
)
def test_selections(text: str, expected: list[int] | None) -> None:
    assert parse_selection(text, 5) == expected


@given(st.text(alphabet="[]0123456789, \n", max_size=60), st.integers(1, 9))
def test_a_selection_is_none_or_valid(text: str, count: int) -> None:
    numbers = parse_selection(text, count)
    if numbers is not None:
        assert len(set(numbers)) == len(numbers)
        assert all(1 <= number <= count for number in numbers)
