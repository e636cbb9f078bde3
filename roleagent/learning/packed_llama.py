"""The training pass of Llama and Qwen2 models on a CPU: the same function as transformers', in less time.

Sequences stand end to end without padding, and every operation but attention runs over all their tokens at once. What
several of them begin with, as the episodes of a task do, stands there once: its hidden states are the same whatever
follows, and its gradients are the sums over all that follow. The parameters are the model's own. In the last layer only
the tokens that are asked for ask queries: nothing else of the other tokens can reach the loss, except for their keys
and values.

Other models, other devices, sharded parameters, bfloat16 and gradient checkpointing take transformers' own pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from roleagent.learning.packed_ops import KEPT, Block, Heads, Rotation, attention, gated_mlp, project, rms_norm
from roleagent.learning.prefix_tree import Tree, grow
from roleagent.policy.engines.llama_engine import unsupported
from roleagent.policy.engines.llama_weights import Shape

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from transformers import PreTrainedModel

_BLOCK_ROWS = 256  # query rows of a block, all heads of a group together


def supports(model: PreTrainedModel) -> bool:
    """Whether `PackedLlama` computes what the model does: plain layers, on the CPU, in float32, not checkpointed."""
    plain = (nn.Linear, nn.Embedding)
    return (
        unsupported(model) is None
        and model.dtype == torch.float32
        and not getattr(model, "is_activation_checkpointing", False)
        and all(type(module) in plain for module in model.modules() if isinstance(module, plain))
        and not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    )


class PackedLlama:
    """Hidden states of chosen tokens of several sequences.

    Args:
        model: one that `supports` accepts; its parameters are read anew in every pass.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._decoder: Any = model.base_model
        self._shape = Shape.of(model.config)

    @property
    def usable(self) -> bool:
        """Whether the parameters are whole here: sharded ones are put together by the modules' own hooks only."""
        return all(type(parameter.data) is Tensor for parameter in self._decoder.parameters())

    def __call__(self, input_ids: Tensor, lengths: Sequence[int], places: Tensor) -> tuple[Tensor, Tensor]:
        """Return last hidden states [m, width], and which of them is that of each chosen token, [n].

        Args:
            input_ids: int64 [B, L], padded on the right.
            lengths: tokens of each row, padding left out.
            places: int64 [n], flat indices in [B * L] of the tokens; none is padding.
        """
        tree = grow(input_ids.numpy(), lengths)
        asked, back = np.unique(tree.tokens[tuple(np.divmod(places.numpy(), input_ids.shape[1]))], return_inverse=True)
        hidden = self._forward(torch.from_numpy(tree.ids), tree, asked)
        return hidden, torch.from_numpy(back.reshape(-1))

    def _forward(self, ids: Tensor, tree: Tree, asked: NDArray[np.int64]) -> Tensor:
        """Hidden states of the tokens `asked`, which run in the order of the tree's."""
        decoder, shape = self._decoder, self._shape
        every = self._heads(tree, np.arange(len(tree.ids)))
        few, chosen = self._heads(tree, asked), torch.from_numpy(asked)
        x = decoder.embed_tokens(ids)
        for number, layer in enumerate(decoder.layers):
            last = number == len(decoder.layers) - 1
            own, mlp = layer.self_attn, layer.mlp
            normed = rms_norm(x, layer.input_layernorm.weight, shape.eps)
            if last:
                (q,) = _project(normed.index_select(0, chosen), own.q_proj)
                k, v = _project(normed, own.k_proj, own.v_proj)
                x = x.index_select(0, chosen)
            else:
                q, k, v = _project(normed, own.q_proj, own.k_proj, own.v_proj)
            x = torch.addmm(x, attention(q, k, v, few if last else every), own.o_proj.weight.t())
            normed = rms_norm(x, layer.post_attention_layernorm.weight, shape.eps)
            x = gated_mlp(x, normed, mlp.gate_proj.weight, mlp.up_proj.weight, mlp.down_proj.weight)
        return rms_norm(x, decoder.norm.weight, shape.eps)

    def _heads(self, tree: Tree, queries: NDArray[np.int64]) -> Heads:
        """Rotations and blocks for the tokens that ask, over the keys of all tokens."""
        shape, size = self._shape, max(_BLOCK_ROWS // self._shape.group, 1)
        blocks = []
        first, begin = 0, 0
        positions = tree.positions[queries]
        asking = np.bincount(tree.owners[queries], minlength=len(tree.lengths))
        for count, seen in zip(asking.tolist(), tree.lengths, strict=True):
            for start in range(first, first + count, size):
                stop = min(start + size, first + count)
                where = positions[start:stop]
                low, high = int(where[0]) + 1, int(where[-1]) + 1
                hidden = np.arange(low, high) > where[:, None]
                bias = np.where(hidden, -np.inf, 0.0).astype(np.float32).repeat(shape.group, axis=0)
                blocks.append(Block(start, stop, begin, begin + high, torch.from_numpy(bias)))
            first, begin = first + count, begin + seen
        cells = sum((block.last - block.first) * (block.end - block.begin) for block in blocks) * shape.heads
        return Heads(
            kv_heads=shape.kv_heads,
            group=shape.group,
            head_dim=shape.head_dim,
            queries=self._rotation(positions, shape.head_dim**-0.5),
            keys=self._rotation(tree.positions, 1.0),
            blocks=blocks,
            keep=torch.is_grad_enabled() and cells * shape.layers <= KEPT,
            spread=None if tree.spread is None else torch.from_numpy(tree.spread),
        )

    def _rotation(self, positions: NDArray[np.int64], scale: float) -> Rotation:
        rotary = self._decoder.rotary_emb
        angles = torch.from_numpy(positions).float().unsqueeze(1) * rotary.inv_freq.float()
        scale *= float(rotary.attention_scaling)
        return Rotation(*(part.mul_(scale).view(len(positions), 1, 1, -1) for part in (angles.cos(), angles.sin())))


def _project(x: Tensor, *layers: nn.Linear) -> tuple[Tensor, ...]:
    return project(x, [layer.weight for layer in layers], [layer.bias for layer in layers])
