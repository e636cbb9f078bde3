"""Nothing that looks like a credential may reach MLflow or a report."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roleagent.config import TrainConfig
from roleagent.tracking.redaction import MASK, flatten, looks_secret, redact


@pytest.mark.parametrize(
    "key", ["api_key", "hub_token", "AWS_SECRET_ACCESS_KEY", "awsSecretAccessKey", "db.password", "X-Api-Key", "apiKey"]
)
def test_secret_keys_are_known(key: str) -> None:
    assert looks_secret(key)


@pytest.mark.parametrize(
    "key", ["max_turn_tokens", "micro_batch_tokens", "keep_checkpoints", "key", "tokenizer", "monkey", "author"]
)
def test_ordinary_keys_stay(key: str) -> None:
    assert not looks_secret(key)


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("http://me:hunter2@host:5000/x", "http://***@host:5000/x"),
        ("postgresql+psycopg://u:p@db/mlflow", "postgresql+psycopg://***@db/mlflow"),
        ("s3://bucket/runs/7", "s3://bucket/runs/7"),
        ("http://h/x?size=3&X-Amz-Signature=abc", "http://h/x?size=3&X-Amz-Signature=***"),
        ("key AKIAABCDEFGHIJKLMNOP end", "key *** end"),
        ("Authorization: Bearer abcdefghijklmnop", "Authorization: ***"),
        ("mail me@example.org", "mail me@example.org"),
        ("s3://AKX:wJal/rX@bucket/x", "s3://***@bucket/x"),
        ("http://h:80/user/me@example.org", "http://h:80/user/me@example.org"),
    ],
)
def test_values_are_masked(text: str, clean: str) -> None:
    assert redact(text) == clean


@pytest.mark.parametrize("part", ["a", "?", "a://", "a://a:", "eyJaaaaaaaa.", "sk-a", "bearer ", "-----BEGIN A"])
def test_time_grows_with_the_length_of_a_text_alone(part: str) -> None:
    began = time.process_time()
    redact(part * 8000)
    assert time.process_time() - began < 2  # a square of the length: 8 s and more


def test_flatten_keeps_order_and_masks_whole_sections() -> None:
    values = {
        "b": {"x": 1, "names": ["p", None]},
        "a": None,
        "credentials": {"user": "u", "id": 7},
        "token": "t",
        "secret": "",
    }
    assert flatten(values) == {
        "b.x": "1",
        "b.names": "p, ",
        "a": "",
        "credentials.user": MASK,
        "credentials.id": MASK,
        "token": MASK,
        "secret": "",
    }


def test_no_setting_of_a_run_is_masked() -> None:
    assert MASK not in "".join(flatten(TrainConfig().model_dump()).values())


@given(user=st.from_regex(r"[a-z0-9:%._~!-]{1,30}", fullmatch=True))
def test_user_info_never_survives(user: str) -> None:
    assert redact(f"mysql://{user}@host/db") == "mysql://***@host/db"
