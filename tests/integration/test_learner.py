import dataclasses
import math

import pytest
import torch
from learner_case import VOCABULARY, random_sequences, tiny_model
from transformers import AutoModelForCausalLM, Gemma2Config, Gemma2ForCausalLM

from roleagent.config.models import LearnerConfig
from roleagent.errors import ConfigError, DataQualityError, PolicyError
from roleagent.learning.learner import Learner
from roleagent.learning.packing import generated_tokens, micro_batches, minibatches
from roleagent.learning.scorer import TokenScorer
from roleagent.types import TrainingSequence

PLAIN = LearnerConfig(learning_rate=1e-3, kl_coefficient=0.0)


def score(model, sequences, temperature=1.0, max_tokens=10**6):
    """Log-probs of every sequence's generated tokens, in the order of `sequences`."""
    found = {}
    for batch in micro_batches(sequences, max_tokens):
        logprobs, _, _ = TokenScorer(model)(
            torch.from_numpy(batch.input_ids),
            torch.from_numpy(batch.positions),
            torch.from_numpy(batch.targets),
            temperature,
        )
        found.update(zip(batch.indices, torch.split(logprobs, list(batch.counts)), strict=True))
    return [found[index] for index in range(len(sequences))]


def as_sampled(model, sequences, temperature=1.0):
    """The same sequences with the log-probs that this model gives them."""
    with torch.no_grad():
        scored = score(model, sequences, temperature)
    result = []
    for sequence, logprobs in zip(sequences, scored, strict=True):
        values = iter(logprobs.tolist())
        result.append(
            dataclasses.replace(sequence, old_logprobs=tuple(next(values) if flag else 0.0 for flag in sequence.mask))
        )
    return result


def weights(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def textbook_loss(model, reference, sequence, config, temperature):
    """Sum of the loss over one sequence, written out token by token with the model's own full logits."""
    log_p = torch.log_softmax(model(torch.tensor([sequence.ids])).logits[0] / temperature, dim=-1)
    log_q = None
    if reference is not None:
        with torch.no_grad():
            log_q = torch.log_softmax(reference(torch.tensor([sequence.ids])).logits[0] / temperature, dim=-1)
    total = torch.zeros(())
    for place, flag in enumerate(sequence.mask):
        if not flag:
            continue
        token, advantage = sequence.ids[place], sequence.advantages[place]
        now = log_p[place - 1, token]
        old = max(sequence.old_logprobs[place], now.item() - math.log(config.importance_cap))
        ratio = torch.exp(now - old)
        clipped = torch.clamp(ratio, 1 - config.clip_low, 1 + config.clip_high)
        total = total - torch.minimum(ratio * advantage, clipped * advantage)
        if log_q is not None:
            difference = log_q[place - 1, token] - now
            total = total + config.kl_coefficient * (torch.exp(difference) - difference - 1)
        entropy = -(log_p[place - 1].exp() * log_p[place - 1]).sum()
        total = total - config.entropy_coefficient * entropy
    return total


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_right_padding_needs_no_mask(family):
    model = tiny_model(family=family)
    sequences = random_sequences(7)
    with torch.no_grad():
        together = score(model, sequences)
        alone = [score(model, [sequence])[0] for sequence in sequences]
    for batched, single in zip(together, alone, strict=True):
        torch.testing.assert_close(batched, single, rtol=0, atol=2e-6)


def test_what_fills_the_padding_changes_no_bit():
    model = tiny_model()
    (batch,) = micro_batches(random_sequences(5), 10**6)
    other = torch.from_numpy(batch.input_ids.copy())
    for row, length in enumerate(batch.lengths):
        other[row, length:] = 7
    assert not torch.equal(other, torch.from_numpy(batch.input_ids))
    arguments = (torch.from_numpy(batch.positions), torch.from_numpy(batch.targets), 1.0)
    scorer = TokenScorer(model)
    with torch.no_grad():
        first, second = scorer(torch.from_numpy(batch.input_ids), *arguments), scorer(other, *arguments)
    assert torch.equal(first[0], second[0])


def test_scores_equal_the_models_own_logits():
    model = tiny_model()
    (sequence,) = random_sequences(1)
    with torch.no_grad():
        log_p = torch.log_softmax(model(torch.tensor([sequence.ids])).logits[0] / 0.7, dim=-1)
        (found,) = score(model, [sequence], temperature=0.7)
    places = [place for place, flag in enumerate(sequence.mask) if flag]
    expected = torch.stack([log_p[place - 1, sequence.ids[place]] for place in places])
    torch.testing.assert_close(found, expected, rtol=0, atol=5e-6)


def test_the_head_sees_generated_positions_only():
    model, reference = tiny_model(0), tiny_model(1)
    learner = Learner(model, reference, LearnerConfig(micro_batch_tokens=64), seed=0)
    rows = {"policy": 0, "reference": 0}

    def counter(name):
        def count(_module, inputs):
            rows[name] += len(inputs[0])

        return count

    model.lm_head.register_forward_pre_hook(counter("policy"))
    reference.lm_head.register_forward_pre_hook(counter("reference"))
    sequences = random_sequences(9)
    learner.update(sequences, temperature=1.0, iteration=0)
    assert rows == {"policy": generated_tokens(sequences), "reference": generated_tokens(sequences)}


@pytest.mark.parametrize(
    "config",
    [
        LearnerConfig(kl_coefficient=0.0),
        LearnerConfig(kl_coefficient=0.1, clip_high=0.28),
        LearnerConfig(kl_coefficient=0.1, entropy_coefficient=0.05),
    ],
    ids=["policy", "kl", "entropy"],
)
@pytest.mark.parametrize("micro_batch_tokens", [64, 120, 16384])
def test_gradient_equals_the_textbook_loss(config, micro_batch_tokens):
    """Padding, bucketing, micro batches and accumulation change nothing: one sequence at a time gives the same."""
    config = config.model_copy(update={"micro_batch_tokens": micro_batch_tokens, "max_grad_norm": 1e9})
    sequences = random_sequences(9)
    model, plain, reference = tiny_model(0), tiny_model(0), tiny_model(3)
    learner = Learner(model, reference if config.kl_coefficient else None, config, seed=0)
    metrics = learner.update(sequences, temperature=0.8, iteration=0)
    tokens = generated_tokens(sequences)
    reference = reference if config.kl_coefficient else None
    total = torch.zeros(())
    for sequence in sequences:
        loss = textbook_loss(plain, reference, sequence, config, 0.8) / tokens
        loss.backward()
        total = total + loss.detach()
    for name, parameter in plain.named_parameters():
        # float32: the order of a sum depends on the number of threads, which moves a gradient by about 1e-6
        torch.testing.assert_close(model.get_parameter(name).grad, parameter.grad, rtol=1e-5, atol=3e-6)
    assert metrics["update/loss"] == pytest.approx(total.item(), rel=1e-5, abs=1e-6)
    norm = math.sqrt(sum(float(parameter.grad.square().sum()) for parameter in plain.parameters()))
    assert metrics["update/grad_norm"] == pytest.approx(norm, rel=1e-5)


def test_minibatches_are_normalised_by_their_own_tokens():
    """Two optimizer steps equal two updates with the two shares, one after the other."""
    sequences = random_sequences(8)
    once, twice = tiny_model(0), tiny_model(0)
    config = PLAIN.model_copy(update={"minibatches": 2})
    Learner(once, None, config, seed=4).update(sequences, temperature=1.0, iteration=6)
    steps = Learner(twice, None, PLAIN, seed=4)
    for share in minibatches(sequences, 2, seed=4, iteration=6):
        steps.update([sequences[index] for index in share], temperature=1.0, iteration=0)
    assert same(weights(once), weights(twice))


def test_the_factor_scales_adamws_step():
    """AdamW's first step is rate * sign(gradient) (with epsilon far below the gradients): a quarter of the rate moves
    a quarter of the way, and a factor of 0 not at all. The next update begins from the full rate again."""
    moves = {}
    for factor in (1.0, 0.25, 0.0):
        model = tiny_model(0)
        before = weights(model)
        learner = Learner(model, None, PLAIN, seed=0)
        metrics = learner.update(random_sequences(6), temperature=1.0, iteration=1, learning_rate_factor=factor)
        assert metrics["update/learning_rate"] == pytest.approx(PLAIN.learning_rate * factor)
        moves[factor] = sum(float((weights(model)[name] - before[name]).abs().sum()) for name in before)
    assert moves[0.25] == pytest.approx(moves[1.0] / 4, rel=0.02)
    assert moves[0.0] == 0.0
    assert learner.update(random_sequences(6), temperature=1.0, iteration=2)["update/learning_rate"] == pytest.approx(
        PLAIN.learning_rate
    )


def test_same_input_gives_the_same_weights_bit_for_bit():
    results = []
    for _ in range(2):
        model = tiny_model(0)
        config = LearnerConfig(learning_rate=1e-3, minibatches=2, epochs=2, micro_batch_tokens=100)
        learner = Learner(model, tiny_model(0), config, seed=0)
        for iteration in range(2):
            learner.update(random_sequences(6, iteration), temperature=1.0, iteration=iteration)
        results.append(weights(model))
    assert same(*results)


def test_positive_advantage_raises_a_token_class():
    """Tokens 0..4 are rewarded, all others are punished: the class becomes more probable."""
    model = tiny_model(0)
    favoured = range(5)

    def probability():
        with torch.no_grad():
            logits = model(torch.tensor([[20, 21, 22, 23]])).logits
        return torch.softmax(logits, -1)[..., favoured].sum(-1).mean().item()

    before = probability()
    learner = Learner(model, None, LearnerConfig(learning_rate=3e-3, kl_coefficient=0.0), seed=0)
    generator = torch.Generator().manual_seed(0)
    for iteration in range(30):
        sequences = []
        for _ in range(16):
            ids = tuple(torch.randint(0, VOCABULARY, (8,), generator=generator).tolist())
            advantages = (0.0, *(1.0 if token in favoured else -0.2 for token in ids[1:]))
            sequences.append(TrainingSequence(ids, (False, *[True] * 7), advantages, (0.0,) * 8))
        metrics = learner.update(as_sampled(model, sequences), temperature=1.0, iteration=iteration)
    assert "update/kl" not in metrics, "nothing was measured: there is no reference"
    assert before < 0.3
    assert probability() > 0.8


def test_on_policy_data_has_ratio_one_and_no_mismatch():
    model = tiny_model(0)
    sequences = as_sampled(model, random_sequences(6), temperature=0.7)
    metrics = Learner(model, None, PLAIN, seed=0).update(sequences, temperature=0.7, iteration=0)
    assert metrics["mismatch/ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["mismatch/ratio_max"] == pytest.approx(1.0, abs=1e-4)
    assert metrics["mismatch/logprob_gap_mean"] < 1e-5
    assert metrics["mismatch/capped_share"] == 0.0
    assert metrics["update/clip_low_share"] == metrics["update/clip_high_share"] == 0.0


def test_mismatch_by_hand():
    """One token was recorded 1.2 nats too low (ratio 3.32), one 0.5 nats too high, the others exactly."""
    model = tiny_model(0)
    (sequence,) = as_sampled(model, random_sequences(1))
    places = [place for place, flag in enumerate(sequence.mask) if flag]
    logprobs = list(sequence.old_logprobs)
    logprobs[places[0]] -= 1.2
    logprobs[places[1]] += 0.5
    learner = Learner(model, None, PLAIN, seed=0)
    changed = dataclasses.replace(sequence, old_logprobs=tuple(logprobs))
    metrics = learner.update([changed], temperature=1.0, iteration=0)
    count = len(places)
    assert metrics["mismatch/ratio_max"] == pytest.approx(math.exp(1.2), rel=1e-4)
    assert metrics["mismatch/ratio_mean"] == pytest.approx((math.exp(1.2) + math.exp(-0.5) + count - 2) / count, 1e-4)
    assert metrics["mismatch/capped_share"] == pytest.approx(1 / count)
    assert metrics["mismatch/logprob_gap_mean"] == pytest.approx(1.7 / count, rel=1e-3)


def test_sampling_at_another_temperature_shows_as_mismatch():
    """Log-probs of another distribution than the sampled one (fault 6 of the method, section 6) are visible."""
    model = tiny_model(0)
    sequences = as_sampled(model, random_sequences(6), temperature=0.5)
    metrics = Learner(model, None, PLAIN, seed=0).update(sequences, temperature=1.0, iteration=0)
    assert metrics["mismatch/logprob_gap_mean"] > 0.1


@pytest.mark.parametrize("old_logprobs", ["recorded", "recomputed"])
def test_both_denominators_agree_on_exactly_recorded_data(old_logprobs):
    """Where the sampler recorded what the trainer computes, both are PPO; several steps and passes included."""
    config = LearnerConfig(learning_rate=1e-4, kl_coefficient=0.0, minibatches=2, epochs=2)
    model, expected = tiny_model(0), tiny_model(0)
    sequences = as_sampled(model, random_sequences(8))
    learner = Learner(model, None, config.model_copy(update={"old_logprobs": old_logprobs}), seed=0)
    metrics = learner.update(sequences, temperature=1.0, iteration=0)
    Learner(expected, None, config, seed=0).update(sequences, temperature=1.0, iteration=0)
    for name, value in weights(model).items():
        torch.testing.assert_close(value, expected.get_parameter(name), rtol=0, atol=1e-6)
    assert metrics["update/optimizer_steps"] == 4


def test_recomputed_denominator_costs_one_forward_pass_only_when_there_are_several_steps():
    whole = {"old_logprobs": "recomputed", "gradient_noise": False}  # not in halves: one forward pass a minibatch
    for config, expected in ((PLAIN, 1), (PLAIN.model_copy(update={"epochs": 2}), 3)):
        model = tiny_model(0)
        learner = Learner(model, None, config.model_copy(update=whole), seed=0)
        calls = []
        learner._scorer.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        learner.update(random_sequences(4), temperature=1.0, iteration=0)
        assert len(calls) == expected


def test_the_first_pass_is_kept_for_later_passes():
    """With two passes the truncation of a token is decided by the first one alone (textbook, two steps)."""
    config = LearnerConfig(learning_rate=1e-3, kl_coefficient=0.0, epochs=2, importance_cap=1.1, max_grad_norm=1e9)
    sequences = random_sequences(4)
    model, plain = tiny_model(0), tiny_model(0)
    Learner(model, None, config, seed=0).update(sequences, temperature=1.0, iteration=0)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0.0)
    with torch.no_grad():
        first = score(plain, sequences)
    for _ in range(2):
        optimizer.zero_grad()
        total = torch.zeros(())
        for sequence, now, before in zip(sequences, score(plain, sequences), first, strict=True):
            flags = torch.tensor(sequence.mask)
            old = torch.maximum(torch.tensor(sequence.old_logprobs)[flags], before - math.log(1.1))
            advantages = torch.tensor(sequence.advantages)[flags]
            ratio = torch.exp(now - old)
            total = total - torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).sum()
        (total / generated_tokens(sequences)).backward()
        optimizer.step()
    for name, value in weights(model).items():
        torch.testing.assert_close(value, plain.get_parameter(name).detach(), rtol=0, atol=1e-5)


def test_dead_sequences_are_left_out_without_changing_the_gradient():
    sequences = random_sequences(8)
    dead = [dataclasses.replace(item, advantages=(0.0,) * len(item.ids)) for item in sequences[:5]]
    batch = [*dead, *sequences[5:]]
    model, plain = tiny_model(0), tiny_model(0)
    learner = Learner(model, None, PLAIN.model_copy(update={"max_grad_norm": 1e9}), seed=0)
    metrics = learner.update(batch, temperature=1.0, iteration=0)
    assert metrics["update/skipped_tokens"] == generated_tokens(dead)
    assert metrics["update/generated_tokens"] == generated_tokens(batch)
    for sequence in batch:
        (textbook_loss(plain, None, sequence, PLAIN, 1.0) / generated_tokens(batch)).backward()
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(model.get_parameter(name).grad, parameter.grad, rtol=1e-5, atol=1e-6)


def test_dead_sequences_still_feel_the_kl_term():
    dead = [dataclasses.replace(item, advantages=(0.0,) * len(item.ids)) for item in random_sequences(4)]
    metrics = Learner(tiny_model(0), tiny_model(1), LearnerConfig(), seed=0).update(dead, temperature=1.0, iteration=0)
    assert metrics["update/skipped_tokens"] == 0
    assert metrics["update/grad_norm"] > 0


def test_a_batch_of_dead_sequences_moves_nothing():
    dead = [dataclasses.replace(item, advantages=(0.0,) * len(item.ids)) for item in random_sequences(4)]
    model = tiny_model(0)
    learner = Learner(model, None, PLAIN, seed=0)
    learner.update(random_sequences(4), temperature=1.0, iteration=0)  # gives AdamW some momentum
    before = weights(model)
    metrics = learner.update(dead, temperature=1.0, iteration=1)
    assert same(before, weights(model))
    assert metrics["update/optimizer_steps"] == 0
    assert all(math.isfinite(value) for value in metrics.values())


def test_mismatch_is_measured_before_the_first_step_wherever_that_is():
    """The first minibatch has no signal, so the second one is the first that meets the weights that sampled."""
    sequences = random_sequences(8)
    (quiet, loud) = minibatches(sequences, 2, seed=0, iteration=0)
    batch = [
        dataclasses.replace(item, advantages=(0.0,) * len(item.ids)) if place in quiet else item
        for place, item in enumerate(sequences)
    ]
    model = tiny_model(0)
    batch = as_sampled(model, batch)
    learner = Learner(model, None, PLAIN.model_copy(update={"minibatches": 2}), seed=0)
    metrics = learner.update(batch, temperature=1.0, iteration=0)
    assert metrics["update/optimizer_steps"] == 1
    assert metrics["update/skipped_tokens"] == generated_tokens(sequences[index] for index in quiet)
    assert metrics["mismatch/ratio_max"] == pytest.approx(1.0, abs=1e-4)
    assert loud


def test_kl_is_zero_at_the_reference_and_pulls_back_to_it():
    model, reference = tiny_model(0), tiny_model(0)
    config = LearnerConfig(learning_rate=1e-3, kl_coefficient=1.0)
    learner = Learner(model, reference, config, seed=0)
    frozen = weights(reference)
    sequences = as_sampled(model, random_sequences(6))
    assert learner.update(sequences, temperature=1.0, iteration=0)["update/kl"] == pytest.approx(0.0, abs=1e-6)
    dead = [dataclasses.replace(item, advantages=(0.0,) * len(item.ids)) for item in sequences]
    kls = [learner.update(dead, temperature=1.0, iteration=step)["update/kl"] for step in range(1, 30)]
    assert kls[0] > 1e-6
    assert kls[-1] < 0.5 * max(kls)
    assert same(frozen, weights(reference))


def test_entropy_bonus_raises_entropy():
    model = tiny_model(0)
    config = LearnerConfig(learning_rate=3e-3, kl_coefficient=0.0, entropy_coefficient=1.0)
    learner = Learner(model, None, config, seed=0)
    dead = [dataclasses.replace(item, advantages=(0.0,) * len(item.ids)) for item in random_sequences(6)]
    values = [learner.update(dead, temperature=1.0, iteration=step)["update/entropy"] for step in range(8)]
    assert values[-1] > values[0] + 0.1


def test_a_gradient_that_is_not_finite_is_not_taken():
    model = tiny_model(0)
    learner = Learner(model, None, PLAIN, seed=0)
    before = weights(model)
    (sequence,) = random_sequences(1)
    huge = dataclasses.replace(sequence, advantages=tuple(3e38 if flag else 0.0 for flag in sequence.mask))
    metrics = learner.update([huge], temperature=1.0, iteration=0)
    assert metrics["update/nonfinite_steps"] == 1
    assert same(before, weights(model))


def test_gradient_checkpointing_changes_no_result():
    results = []
    for recompute in (False, True):
        model = tiny_model(0)
        if recompute:
            model.activation_checkpointing_enable()
        learner = Learner(model, None, PLAIN, seed=0)
        assert model.training == recompute
        learner.update(random_sequences(4), temperature=1.0, iteration=0)
        results.append(weights(model))
    for name in results[0]:
        # Two ways to the same gradient: AdamW's first step magnifies the rounding of the smallest ones.
        torch.testing.assert_close(results[0][name], results[1][name], rtol=0, atol=1e-5)


def test_bfloat16_keeps_float32_weights():
    model = tiny_model(0).to(torch.bfloat16)
    learner = Learner(model, None, PLAIN, seed=0, dtype="bfloat16")
    sequences = as_sampled(tiny_model(0), random_sequences(6))
    before = weights(model)
    metrics = learner.update(sequences, temperature=1.0, iteration=0)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert not same(before, weights(model))
    assert 0 < metrics["mismatch/logprob_gap_mean"] < 0.1  # the products really are less exact


def test_metrics_are_complete_and_finite():
    metrics = Learner(tiny_model(0), tiny_model(1), LearnerConfig(), seed=0).update(
        random_sequences(5), temperature=1.0, iteration=0
    )
    assert set(metrics) == {
        *(f"update/{name}" for name in ("loss", "policy_loss", "kl", "entropy", "ratio_mean", "grad_norm")),
        *(f"update/{name}" for name in ("clip_low_share", "clip_high_share", "optimizer_steps", "nonfinite_steps")),
        *(
            f"update/{name}"
            for name in ("tokens", "generated_tokens", "skipped_tokens", "padding_share", "shared_share")
        ),
        *(f"update/{name}" for name in ("learning_rate", "seconds", "tokens_per_second")),
        *(f"mismatch/{name}" for name in ("ratio_mean", "ratio_max", "capped_share", "logprob_gap_mean")),
        *(f"gradient_noise/{name}" for name in ("signal", "trace", "batch")),
    }
    assert all(type(value) is float and math.isfinite(value) for value in metrics.values())


def test_wrong_use_is_named():
    with pytest.raises(ConfigError, match="no reference model"):
        Learner(tiny_model(0), None, LearnerConfig(), seed=0)
    model = tiny_model(0)
    with pytest.raises(ConfigError, match="copy of its own"):
        Learner(model, model, LearnerConfig(), seed=0)
    with pytest.raises(DataQualityError, match="no generated token"):
        Learner(model, None, PLAIN, seed=0).update([], temperature=1.0, iteration=0)


def test_a_model_that_changes_its_logits_is_refused():
    torch.manual_seed(0)
    shape = {"vocab_size": 20, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    config = Gemma2Config(
        **shape, num_attention_heads=2, num_key_value_heads=1, head_dim=8, final_logit_softcapping=0.01
    )
    with pytest.raises(PolicyError, match="Gemma2ForCausalLM changes its logits"):
        TokenScorer(Gemma2ForCausalLM(config))


def test_saved_folder_is_a_pretrained_model(tmp_path, capfd):
    model = tiny_model(0)
    learner = Learner(model, None, PLAIN, seed=0)
    learner.update(random_sequences(4), temperature=1.0, iteration=0)
    learner.save(tmp_path)
    assert capfd.readouterr() == ("", "")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert same(weights(model), weights(loaded))


def test_a_model_of_weights_that_are_not_finite_is_named_so():
    model = tiny_model()
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[3, 5] = math.nan
    with pytest.raises(PolicyError, match=r"weights of LlamaForCausalLM give logits that are not finite"):
        Learner(model, None, PLAIN, seed=0)
