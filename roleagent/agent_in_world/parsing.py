"""Reading a diagnosis out of a model's words.

The text is untrusted: it may be prose, several objects, cut off, enormous or hostile. Reading it takes bounded time,
never raises, and what comes out is clean: no control characters, one line, bounded lengths, valid UTF-8.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass

from roleagent.agent_in_world.prompts import FIELDS, fold, render_record

MAX_TEXT = 20_000  #: characters of an answer that are looked at
MAX_LABEL = 60  #: characters of `failure_type`
MAX_QUERY = 300  #: characters of `retrieval_query`
MAX_SENTENCES = 1_000  #: characters of `root_cause` and of `lesson`

_MAX_OBJECTS = 50  # places where an object may begin that are tried
_STEP_NUMBER = re.compile(r"(?:step\s*)?([0-9]{1,6})", re.IGNORECASE)
_LIMITS = {
    "failure_type": MAX_LABEL,
    "root_cause": MAX_SENTENCES,
    "lesson": MAX_SENTENCES,
    "retrieval_query": MAX_QUERY,
}


@dataclass(frozen=True, slots=True)
class Record:
    """A valid diagnosis: what the environment role says of one failed episode."""

    failure_type: str
    root_cause: str
    critical_step: int
    lesson: str
    retrieval_query: str

    def render(self) -> str:
        """Return the canonical one-line JSON, which `parse_record` reads back as this record."""
        return render_record(
            failure_type=self.failure_type,
            root_cause=self.root_cause,
            critical_step=self.critical_step,
            lesson=self.lesson,
            retrieval_query=self.retrieval_query,
        )


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why an answer is not a diagnosis, in one line."""

    reason: str


def clean(text: str) -> str:
    """Return the text on one line without control, format, private or unassigned characters and lone surrogates."""
    folded = fold(text)
    if folded.isascii() and folded.isprintable():
        return folded
    kept = "".join(char for char in folded if not unicodedata.category(char).startswith("C"))
    return fold(kept)


def normalise_label(text: str) -> str:
    """Return a failure type in the form in which types are counted: "Wrong_Location." -> "wrong location"."""
    return fold(clean(text).replace("_", " ")).casefold().strip(" .:;,\"'`*")


def parse_record(text: str, steps: int) -> Record | Rejection:
    """Read the first valid diagnosis in `text`; prose, code fences and a reasoning block around it do not matter.

    Args:
        text: the model's answer, of any length; only the first MAX_TEXT characters are looked at.
        steps: T of the diagnosed episode; `critical_step` must lie in 1..T.

    Returns:
        The record, or the reason why there is none: that of the object which came nearest.
    """
    looked_at = text[:MAX_TEXT]
    _, reasoned, answer = looked_at.rpartition("</think>")
    rejection = Rejection("no JSON object")
    found = False
    for candidate in _objects(answer if reasoned else looked_at):
        outcome = _validate(candidate, steps)
        if isinstance(outcome, Record):
            return outcome
        if not found or any(name in candidate for name in FIELDS):
            rejection, found = outcome, True
    return rejection


def _objects(text: str) -> list[Mapping[str, object]]:
    """Return the JSON objects in the text, in order; nested ones are not looked for."""
    decoder = json.JSONDecoder(strict=False)
    found: list[Mapping[str, object]] = []
    position = text.find("{")
    for _ in range(_MAX_OBJECTS):
        if position < 0:
            break
        end = position + 1
        try:
            value, end = decoder.raw_decode(text, position)
        except ValueError:
            value = None
        except RecursionError:
            break  # nested thousands deep: nobody's diagnosis, and every further brace would cost as much
        if isinstance(value, dict):
            found.append(value)
        position = text.find("{", end)
    return found


def _validate(candidate: Mapping[str, object], steps: int) -> Record | Rejection:
    texts: dict[str, str] = {}
    for name in FIELDS:
        if name not in candidate:
            return Rejection(f"{name} is missing")
        if name == "critical_step":
            continue
        value = candidate[name]
        if not isinstance(value, str):
            return Rejection(f"{name} is not a text")
        cleaned = normalise_label(value) if name == "failure_type" else clean(value)
        if not any(char.isalnum() for char in cleaned):
            return Rejection(f"{name} is empty")
        if cleaned.startswith("<") and cleaned.endswith(">"):
            return Rejection(f"{name} is a placeholder")
        if len(cleaned) > _LIMITS[name]:
            return Rejection(f"{name} is longer than {_LIMITS[name]} characters")
        texts[name] = cleaned
    step = _step_number(candidate["critical_step"])
    if step is None:
        return Rejection("critical_step is not a whole number")
    if not 1 <= step <= steps:
        return Rejection(f"critical_step {step} is not in 1..{steps}")
    return Record(critical_step=step, **texts)


def _step_number(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 1e6 else None
    if isinstance(value, str):
        match = _STEP_NUMBER.fullmatch(fold(value))
        return int(match[1]) if match else None
    return value if isinstance(value, int) and abs(value) < 10**6 else None


def parse_selection(text: str, count: int) -> list[int] | None:
    """Read a list of numbers in 1..count, the answer to the selection prompt.

    Repeated numbers count once. Returns None when there is no list, or one with anything else in it.
    """
    looked_at = text[:MAX_TEXT]
    _, reasoned, answer = looked_at.rpartition("</think>")
    match = re.search(r"\[([0-9,\s]{0,400})\]", answer if reasoned else looked_at)
    if match is None:
        return None
    parts = [part.strip() for part in match[1].split(",")] if match[1].strip() else []
    if not all(part.isascii() and part.isdecimal() and len(part) <= 6 for part in parts):
        return None
    numbers = list(dict.fromkeys(int(part) for part in parts))
    return numbers if all(1 <= number <= count for number in numbers) else None
