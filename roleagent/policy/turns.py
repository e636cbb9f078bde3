"""The turn format: what the model writes each step, rendered and read back.

A turn is `<think>reasoning</think><action>action</action>` followed by H blocks `<predict>next state</predict>`,
one a horizon (World-In-Agent: the method, section 1). The text comes from a sampled model, so the parser accepts
anything: it never raises, and its cost is linear in the text's length.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

THINK, THINK_END = "<think>", "</think>"
ACTION, ACTION_END = "<action>", "</action>"
PREDICT, PREDICT_END = "<predict>", "</predict>"
TAGS = (THINK, THINK_END, ACTION, ACTION_END, PREDICT, PREDICT_END)

_ANY_TAG = re.compile("|".join(re.escape(tag) for tag in TAGS))


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """What was read from a turn."""

    reasoning: str
    action: str  #: "" exactly when the turn is malformed
    predictions: tuple[str, ...]  #: `horizon` entries; "" where missing or not closed
    malformed: bool  #: no complete, non-empty action could be read


def render_turn(reasoning: str, action: str, predictions: Sequence[str]) -> str:
    """Write a turn. The think block is left out when `reasoning` is empty.

    Tags inside the fields are removed, and outer white space is stripped, so that :func:`parse_turn` gives the
    fields back.
    """
    reasoning = without_tags(reasoning).strip()
    parts = [THINK, reasoning, THINK_END] if reasoning else []
    parts += [ACTION, without_tags(action).strip(), ACTION_END]
    for prediction in predictions:
        parts += [PREDICT, without_tags(prediction).strip(), PREDICT_END]
    return "".join(parts)


def parse_turn(text: str, horizon: int) -> ParsedTurn:
    """Read a turn of `horizon` predictions from any text.

    - Reasoning is the leading think block; text before the action counts as reasoning when there is none.
    - The action is the first complete action block after the reasoning. A think block that is never closed ends
      where the first action begins.
    - Predictions are the first `horizon` complete predict blocks after the action; further ones are ignored.
    - Where a tag is opened twice, the inner one counts: `<action>a<action>b</action>` reads `b`.
    """
    start = _after_reasoning(text)
    found = _block(text, start if start is not None else 0, ACTION, ACTION_END)
    if found is None:
        head = text[:start] if start else text
        return ParsedTurn(_reasoning(head), "", ("",) * horizon, True)
    action, opened, position = found
    predictions: list[str] = []
    while len(predictions) < horizon and (block := _block(text, position, PREDICT, PREDICT_END)) is not None:
        predictions.append(block[0])
        position = block[2]
    predictions += [""] * (horizon - len(predictions))
    head = text[:start] if start else text[:opened]
    return ParsedTurn(_reasoning(head), action, tuple(predictions), not action)


def complete_action(text: str) -> str | None:
    """Return the action as soon as the growing `text` of a turn holds it, else None.

    Whatever follows, :func:`parse_turn` of the longer text gives the same action ("" when the block is empty). A
    think block that is still open may yet be closed, so nothing is returned before its end.
    """
    start = _after_reasoning(text)
    found = None if start is None else _block(text, start, ACTION, ACTION_END)
    return None if found is None else found[0]


def without_tags(text: str) -> str:
    """Put a space in place of every tag of the turn format: a space, so that no new tag is brought together."""
    return _ANY_TAG.sub(" ", text)


def turn_instructions(guide: str, horizon: int) -> str:
    """System prompt for a model that was never trained on the turn format.

    Args:
        guide: the environment's action grammar.
        horizon: H, predictions a turn; 0 asks for none.
    """
    lines = [
        "You are an agent in an interactive text environment. Each message shows what you observe; "
        "the first one also states your goal. Answer every message with exactly one turn in this format:",
        "",
        f"{THINK}short reasoning{THINK_END}",
        f"{ACTION}one action{ACTION_END}",
    ]
    if horizon:
        lines += [f"{PREDICT}{_what_to_predict(step)}{PREDICT_END}" for step in range(1, horizon + 1)]
    lines += [
        "",
        "Write the tags exactly as shown, and nothing outside of them. Only the text inside the action tags is "
        "carried out, so it must be one complete action.",
    ]
    if horizon == 1:
        lines.append("In the predict tags, write the observation that you expect as the answer to your action.")
    elif horizon > 1:
        lines.append(
            f"In the {horizon} predict blocks, write the next {horizon} observations that you expect, in order: "
            "first the answer to this action, then those to the actions that you plan after it."
        )
    lines += ["", "Actions:", guide.strip()]
    return "\n".join(lines)


def _what_to_predict(step: int) -> str:
    return "the next observation" if step == 1 else f"the observation {step} steps from now"


def _after_reasoning(text: str) -> int | None:
    """Index behind the leading think block, 0 when there is none, None when it is still open."""
    if not text.lstrip().startswith(THINK):
        return 0
    end = text.find(THINK_END)
    return None if end < 0 else end + len(THINK_END)


def _block(text: str, start: int, opening: str, closing: str) -> tuple[str, int, int] | None:
    """First complete block at or after `start`: its stripped content, where it opens, the index behind it."""
    first = text.find(opening, start)
    if first < 0:
        return None
    end = text.find(closing, first)
    if end < 0:
        return None
    inner = text.rfind(opening, first, end)
    return text[inner + len(opening) : end].strip(), first, end + len(closing)


def _reasoning(head: str) -> str:
    return without_tags(head).strip()
