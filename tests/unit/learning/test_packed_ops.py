"""The written-out backward passes against numerical derivatives; attention against a loop over queries."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from roleagent.learning import packed_ops
from roleagent.learning.packed_ops import (
    Block,
    Heads,
    Rotation,
    attention,
    gated_mlp,
    project,
    rms_norm,
    token_scores,
)

KV_HEADS, GROUP, DIM = 2, 3, 4


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def rotation(positions, scale):
    angles = torch.tensor(positions, dtype=torch.float64).unsqueeze(1) * torch.tensor([1.0, 0.3], dtype=torch.float64)
    shape = (len(positions), 1, 1, DIM // 2)
    return Rotation((angles.cos() * scale).view(shape), (angles.sin() * scale).view(shape))


def block(first, positions, begin):
    """Queries at these positions of a sequence whose keys begin at a row."""
    low, high = positions[0] + 1, positions[-1] + 1
    hidden = np.arange(low, high) > np.array(positions)[:, None]
    bias = torch.from_numpy(np.where(hidden, -np.inf, 0.0)).repeat_interleave(GROUP, 0)
    return Block(first, first + len(positions), begin, begin + high, bias)


def two_sequences(keep=True):
    """Five tokens that all ask, in blocks of three and two; three tokens of which the first and the last ask."""
    every, few = [0, 1, 2, 3, 4], [0, 2]
    blocks = [block(0, every[:3], 0), block(3, every[3:], 0), block(5, few, 5)]
    queries, keys = rotation(every + few, DIM**-0.5), rotation([*every, 0, 1, 2], 1.0)
    return Heads(KV_HEADS, GROUP, DIM, queries, keys, blocks, keep)


def turned(vector, position):
    """Rotary positions of one head, written out."""
    result = vector.clone()
    for pair, rate in enumerate((1.0, 0.3)):
        low, high, angle = vector[pair], vector[pair + DIM // 2], position * rate
        result[pair] = low * math.cos(angle) - high * math.sin(angle)
        result[pair + DIM // 2] = high * math.cos(angle) + low * math.sin(angle)
    return result


def test_attention_is_that_of_each_query_alone():
    torch.manual_seed(0)
    q, k, v = (random(rows, width).detach() for rows, width in ((7, 24), (8, 8), (8, 8)))
    found = attention(q, k, v, two_sequences()).view(7, KV_HEADS * GROUP, DIM)
    asking = [(row, position, range(position + 1)) for row, position in enumerate(range(5))]
    asking += [(5, 0, range(5, 6)), (6, 2, range(5, 8))]
    for row, position, keys in asking:
        for head in range(KV_HEADS * GROUP):
            query = turned(q.view(7, -1, DIM)[row, head], position)
            seen = [turned(k.view(8, KV_HEADS, DIM)[key, head // GROUP], key - keys[0]) for key in keys]
            shares = torch.softmax(torch.stack([query @ key for key in seen]) / math.sqrt(DIM), 0)
            expected = shares @ v.view(8, KV_HEADS, DIM)[list(keys), head // GROUP]
            torch.testing.assert_close(found[row, head], expected)


@pytest.mark.parametrize("keep", [True, False])
def test_gradient_of_attention(keep):
    torch.manual_seed(1)
    heads = two_sequences(keep)
    assert gradcheck(lambda q, k, v: attention(q, k, v, heads), (random(7, 24), random(8, 8), random(8, 8)))


def shared_beginning():
    """Tokens 0 to 4 are a sequence; another one has the first two of them, and then tokens 5 and 6."""
    spread = torch.tensor([0, 1, 2, 3, 4, 0, 1, 5, 6])
    blocks = [block(0, [0, 1, 2, 3, 4], 0), block(5, [2, 3], 5)]
    positions = [0, 1, 2, 3, 4, 2, 3]
    queries, keys = rotation(positions, DIM**-0.5), rotation(positions, 1.0)
    return Heads(KV_HEADS, GROUP, DIM, queries, keys, blocks, True, spread)


def test_attention_over_a_shared_beginning_is_that_of_its_copies():
    torch.manual_seed(5)
    rows = [0, 1, 2, 3, 4, 0, 1, 5, 6]
    positions = [0, 1, 2, 3, 4, 0, 1, 2, 3]
    copies = Heads(
        KV_HEADS,
        GROUP,
        DIM,
        rotation(positions, DIM**-0.5),
        rotation(positions, 1.0),
        [block(0, [0, 1, 2, 3, 4], 0), block(5, [0, 1, 2, 3], 5)],
        keep=True,
    )
    inputs = random(7, 24), random(7, 8), random(7, 8)
    shared = attention(*inputs, shared_beginning())
    apart = attention(*(x[rows] for x in inputs), copies)
    torch.testing.assert_close(shared, apart[[0, 1, 2, 3, 4, 7, 8]])
    torch.testing.assert_close(shared[:2], apart[5:7])


def test_gradient_of_attention_over_a_shared_beginning():
    torch.manual_seed(6)
    heads = shared_beginning()
    assert gradcheck(lambda q, k, v: attention(q, k, v, heads), (random(7, 24), random(7, 8), random(7, 8)))


def test_gradient_of_projections():
    torch.manual_seed(2)
    bias = random(3)
    assert gradcheck(lambda x, a, b, c: project(x, [a, b], [c, None]), (random(5, 4), random(3, 4), random(2, 4), bias))


def test_gradients_of_norm_and_mlp(monkeypatch):
    torch.manual_seed(3)
    monkeypatch.setattr(packed_ops, "_CHUNK", 2)  # three chunks, the last one short
    assert gradcheck(lambda x, w: rms_norm(x, w, 0.1), (random(5, 4), random(4)))
    assert gradcheck(gated_mlp, (random(5, 4), random(5, 4), random(3, 4), random(3, 4), random(4, 3)))


def test_values_of_norm_and_mlp():
    x, weight = torch.tensor([[3.0, 4.0]]), torch.tensor([1.0, 2.0])
    # mean square 12.5; 12.5 + 3.5 = 16
    torch.testing.assert_close(rms_norm(x, weight, 3.5), torch.tensor([[0.75, 2.0]]))
    # Gate ln 3, opened to 3/4; times 2, times 4, on top of 5.
    x, gate, up, down = (torch.tensor([[number]]) for number in (1.0, math.log(3), 2.0, 4.0))
    found = gated_mlp(torch.tensor([[5.0]]), x, gate, up, down)
    torch.testing.assert_close(found, torch.tensor([[5 + 6 * math.log(3)]]))


def score(logits: Tensor, targets: Tensor, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Score a copy: the logits of a call are used up."""
    return token_scores(logits.clone(), targets, 0.7, rows)


def slopes(logits: Tensor, targets: Tensor, rows: Tensor | None = None, step: float = 1e-6) -> Tensor:
    """Numerical derivative of each log-prob by each logit, [n, m * V]."""
    columns = []
    for place in range(logits.numel()):
        moved = torch.zeros(logits.numel(), dtype=logits.dtype)
        moved[place] = step
        ahead, behind = (score(logits.detach() + sign * moved.view_as(logits), targets, rows)[0] for sign in (1, -1))
        columns.append((ahead - behind) / (2 * step))
    return torch.stack(columns, 1)


@pytest.mark.parametrize(
    ("targets", "rows"), [([0, 6, 3], None), ([0, 6, 3, 3, 1], [2, 0, 2, 2, 0])], ids=["a row a target", "shared rows"]
)
def test_gradient_of_scores(targets: list[int], rows: list[int] | None):
    torch.manual_seed(4)
    logits, wanted = random(3, 7), torch.tensor(targets)
    places = None if rows is None else torch.tensor(rows)
    expected = slopes(logits, wanted, places)
    for number, line in enumerate(expected):
        (found,) = torch.autograd.grad(score(logits, wanted, places)[0][number], logits)
        torch.testing.assert_close(found.flatten(), line, rtol=1e-6, atol=1e-8)


def test_a_row_that_predicts_several_targets():
    torch.manual_seed(7)
    logits, targets, rows = random(3, 7), torch.tensor([0, 6, 3, 3, 1]), torch.tensor([2, 0, 2, 2, 0])
    for one, other in zip(score(logits, targets, rows), score(logits[rows], targets), strict=True):
        torch.testing.assert_close(one, other)


def test_scores_of_more_rows_than_a_chunk_are_those_of_the_textbook():
    torch.manual_seed(8)
    logits, targets = torch.randn(1100, 5, requires_grad=True), torch.randint(5, (1100,))
    logprobs, entropy = score(logits, targets)
    plain = torch.log_softmax(logits / 0.7, -1)
    torch.testing.assert_close(logprobs, plain.gather(1, targets.unsqueeze(1)).squeeze(1))
    torch.testing.assert_close(entropy, -(plain.exp() * plain).sum(-1))
    weights = torch.randn(1100)
    (found,) = torch.autograd.grad(logprobs @ weights, logits)
    (expected,) = torch.autograd.grad(plain.gather(1, targets.unsqueeze(1)).squeeze(1) @ weights, logits)
    torch.testing.assert_close(found, expected)


def test_what_has_been_used_up_is_refused_and_not_wrong():
    logits = torch.randn(2, 3, requires_grad=True)
    targets = torch.tensor([0, 1])
    squashed = torch.tanh(logits)  # its backward pass needs what it gave
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        token_scores(squashed, targets, 1.0)[0].sum().backward()
    total = score(logits, targets)[0].sum()
    total.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


def test_scores_of_extreme_logits():
    logits = torch.tensor([[0.0, 200.0, 0.0], [1e4, 1e4, -1e4]])
    logprobs, entropy = token_scores(logits, torch.tensor([0, 1]), 1.0)
    torch.testing.assert_close(logprobs, torch.tensor([-200.0, -math.log(2)]))
    torch.testing.assert_close(entropy, torch.tensor([0.0, math.log(2)]), rtol=0, atol=2e-3)
