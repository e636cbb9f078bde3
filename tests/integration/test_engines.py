"""Engines against the model itself: cached, ragged, interleaved decoding gives the logits of a plain forward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from roleagent.errors import PolicyError
from roleagent.policy.engines.base import Engine, VerifyingEngine
from roleagent.policy.engines.llama_engine import LlamaEngine, unsupported
from roleagent.policy.engines.transformers_engine import TransformersEngine

VOCAB = 97
TOLERANCE = 1e-4


def _llama(**options: Any) -> LlamaForCausalLM:
    torch.manual_seed(1)
    sizes: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "initializer_range": 0.3,
        "tie_word_embeddings": True,
    }
    return _randomised(LlamaForCausalLM(LlamaConfig(**{**sizes, **options})))


def _qwen(**options: Any) -> Qwen2ForCausalLM:
    torch.manual_seed(2)
    sizes: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "initializer_range": 0.3,
        "tie_word_embeddings": False,
    }
    return _randomised(Qwen2ForCausalLM(Qwen2Config(**{**sizes, **options})))


def _randomised(model: Any) -> Any:
    """Norm weights and biases start at 1 and 0, which would hide a missing one."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return model.eval()


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
MODELS: dict[str, Callable[[], Any]] = {
    "llama": _llama,
    "llama-mha-untied": lambda: _llama(num_key_value_heads=4, tie_word_embeddings=False),
    "llama-head-dim": lambda: _llama(head_dim=16, num_key_value_heads=1),
    "llama3-rope": lambda: _llama(rope_parameters=LLAMA3),
    "yarn-rope": lambda: _llama(rope_parameters=YARN),
    "qwen2": _qwen,
    "qwen2-tied": lambda: _qwen(tie_word_embeddings=True),
}
ENGINES: dict[str, Callable[[Any], Engine]] = {"llama": LlamaEngine, "transformers": TransformersEngine}


@pytest.fixture(params=MODELS, name="model")
def _model(request: pytest.FixtureRequest) -> Any:
    return MODELS[request.param]()


@pytest.fixture(params=ENGINES, name="make")
def _make(request: pytest.FixtureRequest) -> Callable[[Any], Engine]:
    return ENGINES[request.param]


@torch.no_grad()
def _expected(model: Any, ids: list[int]) -> torch.Tensor:
    return model(torch.tensor([ids]), use_cache=False).logits[0, -1].float()


def _check(model: Any, logits: torch.Tensor, sequences: list[list[int]]) -> None:
    assert logits.dtype == torch.float32
    assert logits.shape == (len(sequences), VOCAB)
    for row, ids in zip(logits, sequences, strict=True):
        torch.testing.assert_close(row, _expected(model, ids), atol=TOLERANCE, rtol=0)


def _ids(rng: np.random.Generator, low: int, high: int) -> list[int]:
    return rng.integers(0, VOCAB, size=int(rng.integers(low, high))).tolist()


def test_random_schedule_equals_plain_forward(model: Any, make: Callable[[Any], Engine]) -> None:
    """Any order of opening, extending, stepping and closing, on any subset, in any order of slots."""
    rng = np.random.default_rng(3)
    engine = make(model)
    content: dict[int, list[int]] = {}
    for _ in range(40):
        if len(content) < 3 or rng.random() < 0.15:
            opened = engine.open(int(rng.integers(1, 5)), 900)
            prompts = [_ids(rng, 1, 40) for _ in opened]
            _check(model, engine.extend(opened, prompts), prompts)
            content.update(zip(opened, prompts, strict=True))
        chosen = rng.permutation(list(content))[: int(rng.integers(1, len(content) + 1))].tolist()
        action = rng.random()
        if action < 0.55:
            tokens = rng.integers(0, VOCAB, size=len(chosen)).tolist()
            logits = engine.step(chosen, torch.tensor(tokens) if rng.random() < 0.5 else tokens)
            for slot, token in zip(chosen, tokens, strict=True):
                content[slot].append(token)
        elif action < 0.85:
            more = [_ids(rng, 1, 30) for _ in chosen]
            logits = engine.extend(chosen, more)
            for slot, ids in zip(chosen, more, strict=True):
                content[slot] += ids
        else:
            engine.close(chosen)
            for slot in chosen:
                del content[slot]
            continue
        _check(model, logits, [content[slot] for slot in chosen])
        assert [engine.length(slot) for slot in chosen] == [len(content[slot]) for slot in chosen]


@torch.no_grad()
def _check_tails(model: Any, logits: torch.Tensor, sequences: list[list[int]], tails: list[int]) -> None:
    """Logits after every one of the last tokens, slot after slot."""
    assert (logits.dtype, logits.shape) == (torch.float32, (sum(tails), VOCAB))
    for found, ids, tail in zip(logits.split(tails), sequences, tails, strict=True):
        expected = model(torch.tensor([ids]), use_cache=False).logits[0, -tail:].float()
        torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)


def test_verifying_and_going_back_equals_plain_forward(model: Any) -> None:
    """Any order of verify, truncate, step and extend, on any subset: logits at each position of the tails."""
    rng = np.random.default_rng(9)
    engine = LlamaEngine(model)
    assert isinstance(engine, VerifyingEngine)
    assert not isinstance(TransformersEngine(model), VerifyingEngine)
    slots = engine.open(9, 900)
    content: dict[int, list[int]] = {slot: [] for slot in slots}
    for _ in range(30):
        chosen = rng.permutation(slots)[: int(rng.integers(1, 10))].tolist()
        action = rng.random()
        if action < 0.5:
            more = [_ids(rng, 1, 150 if rng.random() < 0.1 else 12) for _ in chosen]
            tails = [int(rng.integers(1, len(ids) + 1)) for ids in more]
            logits = engine.verify(chosen, more, tails)
        elif action < 0.7:
            kept = [int(rng.integers(0, len(content[slot]) + 1)) for slot in chosen]
            engine.truncate(chosen, kept)
            for slot, length in zip(chosen, kept, strict=True):
                del content[slot][length:]
                assert engine.length(slot) == length
            continue
        else:
            more, tails = [_ids(rng, 1, 2) for _ in chosen], [1] * len(chosen)
            logits = engine.step(chosen, [ids[0] for ids in more])
        for slot, ids in zip(chosen, more, strict=True):
            content[slot] += ids
        _check_tails(model, logits, [content[slot] for slot in chosen], tails)


@pytest.mark.parametrize("tail", [1, 87, 88, 89, 600, 700])
def test_tails_across_passes(tail: int) -> None:
    """A pass takes 512 tokens: a tail may begin in any pass of its slot, or exactly with one."""
    model, rng = _llama(), np.random.default_rng(10)
    engine = LlamaEngine(model)
    slots = engine.open(3, 1000)
    content = [_ids(rng, 5, 6), _ids(rng, 600 if tail < 600 else 700, 701), _ids(rng, 40, 41)]
    content[1] = content[1][: 600 if tail < 600 else 700]
    tails = [2, tail, 40]
    _check_tails(model, engine.verify(slots, content, tails), content, tails)


def test_equal_prompts_with_different_guesses() -> None:
    """Slots that read the same are computed once; another tail or another guess is another computation."""
    model, rng = _llama(), np.random.default_rng(11)
    engine = LlamaEngine(model)
    slots = engine.open(6, 100)
    prompt = _ids(rng, 10, 11)
    content = [[*prompt, *guess] for guess in ([1, 2], [1, 2], [1, 3], [1], [1, 2], [])]
    tails = [3, 3, 3, 2, 1, 1]
    _check_tails(model, engine.verify(slots, content, tails), content, tails)
    engine.truncate(slots, [10] * 6)
    after = [[*prompt, token] for token in range(6)]
    _check_tails(model, engine.step(slots, list(range(6))), after, [1] * 6)


def test_misuse_of_verify_is_refused() -> None:
    engine = LlamaEngine(_llama())
    slots = engine.open(2, 4)
    for tails in ([0, 1], [3, 1]):
        with pytest.raises(ValueError, match="a tail is at least one token and no longer than its slot's ids"):
            engine.verify(slots, [[1, 2], [1]], tails)
    engine.verify(slots, [[1, 2], [1]], [2, 1])
    with pytest.raises(ValueError, match="holds 1 tokens and cannot keep 2"):
        engine.truncate(slots, [2, 2])
    with pytest.raises(ValueError, match="opened for 4 tokens"):
        engine.verify(slots, [[1, 2, 3], [1]], [3, 1])


def test_shrinking_batch(make: Callable[[Any], Engine]) -> None:
    """Slots leave one by one, as episodes end their turns, and all come back with the next observation."""
    model, rng = _llama(), np.random.default_rng(4)
    engine = make(model)
    slots = engine.open(12, 200)
    content = [_ids(rng, 3, 9) for _ in slots]
    engine.extend(slots, content)
    content = [list(ids) for ids in content]
    live = list(range(12))
    while live:
        tokens = rng.integers(0, VOCAB, size=len(live)).tolist()
        logits = engine.step([slots[i] for i in live], tokens)
        for i, token in zip(live, tokens, strict=True):
            content[i].append(token)
        _check(model, logits, [content[i] for i in live])
        live.pop(int(rng.integers(len(live))))
    more = [_ids(rng, 1, 5) for _ in slots]
    logits = engine.extend(slots, more)
    _check(model, logits, [ids + new for ids, new in zip(content, more, strict=True)])


def test_batch_composition_does_not_matter(make: Callable[[Any], Engine]) -> None:
    model, rng = _qwen(), np.random.default_rng(5)
    engine = make(model)
    slots = engine.open(8, 100)
    prompts = [_ids(rng, 5, 30) for _ in slots]
    together = engine.extend(slots, prompts)
    stepped = engine.step(slots, [7] * 8)
    for index, prompt in enumerate(prompts):
        alone = engine.open(1, 100)
        torch.testing.assert_close(engine.extend(alone, [prompt])[0], together[index], atol=TOLERANCE, rtol=0)
        torch.testing.assert_close(engine.step(alone, [7])[0], stepped[index], atol=TOLERANCE, rtol=0)


def test_equal_prompts_then_different_continuations(make: Callable[[Any], Engine]) -> None:
    """A group's episodes share their prompt but must not share what follows."""
    model, rng = _llama(), np.random.default_rng(6)
    engine = make(model)
    slots = engine.open(6, 100)
    prompts = [_ids(rng, 10, 11)] * 4 + [_ids(rng, 4, 5)] * 2
    _check(model, engine.extend(slots, prompts), prompts)
    tokens = [1, 2, 3, 4, 5, 6]
    content = [[*prompt, token] for prompt, token in zip(prompts, tokens, strict=True)]
    _check(model, engine.step(slots, tokens), content)
    _check(model, engine.extend(slots, [[9]] * 6), [[*ids, 9] for ids in content])


def test_growth_beyond_one_block_and_long_prompts(make: Callable[[Any], Engine]) -> None:
    """Prompts longer than a pass of the prefill, and a cache that grows while it is in use."""
    model, rng = _llama(), np.random.default_rng(7)
    engine = make(model)
    slots = engine.open(3, 1000)
    content = [_ids(rng, 700, 701), _ids(rng, 2, 3), _ids(rng, 130, 131)]
    _check(model, engine.extend(slots, content), content)
    for token in range(4):
        content = [[*ids, token] for ids in content]
        _check(model, engine.step(slots, [token] * 3), content)


def test_update_and_snapshot(make: Callable[[Any], Engine]) -> None:
    """A snapshot keeps the old weights; after load_weights the engine has the new ones."""
    model = _llama()
    old = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    engine = make(model)
    frozen = engine.snapshot()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    engine.load_weights(model)
    prompt = [[5, 6, 7]]
    _check(model, engine.extend(engine.open(1, 10), prompt), prompt)
    first = _llama()
    first.load_state_dict(old)
    _check(first, frozen.extend(frozen.open(1, 10), prompt), prompt)
    engine.load_weights(old)
    _check(first, engine.extend(engine.open(1, 10), prompt), prompt)


def test_weights_of_a_file_and_of_another_model(make: Callable[[Any], Engine]) -> None:
    """A file holds tied weights once. What is not a state of the model is refused."""
    model, other = _llama(), _llama()
    with torch.no_grad():
        other.model.embed_tokens.weight.mul_(0.5)
    engine = make(model)
    state = {name: tensor.clone() for name, tensor in other.state_dict().items() if name != "lm_head.weight"}
    engine.load_weights(state)
    _check(other, engine.extend(engine.open(1, 10), [[5, 6, 7]]), [[5, 6, 7]])
    del state["model.layers.1.mlp.up_proj.weight"]
    with pytest.raises(PolicyError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        engine.load_weights(state)


def test_the_learners_mode_is_put_back(make: Callable[[Any], Engine]) -> None:
    model = _llama(attention_dropout=0.9).train()
    engine = make(model)
    logits = engine.extend(engine.open(1, 10), [[5, 6, 7]])
    assert model.training
    _check(model.eval(), logits, [[5, 6, 7]])


def test_limits(make: Callable[[Any], Engine]) -> None:
    engine = make(_llama())
    with pytest.raises(PolicyError, match="1025 tokens"):
        engine.open(1, 1025)
    slots = engine.open(2, 4)
    with pytest.raises(ValueError, match="at least one token"):
        engine.extend(slots, [[1], []])
    engine.extend(slots, [[1, 2], [1, 2, 3, 4]])
    with pytest.raises(ValueError, match="opened for 4 tokens"):
        engine.step(slots, [1, 1])
    assert engine.length(slots[0]) == 2


def test_bfloat16_is_close() -> None:
    """In bfloat16 the two engines differ by rounding only: the same token wins nearly always."""
    model = _llama().to(torch.bfloat16)
    rng = np.random.default_rng(8)
    prompts = [_ids(rng, 5, 30) for _ in range(16)]
    results = []
    for engine in (LlamaEngine(model), TransformersEngine(model)):
        slots = engine.open(16, 50)
        engine.extend(slots, prompts)
        results.append(engine.step(slots, [3] * 16).log_softmax(-1))
    assert (results[0] - results[1]).abs().mean() < 0.1


def test_unsupported_models_say_why() -> None:
    assert unsupported(_llama()) is None
    assert "activation" in (unsupported(_llama(hidden_act="gelu")) or "")
    assert "bias" in (unsupported(_llama(attention_bias=True)) or "")
    dynamic = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    assert "dynamic" in (unsupported(_llama(rope_parameters=dynamic)) or "")
    assert "sliding" in (unsupported(_qwen(use_sliding_window=True, sliding_window=8, max_window_layers=1)) or "")
