"""Stores for the contract tests: a folder, and an in-memory S3 service for the logic of the S3 store."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer

from roleagent.storage import ObjectStore, open_store
from roleagent.storage.s3_store import S3Store

AWS = {
    "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "secret-for-tests",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in AWS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def s3_bucket(s3_endpoint: str) -> S3Store:
    """One client for all tests: making one takes longer than a test."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in AWS.items():
            patch.setenv(name, value)
        store = open_store("s3://unit-tests", s3_endpoint)
        assert isinstance(store, S3Store)
        store.ensure_bucket()
    return store


@pytest.fixture
def s3_store(s3_bucket: S3Store, request: pytest.FixtureRequest) -> S3Store:
    store = copy.copy(s3_bucket)
    store.prefix = "".join(letter for letter in request.node.name if letter.isalnum())
    return store


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "folder":
        return open_store(str(tmp_path / "store"))
    return request.getfixturevalue("s3_store")
