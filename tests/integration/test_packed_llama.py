"""The packed pass and transformers' own: the same log-probs, values and gradients; who takes which."""

import dataclasses

import numpy as np
import pytest
import torch
from learner_case import random_sequences, tiny_model, with_values
from transformers import MistralConfig, MistralForCausalLM

from roleagent.config.models import LearnerConfig
from roleagent.learning import packed_llama
from roleagent.learning.learner import Learner
from roleagent.learning.packing import micro_batches, used_length
from roleagent.learning.scorer import TokenScorer


def passes(model, sequences, *, packed, size=1200, shared=False):
    """Scores, values and gradients of all micro batches."""
    torch.manual_seed(0)
    scorer = TokenScorer(model, value_head=True)
    torch.nn.init.normal_(scorer.value_head.weight, std=0.1)
    assert (scorer._packed is not None) is packed_llama.supports(model)
    if not packed:
        scorer._packed = None
    found = []
    for batch in micro_batches(sequences, size, shared=shared):
        logprobs, entropy, values = scorer(
            torch.from_numpy(batch.input_ids),
            torch.from_numpy(batch.positions),
            torch.from_numpy(batch.targets),
            0.8,
            value_positions=torch.from_numpy(batch.value_positions),
            lengths=batch.lengths,
        )
        ((logprobs * torch.from_numpy(batch.advantages)).mean() + values.square().mean()).backward()
        found += [logprobs.detach(), entropy.detach(), values.detach()]
    gradients = {name: parameter.grad.clone() for name, parameter in scorer.named_parameters()}
    scorer.zero_grad()
    return torch.cat(found), gradients


@pytest.mark.parametrize(("family", "tied"), [("llama", True), ("llama", False), ("qwen2", True)])
def test_both_passes_agree(family, tied, monkeypatch):
    monkeypatch.setattr(packed_llama, "_BLOCK_ROWS", 64)  # sequences of several blocks, the last one short
    model = tiny_model(family=family, tied=tied)
    if family == "qwen2":
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(parameter)
    sequences = with_values(random_sequences(9, longest=150))
    scores, gradients = passes(model, sequences, packed=True)
    expected_scores, expected = passes(model, sequences, packed=False)
    torch.testing.assert_close(scores, expected_scores, rtol=1e-5, atol=1e-5)
    assert gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        assert gradient.abs().max() > 0, name
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-5, atol=1e-5 * gradient.abs().max().item())


def alike(count):
    """Episodes that begin alike for a while, two of them to the end; advantages and values differ."""
    sequences = with_values(random_sequences(count, longest=150))
    rng = np.random.default_rng(4)
    for place in range(1, count):
        (before, own), ids = sequences[place - 1 : place + 1], list(sequences[place].ids)
        common = len(ids) if place == 2 else int(rng.integers(0, min(len(before.ids), len(ids))))
        common = min(common, len(before.ids))
        ids[:common] = before.ids[:common]
        sequences[place] = dataclasses.replace(own, ids=tuple(ids))
    return sequences


@pytest.mark.parametrize("blocks", [8, 256])
def test_what_sequences_begin_with_is_computed_once_for_all(blocks, monkeypatch):
    monkeypatch.setattr(packed_llama, "_BLOCK_ROWS", blocks)
    model, sequences = tiny_model(), alike(9)
    lengths = sum(map(used_length, sequences)) - len(sequences)
    (batch,) = micro_batches(sequences, 1200, shared=True)
    assert batch.computed < 0.8 * lengths
    order = {index: place for place, index in enumerate(batch.indices)}
    scores, gradients = passes(model, sequences, packed=True, shared=True)
    counts = [batch.counts, batch.counts, batch.value_counts]
    ends = np.cumsum([sum(count) for count in counts])[:-1].tolist()
    parts = [
        torch.split(part, list(count)) for part, count in zip(torch.tensor_split(scores, ends), counts, strict=True)
    ]
    total = sum(batch.counts)
    for index, sequence in enumerate(sequences):
        expected, _ = passes(model, [sequence], packed=False)
        found = torch.cat([part[order[index]] for part in parts])
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert total == sum(sum(sequence.mask) for sequence in sequences)
    _, expected = passes(model, sequences, packed=False, size=10**6)  # one micro batch too, so means are over the same
    for name, gradient in expected.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-5, atol=1e-5 * gradient.abs().max().item())


def test_probabilities_made_again_are_those_that_were_not_kept(monkeypatch):
    model, sequences = tiny_model(), with_values(random_sequences(6))
    kept = passes(model, sequences, packed=True)
    monkeypatch.setattr(packed_llama, "KEPT", 0)
    again = passes(model, sequences, packed=True)
    assert torch.equal(kept[0], again[0])
    assert all(torch.equal(kept[1][name], gradient) for name, gradient in again[1].items())


def test_other_models_take_their_own_pass():
    torch.manual_seed(0)
    shape = {"vocab_size": 37, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    model = MistralForCausalLM(
        MistralConfig(**shape, num_attention_heads=4, num_key_value_heads=2, sliding_window=None)
    )
    assert not packed_llama.supports(model)
    before = model.model.layers[0].mlp.up_proj.weight.detach().clone()
    learner = Learner(model, None, LearnerConfig(learning_rate=1e-2, kl_coefficient=0.0), seed=0)
    assert learner.update(random_sequences(4), temperature=1.0, iteration=0)["update/tokens"] > 0
    assert not torch.equal(model.model.layers[0].mlp.up_proj.weight, before)


def test_checkpointed_and_hooked_models_take_their_own_pass():
    model = tiny_model()
    assert packed_llama.supports(model)
    handle = model.model.layers[0].register_forward_hook(lambda *_: None)
    assert not packed_llama.supports(model)
    handle.remove()
    model.activation_checkpointing_enable()
    assert not packed_llama.supports(model)
    assert not packed_llama.supports(tiny_model().bfloat16())
