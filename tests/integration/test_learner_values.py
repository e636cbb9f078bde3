"""The value head: what it reads, what it is taught, and the objectives that count sequences."""

import numpy as np
import pytest
import torch
from learner_case import random_sequences, tiny_model, with_values

from roleagent.config.models import LearnerConfig
from roleagent.errors import ConfigError
from roleagent.learning.learner import Learner
from roleagent.learning.packing import generated_tokens

VALUES = LearnerConfig(
    learning_rate=1e-3,
    kl_coefficient=0.0,
    max_grad_norm=1e9,
    value_coefficient=0.5,
    value_learning_rate=1e-2,
    micro_batch_tokens=64,
)


def test_values_are_zero_before_training_and_one_a_step():
    learner = Learner(tiny_model(0), None, VALUES, seed=0)
    sequences = with_values(random_sequences(6))
    found = learner.values(sequences)
    assert [len(row) for row in found] == [len(sequence.values) for sequence in sequences]
    assert not np.concatenate(found).any()


def test_without_a_head_there_are_no_values():
    with pytest.raises(ConfigError, match=r"set learner\.value_coefficient above 0"):
        Learner(tiny_model(0), None, LearnerConfig(kl_coefficient=0.0), seed=0).values([])


def test_the_gradient_is_that_of_the_textbook():
    """One sequence at a time from the model's own hidden states; the trunk feels the value loss, too."""
    sequences = with_values(random_sequences(5))
    model, plain = tiny_model(0), tiny_model(0)
    learner = Learner(model, None, VALUES, seed=0)
    head = torch.nn.Linear(32, 1)
    with torch.no_grad():
        weight = torch.randn(1, 32, generator=torch.Generator().manual_seed(3)) * 0.05
        for target in (head, learner._value_head):
            target.weight.copy_(weight)
            target.bias.fill_(0.1)
    count = sum(len(sequence.values) for sequence in sequences)
    total = torch.zeros(())
    for sequence in sequences:
        output = plain(torch.tensor([sequence.ids]), output_hidden_states=True)
        log_p = torch.log_softmax(output.logits[0], dim=-1)
        for place, flag in enumerate(sequence.mask):
            if flag:
                now = log_p[place - 1, sequence.ids[place]]
                old = max(sequence.old_logprobs[place], now.item() - np.log(2.0))
                ratio, advantage = torch.exp(now - old), sequence.advantages[place]
                part = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
                total = total - part / generated_tokens(sequences)
        for point in sequence.values:
            value = head(output.hidden_states[-1][0, point.position]).squeeze()
            near = point.old + (value - point.old).clamp(-0.2, 0.2)
            error = torch.maximum((value - point.target) ** 2, (near - point.target) ** 2) / 2
            total = total + 0.5 * error / count
    total.backward()
    metrics = learner.update(sequences, temperature=1.0, iteration=0)
    assert metrics["update/loss"] == pytest.approx(total.item(), rel=1e-4, abs=1e-6)
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(model.get_parameter(name).grad, parameter.grad, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(learner._value_head.weight.grad, head.weight.grad, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(learner._value_head.bias.grad, head.bias.grad, rtol=1e-4, atol=1e-6)
    assert head.weight.grad.abs().max() > 1e-2


def test_values_are_learned():
    """Two states that the context tells apart get their two values."""
    learner = Learner(tiny_model(0), None, VALUES.model_copy(update={"value_clip": 10.0}), seed=0)
    (sequence,) = random_sequences(1, shortest=6, longest=7)
    sequences = []
    for token, target in ((3, 1.0), (4, -1.0)):
        ids = (token, *sequence.ids[1:])
        (one,) = with_values([sequence.__class__(ids, sequence.mask, (0.0,) * len(ids), (0.0,) * len(ids))])
        sequences.append((one, target))

    def batch():
        now = learner.values([one for one, _ in sequences])
        made = []
        for (one, target), values in zip(sequences, now, strict=True):
            points = [type(p)(p.position, v, target) for p, v in zip(one.values, values.tolist(), strict=True)]
            made.append(one.__class__(one.ids, one.mask, one.advantages, one.old_logprobs, "", tuple(points)))
        return made

    for iteration in range(60):
        metrics = learner.update(batch(), temperature=1.0, iteration=iteration)
    first, second = learner.values([one for one, _ in sequences])
    assert first.mean() == pytest.approx(1.0, abs=0.2)
    assert second.mean() == pytest.approx(-1.0, abs=0.2)
    assert metrics["value/explained_variance"] > 0.9


@pytest.mark.parametrize("aggregation", ["sequence", "constant"])
def test_micro_batches_do_not_change_what_counts_sequences(aggregation):
    results = []
    for bound in (64, 10**5):
        config = VALUES.model_copy(
            update={"aggregation": aggregation, "length_constant": 30, "ratio": "product", "micro_batch_tokens": bound}
        )
        model = tiny_model(0)
        metrics = Learner(model, None, config, seed=0).update(
            with_values(random_sequences(7)), temperature=1.0, iteration=0
        )
        results.append((metrics["update/loss"], model.lm_head.weight.grad))
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-4)
    torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-3, atol=1e-6)


def test_a_constant_length_must_be_given():
    with pytest.raises(ConfigError, match=r"give learner\.length_constant"):
        Learner(tiny_model(0), None, LearnerConfig(kl_coefficient=0.0, aggregation="constant"), seed=0)
