"""The training pass of Llama and Qwen2 models on a CPU: the same function as transformers', in less time.

Sequences stand end to end without padding, and every operation but attention runs over all their tokens at once. The
parameters are the model's own. In the last layer only the tokens that are asked for ask queries: nothing else of the
other tokens can reach the loss, except for their keys and values.

Other models, other devices, sharded parameters, bfloat16 and gradient checkpointing take transformers' own pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from roleagent.learning.packed_ops import KEPT, Block, Heads, Rotation, attention, gated_mlp, project, rms_norm
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

    def __call__(self, input_ids: Tensor, lengths: Sequence[int], places: Tensor) -> Tensor:
        """Return the last hidden states of chosen tokens, [n, width].

        Args:
            input_ids: int64 [B, L], padded on the right.
            lengths: tokens of each row, padding left out.
            places: int64 [n], flat indices in [B * L] of the tokens; none is padding.
        """
        width = input_ids.shape[1]
        counts = np.asarray(lengths, dtype=np.int64)
        starts = np.cumsum(counts) - counts
        positions = np.arange(int(counts.sum())) - np.repeat(starts, counts)
        real = torch.from_numpy(np.repeat(np.arange(len(counts)) * width, counts) + positions)
        asked, back = np.unique(places.numpy(), return_inverse=True)
        row, column = asked // width, asked % width
        return self._forward(
            input_ids.flatten()[real],
            positions,
            counts,
            torch.from_numpy(starts[row] + column),
            np.bincount(row, minlength=len(counts)),
        )[torch.from_numpy(back.reshape(-1))]

    def _forward(
        self,
        ids: Tensor,
        positions: NDArray[np.int64],
        counts: NDArray[np.int64],
        asked: Tensor,
        asking: NDArray[np.int64],
    ) -> Tensor:
        """Hidden states of the rows `asked`, of which each sequence has `asking`; both run sequence by sequence."""
        decoder, shape = self._decoder, self._shape
        every = self._heads(positions, positions, counts, counts)
        few = self._heads(positions[asked.numpy()], positions, asking, counts)
        x = decoder.embed_tokens(ids)
        for number, layer in enumerate(decoder.layers):
            last = number == len(decoder.layers) - 1
            own, mlp = layer.self_attn, layer.mlp
            normed = rms_norm(x, layer.input_layernorm.weight, shape.eps)
            if last:
                (q,) = _project(normed.index_select(0, asked), own.q_proj)
                k, v = _project(normed, own.k_proj, own.v_proj)
                x = x.index_select(0, asked)
            else:
                q, k, v = _project(normed, own.q_proj, own.k_proj, own.v_proj)
            x = torch.addmm(x, attention(q, k, v, few if last else every), own.o_proj.weight.t())
            normed = rms_norm(x, layer.post_attention_layernorm.weight, shape.eps)
            x = gated_mlp(x, normed, mlp.gate_proj.weight, mlp.up_proj.weight, mlp.down_proj.weight)
        return rms_norm(x, decoder.norm.weight, shape.eps)

    def _heads(
        self,
        query_positions: NDArray[np.int64],
        key_positions: NDArray[np.int64],
        queries: NDArray[np.int64],
        keys: NDArray[np.int64],
    ) -> Heads:
        """Rotations and blocks for queries and keys at these positions, so many of each sequence."""
        shape, size = self._shape, max(_BLOCK_ROWS // self._shape.group, 1)
        blocks = []
        first, begin = 0, 0
        for asking, seen in zip(queries.tolist(), keys.tolist(), strict=True):
            for start in range(first, first + asking, size):
                stop = min(start + size, first + asking)
                where = query_positions[start:stop]
                low, high = int(where[0]) + 1, int(where[-1]) + 1
                hidden = np.arange(low, high) > where[:, None]
                bias = np.where(hidden, -np.inf, 0.0).astype(np.float32).repeat(shape.group, axis=0)
                blocks.append(Block(start, stop, begin, begin + high, torch.from_numpy(bias)))
            first, begin = first + asking, begin + seen
        cells = sum((block.last - block.first) * (block.end - block.begin) for block in blocks) * shape.heads
        return Heads(
            kv_heads=shape.kv_heads,
            group=shape.group,
            head_dim=shape.head_dim,
            queries=self._rotation(query_positions, shape.head_dim**-0.5),
            keys=self._rotation(key_positions, 1.0),
            blocks=blocks,
            keep=torch.is_grad_enabled() and cells * shape.layers <= KEPT,
        )

    def _rotation(self, positions: NDArray[np.int64], scale: float) -> Rotation:
        rotary = self._decoder.rotary_emb
        angles = torch.from_numpy(positions).float().unsqueeze(1) * rotary.inv_freq.float()
        scale *= float(rotary.attention_scaling)
        return Rotation(*(part.mul_(scale).view(len(positions), 1, 1, -1) for part in (angles.cos(), angles.sin())))


def _project(x: Tensor, *layers: nn.Linear) -> tuple[Tensor, ...]:
    return project(x, [layer.weight for layer in layers], [layer.bias for layer in layers])
