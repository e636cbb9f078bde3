"""What the model reads: the context templates, as text and as token ids.

`history`: an episode is one growing sequence. The first user message is the goal and the first observation, later
ones are the observation alone, and the model's own turns stay in it as the ids that were sampled.
`step`: every step has a prompt of its own with the goal, the last `window` turns (observation and action; neither
reasoning nor predictions) and the current observation. It is a sequence of its own, so prompts stay short in long
episodes.
`step_actions`: the same, and the actions that the environment lists as possible now: what the paper's prompt for
ALFWorld tells the agent (task, steps taken, last observations and actions, present observation, admissible actions).

Everything here is pure: text or ids in, text or ids out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

#: What goes back to the model after a turn without a readable action. The environment is not asked. The wording is
#: that of text games, so a policy that was trained on one needs no new word for it.
MALFORMED_REPLY = "Nothing happens."


class ChatTokenizer(Protocol):
    """The part of `roleagent.policy.tokens.PolicyTokenizer` that the templates use."""

    def opening(self, system: str | None, first_user: str) -> list[int]:
        """Return the ids of a conversation's beginning, up to the generation prompt."""
        ...

    def next_user(self, text: str, ended: bool) -> list[int]:
        """Return the ids between the end of a generated turn and the next generation prompt."""
        ...


class RememberingTokenizer:
    """Ids of texts seen before come from a table: a group begins alike, and environments repeat themselves."""

    def __init__(self, tokenizer: ChatTokenizer, limit: int = 20_000) -> None:
        """Remember at most `limit` texts; a full table is emptied."""
        self._tokenizer = tokenizer
        self._limit = limit
        self._known: dict[tuple[str | bool | None, ...], list[int]] = {}

    def opening(self, system: str | None, first_user: str) -> list[int]:
        """Return `opening` of the tokenizer."""
        key = (system, first_user)
        ids = self._known.get(key)
        return self._keep(key, self._tokenizer.opening(system, first_user)) if ids is None else ids

    def next_user(self, text: str, ended: bool) -> list[int]:
        """Return `next_user` of the tokenizer."""
        key = (ended, text)
        ids = self._known.get(key)
        return self._keep(key, self._tokenizer.next_user(text, ended)) if ids is None else ids

    def _keep(self, key: tuple[str | bool | None, ...], ids: list[int]) -> list[int]:
        if len(self._known) >= self._limit:
            self._known.clear()
        self._known[key] = ids
        return ids


def clean_text(text: object) -> str:
    """Return the text of an environment with lone surrogates replaced by "?", so that it can be encoded and stored.

    Raises TypeError when it is not a string: the environment broke its contract.
    """
    if not isinstance(text, str):
        raise TypeError(f"expected a text, got {type(text).__name__}")
    return text.encode("utf-8", "replace").decode("utf-8")


def first_user_text(goal: str, observation: str) -> str:
    """Return the first user message of an episode."""
    return f"Your task is to: {goal}\n{observation}"


def step_user_text(
    goal: str, turns: Sequence[tuple[str, str]], observation: str, window: int, actions: Sequence[str] = ()
) -> str:
    """Return the user message of a step-independent prompt.

    `turns` are the earlier (observation, action) pairs of the episode, oldest first; the last `window` are shown.
    `actions` are those that are possible now, if they are to be told; how many steps were taken is told with them.
    Without earlier turns and actions this is :func:`first_user_text`.
    """
    shown = turns[max(0, len(turns) - window) :] if window else ()
    lines = [f"Your task is to: {goal}"]
    if actions and turns:
        lines.append(f"Steps taken: {len(turns)}")
    if shown:
        lines.append("Your last steps:")
    for seen, action in shown:
        lines.append(f"Observation: {seen}")
        lines.append(f"Action: {action}")
    if shown:
        lines.append("Now:")
    lines.append(observation)
    if actions:
        lines.append(f"Possible actions: {'; '.join(actions)}")
    return "\n".join(lines)


def opening_ids(
    tokenizer: ChatTokenizer, system: str | None, goal: str, observation: str, actions: Sequence[str] = ()
) -> list[int]:
    """Return the context ids of the first step, with any template."""
    return tokenizer.opening(system, step_user_text(goal, (), observation, 0, actions))


def history_ids(tokenizer: ChatTokenizer, observation: str, ended: bool) -> list[int]:
    """Return the context ids of a later step of the `history` template: they extend the sequence.

    `ended` says whether the model closed its turn itself; if not, the closing token is part of these ids (mask 0).
    """
    return tokenizer.next_user(observation, ended)


def step_ids(
    tokenizer: ChatTokenizer,
    system: str | None,
    goal: str,
    turns: Sequence[tuple[str, str]],
    observation: str,
    window: int,
    actions: Sequence[str] = (),
) -> list[int]:
    """Return the context ids of a later step of the `step` templates: they begin a sequence of their own."""
    return tokenizer.opening(system, step_user_text(goal, turns, observation, window, actions))
