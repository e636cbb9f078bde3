"""Putting single-turn prompts to the policy in the environment role."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roleagent.policy.engines.base import Engine
    from roleagent.policy.tokens import PolicyTokenizer


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model said to one prompt."""

    text: str
    tokens: int  #: generated, the end-of-turn token included


def ask(
    engine: Engine,
    tokenizer: PolicyTokenizer,
    prompts: Sequence[list[int]],
    *,
    seeds: Sequence[int],
    max_tokens: int,
    temperature: float,
) -> list[Answer]:
    """Return the answers to prompts (token ids), all generated in one batch; answer i depends on seed i."""
    from roleagent.policy.generate import generate

    answers = generate(
        engine, prompts, max_tokens=max_tokens, temperature=temperature, seeds=seeds, stop=tokenizer.stop_ids
    )
    return [Answer(tokenizer.decode(answer.ids), len(answer.ids)) for answer in answers]
