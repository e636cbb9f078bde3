"""The small policy: whole words and tags as single ordinary tokens, and a model of the sizes asked for."""

from __future__ import annotations

import pytest
import torch

from roleagent.errors import PolicyError
from roleagent.policy.small import JSON_KEYS, build_small_model, build_small_tokenizer
from roleagent.policy.tokens import PolicyTokenizer
from roleagent.policy.turns import TAGS, render_turn

TEXTS = [
    render_turn("the mug is in the drawer", "go to drawer 12", ["The drawer 12 is closed."]),
    '{"failure_type": "wrong object", "root_cause": "it took the plate.", "critical_step": 3}',
] * 30


def _pieces(text: str) -> list[str]:
    tokenizer = PolicyTokenizer(build_small_tokenizer(TEXTS, 900))
    return [tokenizer.token_text(token) for token in tokenizer.encode_text(text)]


def test_pieces_of_a_turn() -> None:
    assert _pieces("<think>the mug</think><action>go to drawer 12</action><predict>The drawer.</predict>") == [
        *("<think>", "the", " mug", "</think>", "<action>", "go", " to", " drawer", " 12", "</action>"),
        *("<predict>", "The", " drawer", ".", "</predict>"),
    ]


def test_pieces_of_a_diagnosis() -> None:
    assert _pieces('{"failure_type": "wrong object", "critical_step": 3}') == [
        *("{", '"failure_type":', ' "', "wrong", " object", '",', ' "critical_step":', " 3", "}")
    ]


def test_tags_and_keys_are_single_ordinary_tokens() -> None:
    tokenizer = PolicyTokenizer(build_small_tokenizer(["nothing of them here"], 900))
    for piece in (*TAGS, *(f'"{key}":' for key in JSON_KEYS)):
        ids = tokenizer.encode_text(piece)
        assert len(ids) == 1
        assert not tokenizer.is_control(ids[0])
        assert tokenizer.decode(ids) == piece


def test_glue_is_one_token_a_role() -> None:
    tokenizer = PolicyTokenizer(build_small_tokenizer(TEXTS, 900))
    assert len(tokenizer.opening("mug", "mug")) == len(tokenizer.encode_text("mug")) * 2 + 3
    assert len(tokenizer.next_user("mug", ended=True)) == len(tokenizer.encode_text("mug")) + 2


def test_too_small_a_vocabulary_is_refused() -> None:
    with pytest.raises(PolicyError, match="vocab_size 280 is too small"):
        build_small_tokenizer(TEXTS, 280)


def test_model_sizes_and_seed() -> None:
    model = build_small_model(300, width=32, layers=2, heads=4, kv_heads=1, intermediate=48, max_context=64)
    attention, mlp = 32 * 32 * 2 + 32 * 8 * 2, 3 * 32 * 48
    assert sum(weight.numel() for weight in model.parameters()) == 300 * 32 + 2 * (attention + mlp + 64) + 32
    assert model.lm_head.weight is model.model.embed_tokens.weight
    again = build_small_model(300, width=32, layers=2, heads=4, kv_heads=1, intermediate=48, max_context=64)
    other = build_small_model(300, width=32, layers=2, heads=4, kv_heads=1, intermediate=48, max_context=64, seed=1)
    assert torch.equal(model.lm_head.weight, again.lm_head.weight)
    assert not torch.equal(model.lm_head.weight, other.lm_head.weight)


def test_the_seed_of_the_caller_is_left_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    build_small_model(50, width=16, layers=1)
    assert torch.equal(torch.rand(1), expected)


def test_heads_must_fit() -> None:
    with pytest.raises(PolicyError, match="do not fit"):
        build_small_model(50, width=30)
