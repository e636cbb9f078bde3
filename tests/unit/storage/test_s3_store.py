"""What the S3 store alone does: parts, errors in one line without secrets, bounded waiting."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from roleagent.errors import StorageError
from roleagent.storage import MissingObjectError, open_store
from roleagent.storage.s3_store import S3Store

SECRET = "secret-for-tests"


def test_large_file_goes_up_in_parts(s3_store: S3Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "large.bin"
    source.write_bytes(bytes(range(256)) * (17 * 4096))  # 17 MiB
    calls: list[str] = []
    original = s3_store._client._make_api_call
    monkeypatch.setattr(
        s3_store._client, "_make_api_call", lambda name, args: (calls.append(name), original(name, args))[1]
    )
    s3_store.put_file("large.bin", source)
    assert calls.count("UploadPart") == 2
    assert calls.count("CompleteMultipartUpload") == 1
    s3_store.get_file("large.bin", tmp_path / "back.bin")
    assert (tmp_path / "back.bin").read_bytes() == source.read_bytes()


def test_listing_follows_pages(s3_store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(7):
        s3_store.put(f"many/{number}/x", b"x")
    original = s3_store._client._make_api_call

    def small_pages(name: str, args: dict[str, object]) -> object:
        return original(name, {**args, "MaxKeys": 3} if name == "ListObjectsV2" else args)

    monkeypatch.setattr(s3_store._client, "_make_api_call", small_pages)
    assert len(s3_store.list("many")) == 7
    assert len(s3_store.folders("many")) == 7


def test_unfinished_uploads_are_swept(s3_store: S3Store) -> None:
    key = s3_store._key("half")
    s3_store._client.create_multipart_upload(Bucket=s3_store.bucket, Key=key)
    assert s3_store.sweep(older_than_seconds=1e9) == 0  # the service of these tests dates all uploads to 2010
    assert s3_store.sweep() == 1
    assert s3_store.sweep() == 0


def test_missing_bucket_is_named(s3_endpoint: str, aws: None) -> None:
    store = open_store("s3://no-such-bucket", s3_endpoint)
    with pytest.raises(StorageError, match=r"no-such-bucket.*create it") as caught:
        store.put("x", b"x")
    assert not isinstance(caught.value, MissingObjectError)


def test_no_credentials(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    store = open_store("s3://unit-tests", s3_endpoint)
    with pytest.raises(StorageError, match="no AWS credentials were found: set AWS_ACCESS_KEY_ID"):
        store.get("x")


def test_password_in_the_endpoint_is_not_shown(aws: None) -> None:
    store = S3Store("unit-tests", endpoint_url="http://user:hunter2@127.0.0.1:9", connect_timeout=1, attempts=1)
    with pytest.raises(StorageError) as caught:
        store.get("x")
    assert "hunter2" not in str(caught.value)
    assert "127.0.0.1:9" in str(caught.value)


_START = r"is the server running \(`make up` starts the one of the local stack\), and is "


@pytest.mark.parametrize(
    ("variables", "setting", "told"),
    [
        ({"AWS_ENDPOINT_URL_S3": "http://user:hunter2@127.0.0.1:9"}, "", _START + "AWS_ENDPOINT_URL_S3 right"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "", _START + "AWS_ENDPOINT_URL right"),
        ({"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:7"}, "http://127.0.0.1:9", _START + "storage.endpoint_url right"),
        ({"AWS_CONFIG_FILE": "{profile}"}, "", _START + "endpoint_url in the AWS profile right"),
    ],
    ids=["variable for s3", "variable for all", "setting", "profile"],
)
def test_who_does_not_answer_is_named_with_what_named_it(
    aws: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variables: dict[str, str], setting: str, told: str
) -> None:
    (tmp_path / "config").write_text("[default]\nendpoint_url = http://127.0.0.1:9\n", encoding="utf-8")
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(profile=tmp_path / "config"))
    store = S3Store("unit-tests", endpoint_url=setting, connect_timeout=1, attempts=1)
    with pytest.raises(StorageError, match=f"at http://127.0.0.1:9: no answer .*{told}") as caught:
        store.check_writable()
    assert "hunter2" not in str(caught.value)


def test_aws_itself_that_does_not_answer(aws: None) -> None:
    from botocore.exceptions import EndpointConnectionError

    store = S3Store("unit-tests")
    error = store._translate(EndpointConnectionError(endpoint_url=store.endpoint), "cannot write")
    assert store.endpoint == "https://s3.amazonaws.com"
    assert "check the network" in str(error)
    assert "make up" not in str(error)


def test_a_bucket_that_may_not_be_written_is_found(s3_store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from botocore.exceptions import ClientError

    def refuse(name: str, args: object) -> object:
        raise ClientError({"Error": {"Code": "AccessDenied"}}, name)

    monkeypatch.setattr(s3_store._client, "_make_api_call", refuse)
    with pytest.raises(StorageError, match=r"cannot write s3://unit-tests.*credentials were refused"):
        s3_store.check_writable()


def test_an_endpoint_that_is_none(aws: None) -> None:
    with pytest.raises(StorageError, match="endpoint_url"):
        open_store("s3://unit-tests", "not a url")


@pytest.fixture
def silent_server() -> Iterator[str]:
    """Accepts connections and says nothing."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(16)
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_a_silent_server_is_given_up(silent_server: str, aws: None, tmp_path: Path) -> None:
    store = S3Store("unit-tests", endpoint_url=silent_server, connect_timeout=0.3, read_timeout=0.3, attempts=2)
    start = time.monotonic()
    calls = (
        lambda: store.put("x", b"x"),
        lambda: store.get("x"),
        lambda: store.list(),
        lambda: store.get_file("x", tmp_path / "x"),
        lambda: store.put_file("x", Path(__file__)),
    )
    for call in calls:
        with pytest.raises(StorageError, match="is the server running") as caught:
            call()
        assert caught.value.transient
        assert "\n" not in str(caught.value)
        assert SECRET not in str(caught.value)
    assert time.monotonic() - start < 40


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("SignatureDoesNotMatch", "credentials were refused"),
        ("AccessDenied", "credentials were refused"),
        ("NoSuchBucket", "bucket does not exist"),
        ("SlowDown", "answered SlowDown"),
    ],
)
def test_service_errors(s3_store: S3Store, monkeypatch: pytest.MonkeyPatch, code: str, words: str) -> None:
    from botocore.exceptions import ClientError

    def refuse(name: str, args: object) -> object:
        raise ClientError({"Error": {"Code": code, "Message": f"{SECRET}\nStringToSign"}}, name)

    monkeypatch.setattr(s3_store._client, "_make_api_call", refuse)
    with pytest.raises(StorageError, match=words) as caught:
        s3_store.put("x", b"x")
    assert caught.value.transient == (code == "SlowDown")
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert s3_store.bucket in str(caught.value)
