"""Answers to single prompts, many at a time: diagnosis, and anything else that is one turn.

Each prompt has a random stream of its own, named by its seed, so its answer does not depend on what is generated beside
it beyond the rounding of the logits.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from roleagent.errors import PolicyError
from roleagent.policy.sampling import UniformStreams, sample
from roleagent.seeding import generator

if TYPE_CHECKING:
    from roleagent.policy.engines.base import Engine


@dataclass(frozen=True, slots=True)
class Generation:
    """An answer."""

    ids: tuple[int, ...]  #: what was sampled, the token that ended it included
    logprobs: tuple[float, ...]  #: log-probability of each id under the sampling distribution
    ended: bool  #: the last id is a stop token; if not, the token limit cut the answer off


def generate(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    temperature: float,
    seeds: Sequence[int],
    stop: Collection[int],
    concurrency: int = 64,
) -> list[Generation]:
    """Sample one answer for each prompt.

    Args:
        engine: slots are opened and closed again; those of others are left alone.
        prompts: token ids up to where the answer begins; none may be empty.
        max_tokens: most tokens of an answer; fewer where the model's context ends before.
        temperature: at least 0; at 0 the likeliest token is taken.
        seeds: one a prompt (see `roleagent.seeding.derive`).
        stop: tokens that end an answer.
        concurrency: prompts decoded side by side.

    Raises:
        PolicyError: a prompt leaves no room for an answer.
    """
    if len(seeds) != len(prompts):
        raise ValueError(f"{len(prompts)} prompts need as many seeds, not {len(seeds)}")
    longest = max((len(prompt) for prompt in prompts), default=0)
    if longest >= engine.max_context:
        raise PolicyError(f"a prompt of {longest} tokens leaves no room in a context of {engine.max_context}")
    answers: list[Generation] = []
    for begin in range(0, len(prompts), concurrency):
        part = slice(begin, begin + concurrency)
        answers += _generate_part(engine, prompts[part], max_tokens, temperature, seeds[part], frozenset(stop))
    return answers


def _generate_part(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    temperature: float,
    seeds: Sequence[int],
    stop: frozenset[int],
) -> list[Generation]:
    streams = UniformStreams([generator(seed, "tokens") for seed in seeds])
    limits = [min(max_tokens, engine.max_context - len(prompt)) for prompt in prompts]
    length = max(len(prompt) + limit for prompt, limit in zip(prompts, limits, strict=True))
    slots = engine.open(len(prompts), length)
    ids: list[list[int]] = [[] for _ in prompts]
    logprobs: list[list[float]] = [[] for _ in prompts]
    try:
        live = list(range(len(prompts)))
        logits = engine.extend(slots, prompts)
        while live:
            tokens, scores = sample(logits, temperature, streams.draw(live))
            for index, token, score in zip(live, tokens.tolist(), scores.tolist(), strict=True):
                ids[index].append(token)
                logprobs[index].append(score)
            live = [index for index in live if ids[index][-1] not in stop and len(ids[index]) < limits[index]]
            if live:
                logits = engine.step([slots[index] for index in live], [ids[index][-1] for index in live])
    finally:
        engine.close(slots)
    return [
        Generation(tuple(answer), tuple(scores), bool(answer) and answer[-1] in stop)
        for answer, scores in zip(ids, logprobs, strict=True)
    ]
