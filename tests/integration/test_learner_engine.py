"""What an engine sampled, turn by turn with its cache, the learner scores the same: the mismatch is rounding."""

import numpy as np
import pytest
import torch
from learner_case import VOCABULARY, tiny_model

from roleagent.config.models import LearnerConfig
from roleagent.learning.learner import Learner
from roleagent.policy.engines.llama_engine import LlamaEngine
from roleagent.policy.engines.transformers_engine import TransformersEngine
from roleagent.policy.sampling import sample
from roleagent.types import TrainingSequence


def rollout(engine, temperature: float, seed: int) -> list[TrainingSequence]:
    """Four episodes of three turns: some context, then six sampled tokens."""
    rng = np.random.default_rng(seed)
    slots = engine.open(4, 64)
    ids, mask, logprobs = ([[] for _ in slots] for _ in range(3))
    for _ in range(3):
        contexts = [rng.integers(0, VOCABULARY, int(rng.integers(2, 7))).tolist() for _ in slots]
        for row, context in enumerate(contexts):
            ids[row] += context
            mask[row] += [False] * len(context)
            logprobs[row] += [0.0] * len(context)
        logits = engine.extend(slots, contexts)
        for _ in range(6):
            tokens, values = sample(logits, temperature, rng.random(len(slots)))
            for row, (token, value) in enumerate(zip(tokens.tolist(), values.tolist(), strict=True)):
                ids[row].append(token)
                mask[row].append(True)
                logprobs[row].append(value)
            logits = engine.step(slots, tokens)
    engine.close(slots)
    return [
        TrainingSequence(tuple(i), tuple(m), tuple(float(flag) * (row - 1.5) for flag in m), tuple(p), f"t{row}")
        for row, (i, m, p) in enumerate(zip(ids, mask, logprobs, strict=True))
    ]


@pytest.mark.parametrize("kind", [LlamaEngine, TransformersEngine])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_engine_and_learner_agree_before_and_after_updates(kind, temperature):
    model = tiny_model(0)
    learner = Learner(model, None, LearnerConfig(learning_rate=1e-3, kl_coefficient=0.0), seed=0)
    engine = kind(model).snapshot()
    for iteration in range(3):
        before = {name: tensor.clone() for name, tensor in learner.weights().items()}
        metrics = learner.update(rollout(engine, temperature, iteration), temperature=temperature, iteration=iteration)
        assert metrics["mismatch/ratio_max"] == pytest.approx(1.0, abs=1e-4)
        assert metrics["mismatch/logprob_gap_mean"] < 1e-5
        assert any(not torch.equal(before[name], tensor) for name, tensor in learner.weights().items())
        engine.load_weights(learner.weights())


def test_a_stale_engine_shows_as_mismatch():
    """The measure really sees what it is for: weights that were not handed over."""
    model = tiny_model(0)
    learner = Learner(model, None, LearnerConfig(learning_rate=1e-2, kl_coefficient=0.0), seed=0)
    engine = LlamaEngine(model).snapshot()
    learner.update(rollout(engine, 1.0, 0), temperature=1.0, iteration=0)
    metrics = learner.update(rollout(engine, 1.0, 1), temperature=1.0, iteration=1)
    assert metrics["mismatch/logprob_gap_mean"] > 1e-2
