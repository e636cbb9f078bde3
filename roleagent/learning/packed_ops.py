"""Differentiable operations of the packed forward pass, with their backward passes written out.

Each does in a few passes over memory what autograd would do in many, on n tokens of several sequences end to end:

    project        y_i = x W_i^T + b_i          one x, several matrices; the gradients of x are summed in the product
    rms_norm       y = w x / sqrt(mean x^2 + eps)
    gated_mlp      y = r + (silu(x G^T) * x U^T) D^T
    attention      y = softmax(q k^T / sqrt(D) + causal) v, rotary positions included, in blocks of queries
    token_scores   log softmax(z / T)[target] and the entropy of softmax(z / T), the latter without gradient

Attention is made of matrix products over blocks of queries and the keys that they may see. On a CPU this is faster than
a fused kernel: the products run at the machine's rate, what lies above the diagonal is computed within a block only,
and the probabilities are kept for the backward pass as long as they are small (`KEPT`).

What lies between the matrices of the MLP is made and used in chunks of rows, forwards and again backwards: it stays
in the cache and costs no memory. The largest array, that of the logits, is there once: probabilities and then gradients
take its place, chunk by chunk.

Everything is float32 and deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd import Function

#: Attention probabilities kept for the backward pass in one forward pass, all layers together: 256 MiB in float32.
KEPT = 2**26

_CHUNK = 512  # rows of a chunk between the matrices of the MLP, and of logits


class Block(NamedTuple):
    """Some queries of one sequence, and the keys up to the last of them."""

    first: int  #: row of the first query, among the queries
    last: int  #: one after its last
    begin: int  #: row of the sequence's first key, among the keys as the sequences have them
    end: int  #: one after the last key that any of these queries may see
    bias: Tensor  #: [queries * group, w], for the last w keys: -inf where a query may not see the key, else 0


class Rotation(NamedTuple):
    """Cosine and sine of rotary positions, [n, 1, 1, D / 2]: element i of a head turns with element i + D / 2."""

    cos: Tensor
    sin: Tensor

    def __call__(self, source: Tensor, target: Tensor, *, back: bool = False) -> None:
        """Turn `source` [n, kv_heads, group, D] into `target` of that shape; `back` applies the transposed matrix."""
        (low, high), (to_low, to_high) = source.chunk(2, -1), target.chunk(2, -1)
        sign = -1 if back else 1
        torch.mul(low, self.cos, out=to_low).addcmul_(high, self.sin, value=-sign)
        torch.mul(high, self.cos, out=to_high).addcmul_(low, self.sin, value=sign)


class Heads(NamedTuple):
    """Which queries meet which keys, and how."""

    kv_heads: int
    group: int  #: query heads that share a key-value head
    head_dim: int
    queries: Rotation  #: with the scale of the scores in it
    keys: Rotation
    blocks: Sequence[Block]
    keep: bool  #: keep the probabilities for the backward pass
    spread: Tensor | None = None  #: row of each key, sequence by sequence; None: every key is one sequence's alone


def project(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None] | None = None) -> tuple[Tensor, ...]:
    """Apply several matrices [out_i, d] to the same rows [n, d]; return [n, out_i] of each."""
    biases = [None] * len(weights) if biases is None else biases
    return cast("tuple[Tensor, ...]", _Project.apply(x, *weights, *biases))  # type: ignore[no-untyped-call]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Divide rows [n, d] by their root mean square and scale them by `weight` [d]."""
    return cast("Tensor", _RmsNorm.apply(x, weight, eps))  # type: ignore[no-untyped-call]


def gated_mlp(residual: Tensor, x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """Return residual + (silu(x gate^T) * (x up^T)) down^T, [n, d]; gate and up are [m, d], down is [d, m]."""
    return cast("Tensor", _GatedMlp.apply(residual, x, gate, up, down))  # type: ignore[no-untyped-call]


def attention(q: Tensor, k: Tensor, v: Tensor, heads: Heads) -> Tensor:
    """Causal attention of q [n, kv_heads * group * D] over k and v [m, kv_heads * D]; returns the shape of q.

    A row of keys and values that several sequences begin with is spread over them, and its gradients are summed.
    """
    return cast("Tensor", _Attention.apply(q, k, v, heads))  # type: ignore[no-untyped-call]


def token_scores(
    logits: Tensor, targets: Tensor, temperature: float, rows: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Log-prob of each target and entropy of its row, [n] each, from logits [m, V]; the entropy has no gradient.

    The logits are used up: their memory holds the probabilities, then the gradient. `rows` [n] says which row predicts
    each target; without it there is one row a target, in order.
    """
    rows = torch.arange(len(targets), device=targets.device) if rows is None else rows
    return cast("tuple[Tensor, Tensor]", _TokenScores.apply(logits, targets, temperature, rows))  # type: ignore[no-untyped-call]


class _Project(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *matrices: Tensor | None) -> tuple[Tensor, ...]:
        count = len(matrices) // 2
        weights = cast("tuple[Tensor, ...]", matrices[:count])
        ctx.save_for_backward(x, *weights)
        return tuple(
            x @ weight.t() if bias is None else torch.addmm(bias, x, weight.t())
            for weight, bias in zip(weights, matrices[count:], strict=True)
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        needed = ctx.needs_input_grad[1:]
        to_x: Tensor | None = None
        to_weights: list[Tensor | None] = []
        to_biases: list[Tensor | None] = []
        for place, (gradient, weight) in enumerate(zip(gradients, weights, strict=True)):
            to_x = gradient @ weight if to_x is None else to_x.addmm_(gradient, weight)
            to_weights.append(gradient.t() @ x if needed[place] else None)
            to_biases.append(gradient.sum(0) if needed[len(weights) + place] else None)
        return to_x, *to_weights, *to_biases


class _RmsNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        scale: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        normed = x * scale
        ctx.save_for_backward(normed, scale, weight)
        return normed * weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        normed, scale, weight = ctx.saved_tensors
        product = gradient * normed
        to_weight = product.sum(0)
        along = (product @ weight).unsqueeze_(-1).div_(-normed.shape[-1])
        return (gradient * weight).addcmul_(normed, along).mul_(scale), to_weight, None


class _GatedMlp(Function):
    @staticmethod
    def forward(ctx: Any, residual: Tensor, x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
        gates, ups = x @ gate.t(), x @ up.t()
        ctx.save_for_backward(x, gates, ups, gate, up, down)
        result = torch.empty_like(residual)
        for rows in _chunks(len(x)):
            product = torch.sigmoid(gates[rows]).mul_(gates[rows]).mul_(ups[rows])
            torch.addmm(residual[rows], product, down.t(), out=result[rows])
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        x, gates, ups, gate, up, down = ctx.saved_tensors
        to_x = torch.empty_like(x)
        to_gate, to_up, to_down = torch.zeros_like(gate), torch.zeros_like(up), torch.zeros_like(down)
        for rows in _chunks(len(x)):
            opened = torch.sigmoid(gates[rows])
            passed = gates[rows] * opened
            # d silu(g) / dg = s + g s (1 - s)
            slope = torch.addcmul(passed, passed, opened, value=-1).add_(opened).mul_(ups[rows])
            to_down.addmm_(gradient[rows].t(), torch.mul(passed, ups[rows], out=opened))
            inner = gradient[rows] @ down
            slope.mul_(inner)
            inner.mul_(passed)
            torch.mm(slope, gate, out=to_x[rows]).addmm_(inner, up)
            to_gate.addmm_(slope.t(), x[rows])
            to_up.addmm_(inner.t(), x[rows])
        return gradient, to_x, to_gate, to_up, to_down


def _chunks(count: int) -> list[slice]:
    return [slice(start, min(start + _CHUNK, count)) for start in range(0, count, _CHUNK)]


class _Attention(Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, heads: Heads) -> Tensor:
        kv, group, dim = heads.kv_heads, heads.group, heads.head_dim
        # A query's heads of one group stand below each other, so that a block of queries is one matrix a group.
        turned_q = q.new_empty((kv, len(q), group, dim))
        heads.queries(q.view(-1, kv, group, dim), turned_q.transpose(0, 1))
        turned_k = k.new_empty((kv, len(k), dim))
        heads.keys(k.view(-1, kv, 1, dim), turned_k.transpose(0, 1).unsqueeze(2))
        values = v.view(-1, kv, dim).transpose(0, 1).contiguous()
        if heads.spread is not None:
            turned_k, values = turned_k.index_select(1, heads.spread), values.index_select(1, heads.spread)
        rows = turned_q.view(kv, -1, dim)
        result = torch.empty_like(rows)
        kept = []
        for block in heads.blocks:
            shares = _shares(rows, turned_k, block, group)
            torch.bmm(
                shares, values[:, block.begin : block.end], out=result[:, block.first * group : block.last * group]
            )
            if heads.keep:
                kept.append(shares)
        ctx.heads = heads
        ctx.save_for_backward(rows, turned_k, values, result, *kept)
        return result.view(kv, -1, group * dim).transpose(0, 1).reshape(len(q), -1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        heads: Heads = ctx.heads
        rows, keys, values, result, *kept = ctx.saved_tensors
        kv, group, dim = heads.kv_heads, heads.group, heads.head_dim
        count = len(gradient)
        incoming = gradient.view(count, kv, group * dim).transpose(0, 1).reshape(kv, count * group, dim)
        along = (incoming * result).sum(-1, keepdim=True)
        to_rows = torch.empty_like(rows)
        to_keys, to_values = torch.zeros_like(keys), torch.zeros_like(values)
        for place, block in enumerate(heads.blocks):
            here, seen = slice(block.first * group, block.last * group), slice(block.begin, block.end)
            shares = kept[place] if heads.keep else _shares(rows, keys, block, group)
            slope = torch.bmm(incoming[:, here], values[:, seen].transpose(1, 2))
            to_values[:, seen].baddbmm_(shares.transpose(1, 2), incoming[:, here])
            slope.sub_(along[:, here]).mul_(shares)
            torch.bmm(slope, keys[:, seen], out=to_rows[:, here])
            to_keys[:, seen].baddbmm_(slope.transpose(1, 2), rows[:, here])
        to_q = gradient.new_empty((count, kv, group, dim))
        heads.queries(to_rows.view(kv, count, group, dim).transpose(0, 1), to_q, back=True)
        if heads.spread is not None:
            to_keys, to_values = _gathered(to_keys, heads), _gathered(to_values, heads)
        to_k = gradient.new_empty((to_keys.shape[1], kv, 1, dim))
        heads.keys(to_keys.transpose(0, 1).unsqueeze(2), to_k, back=True)
        return to_q.flatten(1), to_k.flatten(1), to_values.transpose(0, 1).flatten(1), None


def _gathered(spread: Tensor, heads: Heads) -> Tensor:
    """Sum what the sequences' keys [kv, spread, D] got over the rows that they are of."""
    assert heads.spread is not None
    rows = spread.new_zeros((spread.shape[0], len(heads.keys.cos), spread.shape[2]))
    return rows.index_add_(1, heads.spread, spread)


def _shares(rows: Tensor, keys: Tensor, block: Block, group: int) -> Tensor:
    """Attention probabilities of a block, [kv, queries * group, keys]."""
    scores = torch.bmm(
        rows[:, block.first * group : block.last * group], keys[:, block.begin : block.end].transpose(1, 2)
    )
    scores[:, :, scores.shape[2] - block.bias.shape[1] :] += block.bias
    return torch.softmax(scores, -1)


class _TokenScores(Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, temperature: float, rows: Tensor) -> tuple[Tensor, Tensor]:
        # Outside of autograd, which would not let it be written to; it still counts the writing, so a backward pass
        # that needs the logits is refused.
        held = logits.detach()
        picked = held[rows, targets]
        highest, surprise, entropy = (held.new_empty(len(held)) for _ in range(3))
        for part in _chunks(len(held)):
            shifted = held[part]
            torch.amax(shifted, -1, out=highest[part])
            shifted.sub_(highest[part].unsqueeze(1))
            if temperature != 1.0:
                shifted.div_(temperature)
            probabilities = torch.softmax(shifted, -1)
            # The largest probability is 1 / sum exp z of the shifted logits, at least 1 / V: its logarithm is exact.
            torch.amax(probabilities, -1, out=surprise[part]).log_().neg_()
            torch.linalg.vecdot(probabilities, shifted, out=entropy[part]).neg_().add_(surprise[part])
            shifted.copy_(probabilities)
        logprobs = picked.sub_(highest[rows]).div_(temperature).sub_(surprise[rows])
        ctx.temperature = temperature
        ctx.save_for_backward(held, targets, rows)
        entropy = entropy[rows]
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
        probabilities, targets, rows = ctx.saved_tensors
        gradient = gradient / ctx.temperature
        pulled = gradient.new_zeros(len(probabilities)).index_add_(0, rows, gradient)
        result = probabilities.mul_(pulled.neg_().unsqueeze(1))  # in place: a second backward pass is refused
        result.view(-1).index_add_(0, rows * result.shape[1] + targets, gradient)
        return result, None, None, None
