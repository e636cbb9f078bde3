"""A model's own words become metric names (failure types); MLflow must take every one of them."""

from __future__ import annotations

import posixpath
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roleagent.tracking.values import numbers


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("wrong place", "wrong place"),
        ("http://evil.example", "http:/evil.example"),
        ("../../etc/passwd", "etc/passwd"),
        ("./a/./b/..", "a/b"),
        ("a | b\x1b[31m", "a _ b__31m"),
        ("/", ""),
    ],
)
def test_labels_that_are_paths(label: str, name: str) -> None:
    assert list(numbers({"failure_types": {label: 1}})) == [f"failure_types/{name}".rstrip("/")]


@given(st.text(alphabet=st.sampled_from("ab./ \\:_-\n|\u00e9"), max_size=300) | st.text(max_size=300))
def test_every_label_is_a_name_that_mlflow_takes(label: str) -> None:
    """The two rules of mlflow.utils.validation._validate_metric_name, and its limit of 250 characters."""
    (name,) = numbers({"failure_types": {label: 1}})
    assert re.fullmatch(r"[A-Za-z0-9_\-. :/]{1,250}", name)
    assert posixpath.normpath(name) == name
    assert not name.startswith(("..", "/"))
