"""The texts of the environment role: diagnosing a failed episode, and choosing among similar failures.

A prompt is one user message, written for either of two readers. `instructions=True` explains the record and asks
for JSON: for a general model. `instructions=False` is the short form that the small policy of this package was
pretrained on. Text of the episode is untrusted: white space is folded, so an observation cannot pretend to be the
next numbered step, and the tokenizer encodes it with special tokens disabled.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roleagent.types import Trajectory

#: (action, observation that followed) of one step.
StepText = tuple[str, str]

#: Fields of a diagnosis, in their canonical order.
FIELDS = ("failure_type", "root_cause", "critical_step", "lesson", "retrieval_query")

NO_ACTION = "(no readable action)"
_CUT = " [...]"
_LONG_OBSERVATION = 400  # characters; text games stay below, web pages do not
_LAST_RESORT = (2, 40)  # steps kept, characters of an observation

_SHORT_HEAD = "Diagnose the failed episode."

_FULL_HEAD = """\
You are the environment in which an agent acts. The agent failed the task below. Read the record of the episode and \
find out why, so that it can practise on tasks with the same weakness.
Each numbered line is one step: what the agent did -> what it then observed."""

_FULL_TAIL = """\
Answer with one JSON object and nothing else. It has exactly these fields:
"failure_type": a short general label of the kind of mistake, at most five words, lower case, for example \
"repeated exploration", "wrong target location", "missing precondition", "wrong object".
"root_cause": one or two sentences: what went wrong in this episode, and why.
"critical_step": the number of the step at which the failure could no longer be repaired, or at which the decisive \
mistake was made; a whole number from 1 to {steps}.
"lesson": one sentence: a rule that would also help in other tasks.
"retrieval_query": a short phrase that finds other episodes with the same mistake; name the mistake, not this \
episode's objects."""

_SELECT_HEAD = """\
You are the environment in which an agent acts. The agent has just failed in this way:"""

_SELECT_TAIL = """\
Which of the earlier failures above show the same weakness, so that practising their tasks would help? Answer with a \
JSON list of their numbers, the most helpful first, and nothing else; [] if none does."""


def fold(text: str) -> str:
    """Return the text on one line, every run of white space as one space."""
    return " ".join(text.split())


def shorten(text: str, limit: int) -> str:
    """Return the folded text, cut to at most `limit` characters (a mark shows the cut)."""
    folded = fold(text)
    if len(folded) <= limit:
        return folded
    return folded[: max(limit - len(_CUT), 0)].rstrip() + _CUT[:limit]


def episode_steps(trajectory: Trajectory) -> list[StepText]:
    """Return (action, next observation) of every step of a trajectory."""
    states = trajectory.states
    return [(step.action, states[position + 1]) for position, step in enumerate(trajectory.steps)]


def render_steps(steps: Sequence[StepText], *, keep: int | None = None, observation_chars: int | None = None) -> str:
    """Return one numbered line a step: "3. open drawer 1 -> The drawer 1 is open."

    Args:
        steps: (action, observation) pairs.
        keep: show this many steps, the first and the last ones (the larger half first); a line says how many are
            left out. None shows all.
        observation_chars: longest observation or action; None does not cut.
    """
    total = len(steps)
    if keep is None or keep >= total:
        shown: list[int | None] = list(range(total))
    else:
        tail = keep // 2
        shown = [*range(keep - tail), None, *range(total - tail, total)]
    lines = []
    for position in shown:
        if position is None:
            lines.append(f"({total - (keep or 0)} steps left out)")
            continue
        action, observation = (
            fold(text) if observation_chars is None else shorten(text, observation_chars) for text in steps[position]
        )
        lines.append(f"{position + 1}. {action or NO_ACTION} -> {observation}")
    return "\n".join(lines)


def render_episode(
    goal: str,
    steps: Sequence[StepText],
    *,
    max_chars: int | None = None,
    keep: int | None = None,
    observation_chars: int | None = None,
) -> str:
    """Return an episode as text: the task, then its numbered steps.

    With `max_chars` the text is shortened until it fits: very long observations are cut, then steps in the middle
    are left out, at last the goal is cut. It stays longer only if `max_chars` cannot even hold two cut steps.
    """
    task = f"Task: {fold(goal)}"

    def render(kept: int | None, chars: int | None) -> str:
        return f"{task}\n{render_steps(steps, keep=kept, observation_chars=chars)}"

    text = render(keep, observation_chars)
    if max_chars is None or len(text) <= max_chars:
        return text
    for kept, chars in _shortenings(len(steps) if keep is None else min(keep, len(steps)), observation_chars):
        text = render(kept, chars)
        if len(text) <= max_chars:
            return text
    task = shorten(task, max(max_chars - (len(text) - len(task)), len(_CUT)))
    return render(*_LAST_RESORT)


def _shortenings(steps: int, chars: int | None) -> list[tuple[int, int | None]]:
    """Return (steps kept, observation limit) from the mildest shortening to the hardest.

    Very long observations are cut first, then steps in the middle go until four are left, then observations are cut
    further.
    """
    limit = _LONG_OBSERVATION if chars is None else min(chars, _LONG_OBSERVATION)
    found: list[tuple[int, int | None]] = [(kept, limit) for kept in range(steps, 3, -1)]
    return [*found, *((min(steps, 4), shorter) for shorter in (200, 100) if shorter < limit), _LAST_RESORT]


def diagnosis_prompt(
    goal: str,
    steps: Sequence[StepText],
    *,
    instructions: bool,
    max_chars: int | None = None,
    keep: int | None = None,
    observation_chars: int | None = None,
) -> str:
    """Return the user message that asks for a diagnosis (the paper's failure-analysis prompt).

    Args:
        goal: the task, as the environment words it.
        steps: (action, observation) pairs, T >= 1.
        instructions: explain the record, for a model that was never trained on it.
        max_chars, keep, observation_chars: see :func:`render_episode`; `max_chars` bounds the episode's part.
    """
    episode = render_episode(goal, steps, max_chars=max_chars, keep=keep, observation_chars=observation_chars)
    if not instructions:
        return f"{_SHORT_HEAD}\n{episode}"
    return f"{_FULL_HEAD}\n\n{episode}\n\n{_FULL_TAIL.format(steps=len(steps))}"


def selection_prompt(failure: str, candidates: Sequence[str]) -> str:
    """Return the user message that asks which earlier failures resemble the present one (the paper's third prompt).

    Args:
        failure: one line about the present failure.
        candidates: one line each; they are numbered from 1.
    """
    numbered = "\n".join(f"{number}. {fold(text)}" for number, text in enumerate(candidates, 1))
    return f"{_SELECT_HEAD}\n{fold(failure)}\n\nEarlier failures in other tasks:\n{numbered}\n\n{_SELECT_TAIL}"


def render_record(*, failure_type: str, root_cause: str, critical_step: int, lesson: str, retrieval_query: str) -> str:
    """Return a diagnosis as canonical one-line JSON: the supervised target, and what `parse_record` reads back."""
    record = {
        "failure_type": fold(failure_type),
        "root_cause": fold(root_cause),
        "critical_step": critical_step,
        "lesson": fold(lesson),
        "retrieval_query": fold(retrieval_query),
    }
    return json.dumps(record, ensure_ascii=False)
