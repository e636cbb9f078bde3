import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from roleagent.learning.loss import (
    clipped_surrogate,
    clipped_value_loss,
    importance_weight,
    k3,
    log_ratio,
    mismatch_ratio,
    recorded_old,
    score_tokens,
    token_weights,
)

LOG = torch.log


def test_scores_by_hand():
    # Two positions, three words; logits are ln of (1, 2, 1) and (1, 1, 8).
    logits = LOG(torch.tensor([[1.0, 2.0, 1.0], [1.0, 1.0, 8.0]]))
    scores = score_tokens(lambda hidden: hidden, logits, torch.tensor([1, 0]), 1.0, vocabulary=3)
    assert scores.logprobs.tolist() == pytest.approx([math.log(0.5), math.log(0.1)])
    assert scores.entropy.tolist() == pytest.approx(
        [0.5 * math.log(2) + 0.5 * math.log(4), 0.2 * math.log(10) + 0.8 * math.log(10 / 8)]
    )


def test_temperature_divides_the_logits():
    # At temperature 0.5 the odds 1 : 3 become 1 : 9.
    logits = LOG(torch.tensor([[1.0, 3.0]]))
    scores = score_tokens(lambda hidden: hidden, logits, torch.tensor([1]), 0.5, vocabulary=2)
    assert scores.logprobs.item() == pytest.approx(math.log(0.9))


@pytest.mark.parametrize("entropy_gradient", [False, True])
def test_chunks_change_neither_values_nor_gradients(entropy_gradient):
    torch.manual_seed(0)
    head = torch.nn.Linear(8, 11)
    hidden = torch.randn(23, 8)
    targets = torch.randint(0, 11, (23,))

    def run(max_logits):
        inputs = hidden.clone().requires_grad_()
        head.zero_grad()
        scores = score_tokens(
            head, inputs, targets, 0.7, entropy_gradient=entropy_gradient, max_logits=max_logits, vocabulary=11
        )
        (scores.logprobs.sum() + (scores.entropy.sum() if entropy_gradient else 0.0)).backward()
        return scores.logprobs.detach(), scores.entropy.detach(), inputs.grad, head.weight.grad.clone()

    for whole, parts in zip(run(10**6), run(44), strict=True):
        torch.testing.assert_close(whole, parts, rtol=1e-6, atol=1e-6)


def test_chunks_bound_what_the_head_sees():
    seen = []

    def head(hidden):
        seen.append(len(hidden))
        return hidden

    with torch.no_grad():
        score_tokens(head, torch.randn(10, 5), torch.zeros(10, dtype=torch.long), 1.0, max_logits=20, vocabulary=5)
    assert seen == [4, 4, 2]


def test_entropy_carries_a_gradient_only_when_asked():
    logits = torch.randn(3, 4, requires_grad=True)
    targets = torch.zeros(3, dtype=torch.long)
    assert not score_tokens(lambda x: x, logits, targets, 1.0, vocabulary=4).entropy.requires_grad
    score_tokens(lambda x: x, logits, targets, 1.0, entropy_gradient=True, vocabulary=4).entropy.sum().backward()
    # dH/dz_i = -p_i (log p_i + H)
    log_p = torch.log_softmax(logits.detach(), dim=1)
    entropy = -(log_p.exp() * log_p).sum(1, keepdim=True)
    torch.testing.assert_close(logits.grad, -log_p.exp() * (log_p + entropy))


def test_clipped_surrogate_by_hand():
    ratio = torch.tensor([1.0, 1.5, 1.5, 0.5, 0.5, 1.1])
    advantage = torch.tensor([2.0, 1.0, -1.0, 1.0, -1.0, 0.0])
    logprobs = LOG(ratio).requires_grad_()
    found = clipped_surrogate(logprobs, advantage, clip_low=0.2, clip_high=0.3)
    # min(rA, clip(r)A): 2 | min(1.5, 1.3) | min(-1.5, -1.3) | min(0.5, 0.8) | min(-0.5, -0.8) | 0
    torch.testing.assert_close(found.loss.detach(), -torch.tensor([2.0, 1.3, -1.5, 0.5, -0.8, 0.0]))
    assert found.clipped_high.tolist() == [False, True, False, False, False, False]
    assert found.clipped_low.tolist() == [False, False, False, False, True, False]
    found.loss.sum().backward()
    # d(-rA)/d log pi = -rA where the clip does not act, else 0.
    torch.testing.assert_close(logprobs.grad, torch.tensor([-2.0, 0.0, 1.5, -0.5, 0.0, 0.0]))


def test_weight_scales_the_surrogate_after_clipping():
    logprobs = LOG(torch.tensor([1.5, 1.0]))
    weight = torch.tensor([2.0, 0.5])
    found = clipped_surrogate(logprobs, torch.ones(2), 0.2, 0.2, weight)
    torch.testing.assert_close(found.loss, -torch.tensor([2.4, 0.5]))


def test_k3_by_hand():
    logprobs = LOG(torch.tensor([0.5, 0.2, 0.4]))
    reference = LOG(torch.tensor([0.5, 0.4, 0.1]))
    expected = [0.0, 2.0 - math.log(2.0) - 1.0, 0.25 - math.log(0.25) - 1.0]
    assert k3(logprobs, reference).tolist() == pytest.approx(expected, abs=1e-6)


def test_k3_of_a_small_step_is_half_its_square_and_pulls_back():
    logprobs = torch.tensor([-1.0, -1.0, -1.0], requires_grad=True)
    steps = torch.tensor([1e-4, -1e-3, 0.0])
    value = k3(logprobs, logprobs.detach() + steps)
    log_q = (logprobs.detach() + steps - logprobs.detach()).double()
    torch.testing.assert_close(value.double(), log_q**2 / 2, rtol=2e-3, atol=0.0)
    value.sum().backward()
    torch.testing.assert_close(logprobs.grad.double(), -log_q, rtol=2e-3, atol=0.0)


@example([(-4.429020157004816e-14, 0.0)])
@given(st.lists(st.tuples(st.floats(-30, 0), st.floats(-30, 0)), min_size=1, max_size=20))
def test_k3_is_never_negative_and_zero_only_at_equality(pairs):
    policy, reference = (torch.tensor(column, dtype=torch.float64) for column in zip(*pairs, strict=True))
    value = k3(policy, reference)
    assert bool((value >= 0).all())
    assert bool(((value > 0) == ((policy - reference).abs() > 1e-7)).logical_or(value < 1e-12).all())


def test_k3_is_unbiased_over_the_policy():
    policy = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    reference = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    expectation = (policy * k3(LOG(policy), LOG(reference))).sum()
    exact = (policy * LOG(policy / reference)).sum()
    torch.testing.assert_close(expectation, exact)


def test_importance_weight_is_capped_and_detached():
    sampler = torch.zeros(4)
    first = LOG(torch.tensor([0.5, 1.0, 2.0, 8.0])).requires_grad_()
    weight = importance_weight(sampler, first, cap=2.0)
    assert weight.tolist() == pytest.approx([0.5, 1.0, 2.0, 2.0])
    assert not weight.requires_grad


def test_recorded_denominator_starts_the_ratio_at_most_at_the_cap():
    sampler = LOG(torch.tensor([0.1, 0.1, 0.1]))
    first = LOG(torch.tensor([0.05, 0.15, 0.8])).requires_grad_()
    old = recorded_old(sampler, first, cap=2.0)
    assert not old.requires_grad
    torch.testing.assert_close(torch.exp(first.detach() - old), torch.tensor([0.5, 1.5, 2.0]))
    # Within the cap the denominator is the recorded log-prob itself, bit for bit.
    assert torch.equal(old[:2], sampler[:2])


def test_the_two_ways_agree_on_the_first_pass_where_nothing_clips():
    sampler = torch.tensor([-1.0, -2.0, -3.0])
    logprobs = (sampler + torch.tensor([0.05, -0.1, 2.0])).requires_grad_()
    advantages = torch.tensor([1.0, -1.0, -0.5])
    first = logprobs.detach()
    recorded = clipped_surrogate(logprobs - recorded_old(sampler, first, 2.0), advantages, 0.2, 0.2)
    (recorded_gradient,) = torch.autograd.grad(recorded.loss.sum(), logprobs)
    weight = importance_weight(sampler, first, 2.0)
    recomputed = clipped_surrogate(logprobs - first, advantages, 0.2, 0.2, weight)
    (recomputed_gradient,) = torch.autograd.grad(recomputed.loss.sum(), logprobs)
    torch.testing.assert_close(recorded_gradient, recomputed_gradient)


def test_mismatch_ratio_and_overflow():
    ratio = mismatch_ratio(torch.tensor([-1.0, 0.0]), torch.tensor([-1.0, -500.0]))
    assert ratio[0].item() == 1.0
    assert bool(torch.isfinite(ratio).all())


# --- ratios of sequences, aggregation, values ------------------------------------------------------------------------


def test_log_ratio_by_hand():
    # Two sequences of 3 and 1 tokens; log-ratios 0.1, 0.2, 0.6 and -0.4.
    logprobs, old = torch.tensor([-1.0, -1.0, -1.0, -1.0]), torch.tensor([-1.1, -1.2, -1.6, -0.6])
    for level, expected in (
        ("token", [0.1, 0.2, 0.6, -0.4]),
        ("sequence", [0.3, 0.3, 0.3, -0.4]),
        ("product", [0.9, 0.9, 0.9, -0.4]),
    ):
        assert log_ratio(logprobs, old, [3, 1], level).tolist() == pytest.approx(expected, abs=1e-6), level


@pytest.mark.parametrize("level", ["sequence", "product"])
def test_a_sequences_ratio_has_its_own_value_and_gradient(level):
    """In the mean over a sequence's tokens; the sequence's surrogate written out as one number, and differentiated."""
    counts, advantages = [3, 1, 2], [1.5, -1.0, 0.5]
    logprobs = torch.tensor([-1.0, -2.0, -0.5, -1.0, -0.3, -2.0], requires_grad=True)
    old = torch.tensor([-1.1, -1.9, -0.9, -0.7, -0.3, -2.05])
    spread = torch.repeat_interleave(torch.tensor(advantages), torch.tensor(counts))
    surrogate = clipped_surrogate(log_ratio(logprobs, old, counts, level), spread, 0.1, 0.2)
    weights = token_weights(counts, "sequence", tokens=6, sequences=3, length=None)
    loss = (surrogate.loss * weights).sum()
    (found,) = torch.autograd.grad(loss, logprobs)

    total = torch.zeros(())
    for part, before, advantage in zip(logprobs.split(counts), old.split(counts), advantages, strict=True):
        difference = (part - before).mean() if level == "sequence" else (part - before).sum()
        ratio = torch.exp(difference)
        total = total - torch.minimum(ratio * advantage, ratio.clamp(0.9, 1.2) * advantage) / 3
    (expected,) = torch.autograd.grad(total, logprobs)
    torch.testing.assert_close(loss, total)
    torch.testing.assert_close(found, expected)


def test_a_steps_advantage_stays_its_own_under_a_sequences_ratio():
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    surrogate = clipped_surrogate(
        log_ratio(logprobs, torch.tensor([-1.0, -2.0]), [2], "sequence"), torch.tensor([1.0, 0.0]), 0.2, 0.2
    )
    surrogate.loss.sum().backward()
    assert logprobs.grad.tolist() == [-1.0, 0.0]


def test_token_weights_by_hand():
    # A micro batch of 2 and 4 tokens out of a minibatch of 10 tokens in 3 sequences.
    def weights(aggregation):
        return token_weights([2, 4], aggregation, tokens=10, sequences=3, length=20).tolist()

    assert weights("token") == pytest.approx([0.1] * 6)
    assert weights("sequence") == pytest.approx([1 / 6] * 2 + [1 / 12] * 4)
    assert weights("constant") == pytest.approx([1 / 60] * 6)


def test_clipped_value_loss_by_hand():
    # V_old 0, R 1, clip 0.2. V 0.1: near too, so 1/2 0.9^2. V 0.5: clipped to 0.2, 1/2 0.8^2, no gradient.
    # V -0.5 (moved away): 1/2 1.5^2, with gradient.
    values = torch.tensor([0.1, 0.5, -0.5], requires_grad=True)
    loss = clipped_value_loss(values, torch.zeros(3), torch.ones(3), 0.2)
    assert loss.tolist() == pytest.approx([0.405, 0.32, 1.125])
    loss.sum().backward()
    assert values.grad.tolist() == pytest.approx([-0.9, 0.0, -1.5])
