"""The tree of what sequences begin with: by hand, and for any sequences."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from roleagent.learning.prefix_tree import common_prefix, grow


def padded(rows):
    result = np.zeros((len(rows), max(map(len, rows))), dtype=np.int64)
    for place, row in enumerate(rows):
        result[place, : len(row)] = row
    return result, [len(row) for row in rows]


def test_common_prefix():
    for first, second, expected in (([1, 2, 3], [1, 2, 4], 2), ([1, 2], [1, 2, 3], 2), ([1], [2], 0), ([], [1], 0)):
        assert common_prefix(np.array(first), np.array(second)) == common_prefix(np.array(second), np.array(first))
        assert common_prefix(np.array(first), np.array(second)) == expected


def test_a_tree_by_hand():
    tree = grow(*padded([[7, 1, 2], [5, 6], [7, 1, 3, 4]]))
    assert tree.ids.tolist() == [5, 6, 7, 1, 2, 3, 4]
    assert tree.positions.tolist() == [0, 1, 0, 1, 2, 2, 3]
    assert tree.owners.tolist() == [0, 0, 1, 1, 1, 2, 2]
    assert tree.lengths == (2, 3, 4)
    assert tree.tokens.tolist() == [[2, 3, 4, -1], [0, 1, -1, -1], [2, 3, 5, 6]]
    assert tree.spread is not None
    assert tree.spread.tolist() == [0, 1, 2, 3, 4, 2, 3, 5, 6]


def test_copies_are_no_paths_of_their_own():
    tree = grow(*padded([[7, 1], [7, 1, 2], [7, 1, 2], [7, 1]]))
    assert tree.ids.tolist() == [7, 1, 2]
    assert tree.lengths == (2, 3)
    assert tree.tokens.tolist() == [[0, 1, -1], [0, 1, 2], [0, 1, 2], [0, 1, -1]]
    assert tree.spread is not None
    assert tree.spread.tolist() == [0, 1, 0, 1, 2]


def test_nothing_in_common_is_not_spread():
    tree = grow(*padded([[2, 1], [1, 2, 3]]))
    assert tree.spread is None
    assert tree.ids.tolist() == [1, 2, 3, 2, 1]


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=7), min_size=1, max_size=10))
def test_every_path_is_a_sequence_and_every_beginning_a_node(rows):
    input_ids, lengths = padded(rows)
    tree = grow(input_ids, lengths)
    beginnings = {tuple(row[:end]) for row in rows for end in range(1, len(row) + 1)}
    assert len(tree.ids) == len(tree.positions) == len(tree.owners) == len(beginnings)
    assert len(tree.lengths) == len(set(map(tuple, rows)))
    for row, nodes in zip(rows, tree.tokens, strict=True):
        assert tree.ids[nodes[: len(row)]].tolist() == row
        assert tree.positions[nodes[: len(row)]].tolist() == list(range(len(row)))
        assert (nodes[len(row) :] == -1).all()
    assert (np.diff(tree.owners) >= 0).all()
    if tree.spread is not None:
        assert len(tree.spread) == sum(tree.lengths)
        assert sorted(set(tree.spread.tolist())) == list(range(len(tree.ids)))
