"""The weights of a Llama or Qwen2 model, folded for fast decoding.

The norms' weights and the attention scale are folded into the matrices that follow them; query, key and value become
one matrix, gate and up another; the rows of queries and keys are put in an order in which rotary positions are one
complex product.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Block:
    """Weights of one layer, as [in, out] or, for `F.linear`, [out, in]."""

    qkv: Tensor  #: [kv_heads * (group + 2) * head_dim, width]
    qkv_bias: Tensor | None
    out: Tensor  #: [heads * head_dim, width]
    gate_up: Tensor  #: [2 * intermediate, width]
    down: Tensor  #: [intermediate, width]


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the model."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    width: int
    eps: float

    @classmethod
    def of(cls, config: Any) -> Shape:
        """Read the sizes from a model's configuration."""
        return cls(
            layers=config.num_hidden_layers,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_dim=head_dim(config),
            width=config.hidden_size,
            eps=config.rms_norm_eps,
        )

    @property
    def group(self) -> int:
        """Query heads that share a key-value head."""
        return self.heads // self.kv_heads


@dataclass(frozen=True, slots=True)
class Weights:
    """Everything that a forward pass reads. Never written, so snapshots share it."""

    embedding: Tensor  #: [V, width]
    blocks: tuple[Block, ...]
    head: Tensor  #: [V, width]


def fold(state: Mapping[str, Tensor], shape: Shape) -> Weights:
    """Build the folded weights, computed in float32 and rounded once."""
    embedding = state["model.embed_tokens.weight"].detach()
    dtype = embedding.dtype
    blocks = []
    for number in range(shape.layers):
        prefix = f"model.layers.{number}."

        def read(name: str, prefix: str = prefix) -> Tensor:
            return state[prefix + name].detach().float()

        attention_norm, mlp_norm = read("input_layernorm.weight"), read("post_attention_layernorm.weight")
        qkv = _fuse_qkv([read(f"self_attn.{kind}_proj.weight") for kind in "qkv"], shape)
        bias = None
        if prefix + "self_attn.q_proj.bias" in state:
            bias = _fuse_qkv([read(f"self_attn.{kind}_proj.bias").unsqueeze(1) for kind in "qkv"], shape).squeeze(1)
        gate_up = torch.cat([read("mlp.gate_proj.weight"), read("mlp.up_proj.weight")]) * mlp_norm
        blocks.append(
            Block(
                qkv=(qkv * attention_norm).to(dtype),
                qkv_bias=None if bias is None else bias.to(dtype),
                out=read("self_attn.o_proj.weight").t().contiguous().to(dtype),
                gate_up=gate_up.to(dtype),
                down=read("mlp.down_proj.weight").t().contiguous().to(dtype),
            )
        )
    head = state.get("lm_head.weight", embedding).detach().float() * state["model.norm.weight"].detach().float()
    return Weights(embedding.clone(), tuple(blocks), head.to(dtype))


def _fuse_qkv(matrices: list[Tensor], shape: Shape) -> Tensor:
    """Rows for each key-value head: its queries (scaled), its key, its value.

    The matrices of query, key and value are [heads * head_dim, columns].

    Rotary positions pair element i of a head with element i + head_dim / 2; the pairs are put side by side. Queries and
    keys are permuted alike, so their products stay the same.
    """
    q, k, v = matrices
    columns = q.shape[1]

    def by_head(rows: Tensor, per_kv: int, paired: bool) -> Tensor:
        heads = rows.view(shape.kv_heads, per_kv, shape.head_dim, columns)
        if paired:
            halves = heads.view(shape.kv_heads, per_kv, 2, -1, columns)
            heads = halves.transpose(2, 3).flatten(2, 3)
        return heads

    parts = [by_head(q * shape.head_dim**-0.5, shape.group, True), by_head(k, 1, True), by_head(v, 1, False)]
    return torch.cat(parts, dim=1).flatten(0, 2).contiguous()


def head_dim(config: Any) -> int:
    """Width of one head; older configurations leave it to be computed."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
