"""Ragged attention against plain attention in float64, one query at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from roleagent.policy.engines import ragged
from roleagent.policy.engines.ragged import Runs, attend, plan

SIZE = 4  # of a head


def runs_of(row: list[int], position: list[int], count: list[int], token: list[int] | None = None) -> Runs:
    """Runs that are packed one after the other, unless their places are given."""
    begin = (np.cumsum(count) - count).tolist() if token is None else token
    return Runs(*(np.array(values, dtype=np.int64) for values in (row, begin, position, count)))


def random_runs(rng: np.random.Generator) -> tuple[Runs, int]:
    """Runs with gaps between rows and between their packed tokens, and the number of packed tokens."""
    total = int(rng.integers(1, 14))
    row = np.sort(rng.permutation(total + int(rng.integers(0, 6)))[:total])
    long = rng.random(total) < 0.2
    count = np.where(long, rng.integers(90, 300, total), rng.integers(1, 9, total))
    position = np.where(rng.random(total) < 0.3, 0, rng.integers(0, 200, total))
    gaps = rng.integers(0, 3, total)
    token = np.cumsum(count + gaps) - count
    return Runs(row, token, position, count), int(token[-1] + count[-1] + 1)


def plain(qkv: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, runs: Runs, kv_heads: int) -> torch.Tensor:
    """Every query attends to the row's columns up to its own position."""
    group = qkv.shape[1] - 2
    results = []
    for row, token, position, count in zip(runs.row, runs.token, runs.position, runs.count, strict=True):
        for offset in range(count):
            heads = []
            for head in range(kv_heads):
                pair, seen = row * kv_heads + head, position + offset + 1
                scores = qkv[(token + offset) * kv_heads + head, :group] @ keys[pair, :seen].T
                heads.append(torch.softmax(scores, -1) @ values[pair, :seen])
            results.append(torch.cat(heads).flatten())
    return torch.stack(results)


def check(runs: Runs, tokens: int, kv_heads: int, group: int, seed: int) -> list[ragged.Block]:
    random = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=random)

    capacity = int((runs.position + runs.count).max()) + seed % 3
    rows = int(runs.row.max()) + 1 + seed % 2
    qkv = draw(tokens * kv_heads, group + 2, SIZE)
    keys, values = draw(rows * kv_heads, capacity, SIZE), draw(rows * kv_heads, capacity, SIZE)
    blocks = plan(runs, kv_heads, group, torch.float64)
    found = attend(qkv, keys, values, blocks, int(runs.count.sum()))
    torch.testing.assert_close(found, plain(qkv, keys, values, runs, kv_heads), atol=1e-12, rtol=0)
    return blocks


@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("group", [1, 2])
def test_random_runs(kv_heads: int, group: int) -> None:
    sizes = set()
    for seed in range(12):
        runs, tokens = random_runs(np.random.default_rng(seed))
        blocks = check(runs, tokens, kv_heads, group, seed)
        sizes |= {(block.bias is None, len(runs.row) > 1 and block.outputs.start == 0) for block in blocks}
    assert len(sizes) > 2, "blocks with and without a mask, first ones and others"


def test_small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """With hardly any room a run is cut into single queries, and the result stays the same."""
    runs = runs_of([0, 1, 2, 5], [0, 3, 40, 7], [2, 4, 130, 1])
    whole = check(runs, 137, 2, 2, 0)
    monkeypatch.setattr(ragged, "_BLOCK_SCORES", 600)
    small = check(runs, 137, 2, 2, 0)
    assert len(small) > len(whole)
    for block in small:
        pairs, queries = block.pairs.stop - block.pairs.start, len(block.query)
        assert queries * 2 * block.columns <= 600 or queries == pairs, "bounded, unless it is one query"


def shapes(runs: Runs) -> list[tuple[slice, int]]:
    return [(block.pairs, block.columns) for block in plan(runs, 1, 1, torch.float32)]


def test_neighbours_are_joined_and_gaps_part_them() -> None:
    assert shapes(runs_of([0, 1, 2], [10, 20, 15], [1, 1, 1])) == [(slice(0, 3), 21)]
    assert shapes(runs_of([0, 2, 3], [10, 20, 15], [1, 1, 1])) == [(slice(0, 1), 11), (slice(2, 4), 21)]
    assert [pairs for pairs, _ in shapes(runs_of(list(range(11)), [5] * 11, [1] * 11))] == [slice(0, 8), slice(8, 11)]


def test_a_block_ends_where_padding_costs_more_than_a_call() -> None:
    """Behind 20 queries of 20 columns, one of 40 columns pads to 2 * 20 * 40 = 1,600, and alone costs 40 + 1,500."""
    assert len(shapes(runs_of([0, 1], [0, 39], [20, 1]))) == 1, "1,600 is not more than 400 + 1,540"
    assert len(shapes(runs_of([0, 1], [0, 59], [20, 1]))) == 2, "2,400 is more than 400 + 1,560"


def test_a_long_run_is_cut_so_that_its_first_tokens_see_less() -> None:
    assert shapes(runs_of([3], [10], [200])) == [(slice(3, 4), 106), (slice(3, 4), 202), (slice(3, 4), 210)]


def test_columns_that_all_see_are_not_masked() -> None:
    """Rows that hold 10 and 12 tokens and get two each: columns 0 to 10 need no mask."""
    (block,) = plan(runs_of([0, 1], [10, 12], [2, 2]), 1, 1, torch.float32)
    low = torch.finfo(torch.float32).min
    assert (block.seen, block.columns) == (11, 14)
    assert block.bias is not None
    assert block.bias[:, 0].tolist() == [[[low] * 3, [0.0, low, low]], [[0.0, 0.0, low], [0.0, 0.0, 0.0]]]
    (alone,) = plan(runs_of([0], [10], [1]), 1, 1, torch.float32)
    assert (alone.bias, alone.columns) == (None, 11)


def test_nothing_to_do() -> None:
    empty: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
    assert plan(Runs(empty, empty, empty, empty), 1, 1, torch.float32) == []
