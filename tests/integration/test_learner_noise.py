"""The learner's noise estimate is that of gradients taken apart by hand, and costs the update nothing."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from learner_case import random_sequences, tiny_model

from roleagent.config.models import LearnerConfig
from roleagent.learning.gradient_noise import draw_half, estimate
from roleagent.learning.learner import Learner
from roleagent.learning.packing import generated_tokens, minibatches
from roleagent.types import TrainingSequence

CONFIG = LearnerConfig(learning_rate=1e-3, kl_coefficient=0.0, micro_batch_tokens=64, clip_low=0.9, clip_high=50.0)


def grouped(count: int, tasks: int) -> list[TrainingSequence]:
    return [
        dataclasses.replace(item, trajectory_id=f"t{place}", group=f"task-{place % tasks}", old_logprobs=old)
        for place, item in enumerate(random_sequences(count))
        for old in [tuple(value + 1.0 for value in item.old_logprobs)]  # ratios within clip and cap
    ]


def contribution(sequences: list[TrainingSequence], chosen: set[int]) -> float:
    """Squared norm of what these sequences add to the gradient of the batch's loss."""
    model = tiny_model(0)
    total = torch.zeros(())
    for place in chosen:
        sequence = sequences[place]
        log_p = torch.log_softmax(model(torch.tensor([sequence.ids])).logits[0], dim=-1)
        for where, flag in enumerate(sequence.mask):
            if flag:
                now = log_p[where - 1, sequence.ids[where]]
                old = max(sequence.old_logprobs[where], now.item() - torch.tensor(2.0).log().item())
                ratio = torch.exp(now - old)
                gain = ratio * sequence.advantages[where]
                limited = torch.clamp(ratio, 0.1, 51.0) * sequence.advantages[where]
                total = total - torch.minimum(gain, limited)
    (total / generated_tokens(sequences)).backward()
    return sum(float(item.grad.double().pow(2).sum()) for item in model.parameters() if item.grad is not None)


def test_the_estimate_is_that_of_the_halves_gradients() -> None:
    sequences = grouped(10, tasks=5)
    half = draw_half(sequences, range(10), seed=4, iteration=3, step=0)
    assert half is not None
    expected = estimate(contribution(sequences, set(half.first)), contribution(sequences, set(range(10))), 2, 5)
    metrics = Learner(tiny_model(0), None, CONFIG, seed=4).update(sequences, temperature=1.0, iteration=3)
    assert metrics["gradient_noise/batch"] == 5.0
    assert metrics["gradient_noise/signal"] == pytest.approx(expected[0], rel=1e-3)
    assert metrics["gradient_noise/trace"] == pytest.approx(expected[1], rel=1e-3)


def test_measuring_changes_no_weight_beyond_rounding() -> None:
    results = []
    for measured in (False, True):
        model = tiny_model(0)
        config = CONFIG.model_copy(update={"gradient_noise": measured, "minibatches": 2, "epochs": 2})
        metrics = Learner(model, None, config, seed=0).update(grouped(12, tasks=4), temperature=1.0, iteration=1)
        assert ("gradient_noise/signal" in metrics) == measured
        results.append({name: value.detach().clone() for name, value in model.named_parameters()})
    for name, value in results[0].items():
        torch.testing.assert_close(value, results[1][name], rtol=0, atol=2e-5)


def test_tasks_of_zero_gradient_count_as_units() -> None:
    sequences = [
        item if place % 4 == 0 else dataclasses.replace(item, advantages=(0.0,) * len(item.ids))
        for place, item in enumerate(grouped(8, tasks=4))
    ]
    metrics = Learner(tiny_model(0), None, CONFIG, seed=0).update(sequences, temperature=1.0, iteration=0)
    assert metrics["gradient_noise/batch"] == 4.0
    # One task of four has a gradient; it is in the drawn half, or it is not.
    whole = metrics["update/grad_norm"] ** 2
    inside = estimate(whole, whole, 2, 4)
    outside = estimate(0.0, whole, 2, 4)
    found = (metrics["gradient_noise/signal"], metrics["gradient_noise/trace"])
    assert any(found == pytest.approx(case, rel=1e-3) for case in (inside, outside))


def test_a_minibatch_of_zero_gradient_counts() -> None:
    sequences = grouped(8, tasks=4)
    config = CONFIG.model_copy(update={"minibatches": 2})
    silent = minibatches(sequences, 2, seed=0, iteration=0)[1]
    shut = [
        dataclasses.replace(item, advantages=(0.0,) * len(item.ids)) if place in silent else item
        for place, item in enumerate(sequences)
    ]
    found = Learner(tiny_model(0), None, config, seed=0).update(shut, temperature=1.0, iteration=0)
    alone = [item for place, item in enumerate(sequences) if place not in silent]
    half = draw_half(sequences, [p for p in range(8) if p not in silent], seed=0, iteration=0, step=0)
    assert half is not None
    own = contribution(alone, {sorted(set(range(8)) - set(silent)).index(place) for place in half.first})
    expected = estimate(own, found["update/grad_norm"] ** 2, half.small, half.big)
    assert found["update/optimizer_steps"] == 1.0
    assert found["gradient_noise/signal"] == pytest.approx(expected[0] / 2, rel=1e-3)
    assert found["gradient_noise/trace"] == pytest.approx(expected[1] / 2, rel=1e-3)


def test_a_single_task_has_no_estimate() -> None:
    metrics = Learner(tiny_model(0), None, CONFIG, seed=0).update(grouped(4, tasks=1), temperature=1.0, iteration=0)
    assert not any(name.startswith("gradient_noise/") for name in metrics)
