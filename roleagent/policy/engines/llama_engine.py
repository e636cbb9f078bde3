"""A fast decoder on the CPU for Llama and Qwen2 models: the same function as transformers', in fewer operations.

Weights are folded once, when they are loaded (see `llama_weights`). A decoding step is then about 14 operations a
layer, and attention is two batched products over a contiguous block of the cache.

Simplified: weights are held twice (the model's own and the folded ones), and a matrix product's rounding depends
slightly on how many rows it has, so logits of different batches agree to about 1e-6 and not bit by bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from roleagent.errors import PolicyError
from roleagent.policy.engines.cache import SlotCache, causal_bias
from roleagent.policy.engines.llama_weights import Block, Shape, fold, head_dim
from roleagent.policy.engines.ragged import Runs, attend, plan
from roleagent.policy.model import context_length

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from transformers import PreTrainedModel

_SLACK = 1.15  # rows computed, relative to the slots asked for, before rows are moved
_PASS_TOKENS = 512  # most tokens of a pass over new tokens: its activations stay in the processor's cache
_ROPE_TYPES = ("default", "linear", "llama3", "yarn")  # those whose frequencies do not depend on the length


def unsupported(model: PreTrainedModel) -> str | None:
    """Why the engine cannot run a model; None when it can."""
    config = model.config
    if type(model).__name__ not in ("LlamaForCausalLM", "Qwen2ForCausalLM"):
        return f"its architecture is {type(model).__name__}, not Llama or Qwen2"
    if model.device.type != "cpu":
        return f"it is on {model.device.type}, not on the CPU"
    if model.dtype not in (torch.float32, torch.bfloat16):
        return f"its type is {model.dtype}, not float32 or bfloat16"
    if getattr(config, "quantization_config", None) is not None:
        return "it is quantized"
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act}, not silu"
    if getattr(config, "attention_bias", False) or getattr(config, "mlp_bias", False):
        return "it has biases outside of query, key and value"
    if any(kind != "full_attention" for kind in getattr(config, "layer_types", None) or ()):
        return "it has sliding-window layers"
    rope = (config.rope_parameters or {}).get("rope_type", "default")
    if rope not in _ROPE_TYPES:
        return f"its rotary positions are of type {rope}"
    if head_dim(config) % 2 or config.num_attention_heads % config.num_key_value_heads:
        return "its heads do not divide evenly"
    return None


class LlamaEngine:
    """See :class:`roleagent.policy.engines.base.Engine`. The engine has its own copy of the weights."""

    device = torch.device("cpu")

    def __init__(self, model: PreTrainedModel) -> None:
        config: Any = model.config
        self.vocab_size = int(config.vocab_size)
        self.max_context = context_length(config)
        self._shape = Shape.of(config)
        decoder: Any = model
        rotary = decoder.model.rotary_emb
        self._frequencies = rotary.inv_freq.detach().float().clone()
        self._rope_scale = float(rotary.attention_scaling)
        self._turns = torch.empty((0, self._shape.head_dim // 2), dtype=torch.complex64)
        self._weights = fold(model.state_dict(), self._shape)
        self._cache = SlotCache(self.max_context)

    def open(self, count: int, max_length: int) -> list[int]:
        """Reserve `count` empty slots, each for at most `max_length` tokens."""
        return self._cache.open(count, max_length)

    def close(self, slots: Sequence[int]) -> None:
        """Give slots back."""
        self._cache.close(slots)

    def length(self, slot: int) -> int:
        """Tokens in a slot."""
        return self._cache.length(slot)

    def load_weights(self, weights: nn.Module | Mapping[str, Tensor]) -> None:
        """Copy and fold the weights of a model or state dict of the same shape; open slots are dropped."""
        state = weights.state_dict() if isinstance(weights, nn.Module) else weights
        self._cache.clear()
        try:
            self._weights = fold(state, self._shape)
        except KeyError as error:
            raise PolicyError(f"the weights are not those of this model: {error} is in only one of them") from error

    def snapshot(self) -> LlamaEngine:
        """An engine without slots on the present weights; they are shared, since nothing ever writes to them."""
        twin = object.__new__(LlamaEngine)
        twin.__dict__.update(self.__dict__)
        twin._cache = SlotCache(self.max_context)
        return twin

    def extend(self, slots: Sequence[int], ids: Sequence[Sequence[int]]) -> Tensor:
        """Append ids[i] to slots[i]; return float32 logits [n, V] after the last token of each."""
        return self.verify(slots, ids, [1] * len(slots))

    @torch.inference_mode()
    def verify(self, slots: Sequence[int], ids: Sequence[Sequence[int]], tails: Sequence[int]) -> Tensor:
        """Append ids[i] to slots[i]; return float32 logits after each of its last tails[i] tokens, [sum(tails), V]."""
        if not all(len(row) for row in ids):
            raise ValueError("extend needs at least one token for each slot")
        if not all(1 <= tail <= len(row) for tail, row in zip(tails, ids, strict=True)):
            raise ValueError("a tail is at least one token and no longer than its slot's ids")
        return self._logits(self._extend(slots, ids, tails))

    def truncate(self, slots: Sequence[int], lengths: Sequence[int]) -> None:
        """Keep the first lengths[i] tokens of slots[i]."""
        self._cache.truncate(slots, lengths)

    def fork(self, slot: int, length: int) -> int:
        """Open another slot with the first `length` tokens of this one."""
        return self._cache.fork(slot, length)

    @torch.inference_mode()
    def step(self, slots: Sequence[int], token_ids: Sequence[int] | Tensor) -> Tensor:
        """Append one token to each slot; return float32 logits [n, V] after it."""
        rows, span = self._cache.arrange(slots, _SLACK)
        self._cache.advance(slots, rows, np.ones(len(rows), dtype=np.int64))
        lengths = self._cache.lengths(span)
        self._cache.reserve(int(lengths.max()) + 1)
        index = torch.from_numpy(rows)
        tokens = torch.zeros(span, dtype=torch.long)
        tokens[index] = torch.as_tensor(token_ids, dtype=torch.long)
        live = lengths[rows]
        columns = int(live.max()) + 1
        positions = torch.from_numpy(lengths)
        ragged = span > len(rows) or int(live.min()) + 1 < columns
        # Rows between those asked for compute leftovers, written behind their own length, where nobody reads them.
        bias = (
            causal_bias(positions, columns, self._weights.embedding.dtype).view(span, 1, 1, columns) if ragged else None
        )
        hidden = self._decode(tokens, positions, columns, bias)
        self._cache.commit(rows, 1)
        return self._logits(hidden[index])

    def _decode(self, tokens: Tensor, positions: Tensor, columns: int, bias: Tensor | None) -> Tensor:
        """One token for each of the first rows of the cache; hidden states [rows, width]."""
        shape, count = self._shape, len(tokens)
        pairs = count * shape.kv_heads  # (row, key-value head)
        turn = self._turn(positions).repeat_interleave(shape.kv_heads, 0).unsqueeze(1)
        place = torch.arange(pairs) * self._cache.capacity + positions.repeat_interleave(shape.kv_heads)
        x = self._weights.embedding[tokens]
        for number, block in enumerate(self._weights.blocks):
            keys, values = self._layer(number)
            qkv = self._qkv(x, block, turn)
            keys.view(-1, shape.head_dim).index_copy_(0, place, qkv[:, -2])
            values.view(-1, shape.head_dim).index_copy_(0, place, qkv[:, -1])
            scores = torch.bmm(qkv[:, : shape.group], keys[:pairs, :columns].transpose(1, 2))
            if bias is not None:
                scores.view(count, shape.kv_heads, shape.group, columns).add_(bias)
            attended = torch.bmm(torch.softmax(scores, -1), values[:pairs, :columns])
            x = torch.addmm(x, attended.view(count, shape.heads * shape.head_dim), block.out)
            x = self._mlp(x, block)
        return x

    def _extend(self, slots: Sequence[int], ids: Sequence[Sequence[int]], tails: Sequence[int]) -> Tensor:
        """Append ids in passes of bounded size; hidden states [sum(tails), width] of each slot's last tokens."""
        counts = np.fromiter((len(row) for row in ids), dtype=np.int64, count=len(ids))
        rows = self._cache.rows(slots)
        self._cache.advance(slots, rows, counts)
        wanted = np.asarray(tails, dtype=np.int64)
        hidden = torch.empty((int(wanted.sum()), self._shape.width), dtype=self._weights.embedding.dtype)
        place = np.cumsum(wanted) - wanted
        order = np.argsort(rows)
        low = 0
        while low < len(order):
            sizes = np.cumsum(counts[order[low:]])
            high = low + max(1, int(np.searchsorted(sizes, _PASS_TOKENS, side="right")))
            part = order[low:high]
            for begin in range(0, int(counts[part].max()), _PASS_TOKENS):
                pieces = [ids[index][begin : begin + _PASS_TOKENS] for index in part]
                added = np.fromiter((len(piece) for piece in pieces), dtype=np.int64, count=len(pieces))
                # How many of the piece's tokens belong to the tail, and where in it they begin.
                skipped = np.maximum(counts[part] - wanted[part] - begin, 0)
                states = self._pass(rows[part], pieces, added, np.maximum(added - skipped, 0))
                self._cache.commit(rows[part], added)
                done = 0
                for index, size, start in zip(part, added, skipped, strict=True):
                    if size > start:
                        target = place[index] + begin + start - (counts[index] - wanted[index])
                        hidden[target : target + size - start] = states[done : done + size - start]
                        done += size - start
            low = high
        return hidden

    def _pass(
        self,
        rows: NDArray[np.int64],
        ids: list[Sequence[int]],
        added: NDArray[np.int64],
        tails: NDArray[np.int64],
    ) -> Tensor:
        """One pass over ragged tokens, packed row after row; hidden states of the last tails[i] tokens of each.

        What only the last layer's outputs need is computed for the tails alone.
        """
        shape = self._shape
        before = self._cache.lengths_of(rows)
        begin = np.cumsum(added) - added
        total = int(added.sum())
        row = np.repeat(np.arange(len(rows)), added)  # of each token
        positions = torch.from_numpy(before[row] + np.arange(total) - begin[row])
        turn = self._turn(positions).repeat_interleave(shape.kv_heads, 0).unsqueeze(1)
        pair = torch.from_numpy(rows[row]).unsqueeze(1) * shape.kv_heads + torch.arange(shape.kv_heads)
        place = (pair * self._cache.capacity + positions.unsqueeze(1)).flatten()
        dtype = self._weights.embedding.dtype
        blocks = plan(Runs(rows, begin, before, added), shape.kv_heads, shape.group, dtype)
        ends, end_blocks, tokens = None, blocks, total
        if int(tails.sum()) < total:
            some = tails > 0
            skipped = (added - tails)[some]
            runs = Runs(rows[some], begin[some] + skipped, before[some] + skipped, tails[some])
            ends = torch.from_numpy(np.flatnonzero(np.arange(total) - begin[row] >= (added - tails)[row]))
            end_blocks, tokens = plan(runs, shape.kv_heads, shape.group, dtype), len(ends)
        x = self._weights.embedding[torch.tensor([token for tokens in ids for token in tokens], dtype=torch.long)]
        for number, block in enumerate(self._weights.blocks):
            keys, values = self._layer(number)
            qkv = self._qkv(x, block, turn)
            keys.view(-1, shape.head_dim).index_copy_(0, place, qkv[:, -2])
            values.view(-1, shape.head_dim).index_copy_(0, place, qkv[:, -1])
            last = number == shape.layers - 1
            if last and ends is not None:
                x = x[ends]
                if not tokens:
                    return x
            attended = attend(qkv, keys, values, end_blocks if last else blocks, tokens if last else total)
            x = torch.addmm(x, attended, block.out)
            x = self._mlp(x, block)
        return x

    def _qkv(self, x: Tensor, block: Block, turn: Tensor) -> Tensor:
        """Rotated queries and keys, and values: [n * kv_heads, group + 2, head_dim], the last two are key and value."""
        shape = self._shape
        normed = F.rms_norm(x, (shape.width,), None, shape.eps)
        qkv = F.linear(normed, block.qkv, block.qkv_bias).view(-1, shape.group + 2, shape.head_dim)
        rotated = qkv[:, :-1]
        pairs = (len(qkv), shape.group + 1, -1, 2)
        if rotated.dtype == torch.float32:
            torch.view_as_complex(rotated.view(*pairs)).mul_(turn)
        else:
            product = torch.view_as_complex(rotated.float().view(*pairs)).mul_(turn)
            rotated.copy_(torch.view_as_real(product).flatten(2))
        return qkv

    def _mlp(self, x: Tensor, block: Block) -> Tensor:
        gate, up = F.linear(F.rms_norm(x, (self._shape.width,), None, self._shape.eps), block.gate_up).chunk(2, -1)
        return torch.addmm(x, F.silu(gate).mul_(up), block.down)

    def _logits(self, hidden: Tensor) -> Tensor:
        normed = F.rms_norm(hidden, (self._shape.width,), None, self._shape.eps)
        return F.linear(normed, self._weights.head).float()

    def _layer(self, number: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer, [rows * kv_heads, capacity, head_dim]."""
        shape = self._shape
        layer = self._cache.layer(number, shape.kv_heads, shape.head_dim, shape.head_dim, self._weights.embedding)
        return layer.keys.flatten(0, 1), layer.values.flatten(0, 1)

    def _turn(self, positions: Tensor) -> Tensor:
        """Rotation of each position as complex numbers, [n, head_dim / 2]."""
        needed = self._cache.capacity
        if len(self._turns) < needed:
            angles = torch.outer(torch.arange(needed, dtype=torch.float32), self._frequencies)
            self._turns = torch.polar(torch.full_like(angles, self._rope_scale), angles)
        return self._turns[positions]
