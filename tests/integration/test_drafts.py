"""Guesses at next tokens with the packaged policy, which repeats itself: the same episodes in fewer passes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from roleagent.environments.registry import make_environment
from roleagent.policy.engines.factory import make_engine
from roleagent.policy.engines.llama_engine import LlamaEngine
from roleagent.policy.engines.transformers_engine import TransformersEngine
from roleagent.policy.model import Policy, load_policy
from roleagent.rollout.loop import collect
from roleagent.rollout.meter import RolloutMeter
from roleagent.rollout.records import write_trajectories
from roleagent.rollout.settings import RolloutSettings
from roleagent.types import Trajectory

SETTINGS = RolloutSettings(
    horizon=1, max_steps=6, max_turn_tokens=112, max_context=1536, concurrency=12, temperature=0.7, instructions=False
)
HOMES = {"level": "small", "train_tasks": 4, "heldout_tasks": 1}


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy("roleagent:quickstart", device="cpu")


def play(
    policy: Policy, settings: RolloutSettings, engine: LlamaEngine | TransformersEngine | None = None
) -> tuple[list[Trajectory], RolloutMeter]:
    meter = RolloutMeter()
    tasks = make_environment("household", **HOMES).tasks("train")
    played = collect(
        engine or make_engine(policy, "llama"),
        policy.tokenizer,
        lambda: make_environment("household", **HOMES),
        [(task, sample) for task in tasks for sample in range(4)],
        settings,
        iteration=1,
        policy_version=0,
        seed=5,
        purpose="rollout",
        meter=meter,
    )
    return played, meter


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_the_same_episodes_in_fewer_passes(policy: Policy, temperature: float) -> None:
    settings = replace(SETTINGS, temperature=temperature)
    plain, before = play(policy, replace(settings, draft_tokens=0))
    drafted, after = play(policy, settings)
    gaps: list[float] = []
    for first, second in zip(plain, drafted, strict=True):
        for one, other in zip(first.steps, second.steps, strict=True):
            assert replace(one, logprobs=()) == replace(other, logprobs=())
            gaps += np.abs(np.subtract(one.logprobs, other.logprobs)).tolist()
        assert replace(first, steps=()) == replace(second, steps=())
    assert max(gaps) < 5e-5, "the rounding of one token; another batch size without guesses gives 3e-5 too"
    assert np.mean(gaps) < 1e-6
    assert len(gaps) == before.decoded_tokens == after.decoded_tokens > 1000
    assert after.decode_steps < 0.6 * before.decode_steps, "guesses are used, and many are right"


def test_two_calls_give_the_same_bits(policy: Policy) -> None:
    """Also with an engine that has played before: nothing is left of a call in the next one."""
    engine, settings = make_engine(policy, "llama"), replace(SETTINGS, max_steps=3)
    first, second = (write_trajectories(play(policy, settings, engine)[0]) for _ in range(2))
    assert first == second == write_trajectories(play(policy, settings)[0])


def test_an_engine_that_cannot_verify_is_not_given_guesses(policy: Policy) -> None:
    settings = replace(SETTINGS, max_steps=2)
    plain, _ = play(policy, replace(settings, draft_tokens=0), TransformersEngine(policy.model))
    asked, _ = play(policy, settings, TransformersEngine(policy.model))
    assert write_trajectories(plain) == write_trajectories(asked)
