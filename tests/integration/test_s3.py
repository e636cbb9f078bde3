"""The S3 store and the commit protocol against a real S3 server (SeaweedFS), and that server's own start and stop."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.embedded.s3 import EmbeddedS3, EmbeddedS3Error
from roleagent import cli
from roleagent.config import load_config
from roleagent.errors import StorageError
from roleagent.loop.worker import drop_workers
from roleagent.storage import (
    IterationWriter,
    MissingObjectError,
    ObjectStore,
    RunStore,
    StoredObject,
    open_store,
    prune,
)
from roleagent.storage.manifest import iteration_key
from roleagent.storage.s3_store import S3Store
from tests.support.committed import committed_run
from tests.support.racing import race

pytestmark = pytest.mark.slow
BUCKET = "roleagent-tests"
RUN = "quick-1"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedS3]:
    server = EmbeddedS3()
    server.start(tmp_path_factory.mktemp("s3"))
    yield server
    server.stop(timeout=3)


@pytest.fixture
def credentials(server: EmbeddedS3, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    return server.environment()


@pytest.fixture
def store(server: EmbeddedS3, credentials: dict[str, str], request: pytest.FixtureRequest) -> S3Store:
    name = "".join(letter for letter in request.node.name if letter.isalnum())
    store = open_store(f"s3://{BUCKET}/{name}", server.endpoint)
    assert isinstance(store, S3Store)
    store.ensure_bucket()
    store.ensure_bucket()
    return store


def commit(store: ObjectStore, iteration: int, checkpoint: bytes = b"weights") -> None:
    writer = IterationWriter(store, RUN, iteration)
    writer.put("metrics.json", b"{}")
    writer.put("checkpoint/model.safetensors", checkpoint)
    writer.commit(policy_version=iteration, seed=0)


def test_a_check_for_writing_leaves_nothing(store: S3Store) -> None:
    store.check_writable()
    assert store.list() == []
    assert store.sweep(older_than_seconds=-60) == 0  # no unfinished upload either


def test_put_get_list_delete(store: S3Store) -> None:
    store.put("a/one", b"1")
    store.put("a/b/two", b"22")
    assert store.get("a/one") == b"1"
    assert store.list() == [StoredObject("a/b/two", 2), StoredObject("a/one", 1)]
    assert store.list("a/b") == [("a/b/two", 2)]
    assert store.folders("a") == ("b",)
    store.delete("a/one")
    assert not store.exists("a/one")
    assert store.exists("a/b/two")
    with pytest.raises(MissingObjectError):
        store.get("a/one")


def test_large_file_in_parts(store: S3Store, tmp_path: Path) -> None:
    source = tmp_path / "large.bin"
    source.write_bytes(os.urandom(40 * 1024 * 1024))
    store.put_file("large.bin", source)
    assert store.list() == [("large.bin", 40 * 1024 * 1024)]
    store.get_file("large.bin", tmp_path / "back.bin")
    assert (tmp_path / "back.bin").read_bytes() == source.read_bytes()
    head = store._client.head_object(Bucket=BUCKET, Key=store._key("large.bin"))
    assert head["ETag"].strip('"').endswith("-3")  # three parts


def test_unfinished_upload_is_swept_when_old(store: S3Store) -> None:
    store._client.create_multipart_upload(Bucket=BUCKET, Key=store._key("half"))
    assert store.sweep(older_than_seconds=3600) == 0
    time.sleep(1.1)
    assert store.sweep(older_than_seconds=0) == 1
    assert store.list() == []


def test_sixteen_writers_one_winner(store: S3Store) -> None:
    for number in range(3):
        race(store, f"race/{number}")


def test_commit_resume_and_retention(store: S3Store, tmp_path: Path) -> None:
    runs = RunStore(store)
    runs.create(RUN, "{}")
    with pytest.raises(StorageError, match="exists already"):
        runs.create(RUN, "{}")
    for iteration in range(4):
        commit(store, iteration, f"weights {iteration}".encode())
    assert runs.list_runs() == [RUN]
    assert prune(store, RUN, keep_newest=2) == [1]
    store.put(iteration_key(RUN, 3, "checkpoint/model.safetensors"), b"weights X")
    state = runs.inspect(RUN)
    assert state.latest is not None
    assert state.latest.iteration == 2
    assert runs.rollback(RUN, 2) == [3]
    commit(store, 3, b"weights again")
    latest = runs.latest_valid(RUN)
    assert latest is not None
    assert latest.iteration == 3
    folder = runs.fetch_checkpoint(RUN, 3, tmp_path / "checkpoint")
    assert (folder / "model.safetensors").read_bytes() == b"weights again"


def test_writer_killed_before_its_manifest(store: S3Store, server: EmbeddedS3) -> None:
    RunStore(store).create(RUN, "{}")
    commit(store, 0)
    program = (
        "import os, signal; from roleagent.storage import IterationWriter, open_store;"
        f"writer = IterationWriter(open_store({store.uri()!r}, {server.endpoint!r}), {RUN!r}, 1);"
        "writer.put('metrics.json', b'{}'); writer.put('checkpoint/model.safetensors', b'half of it');"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=120).returncode == -9
    runs = RunStore(store)
    assert store.exists(iteration_key(RUN, 1, "checkpoint/model.safetensors"))
    assert runs.committed(RUN) == [0]
    commit(store, 1, b"all of it")
    assert runs.read(RUN, 1, "checkpoint/model.safetensors") == b"all of it"


def test_wrong_secret(server: EmbeddedS3, credentials: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-" + credentials["AWS_SECRET_ACCESS_KEY"])
    store = open_store(f"s3://{BUCKET}/x", server.endpoint)
    for call in (lambda: store.put("x", b"x"), lambda: store.get("x"), lambda: store.list(), lambda: store.exists("x")):
        with pytest.raises(StorageError, match="credentials were refused") as caught:
            call()
        assert credentials["AWS_SECRET_ACCESS_KEY"] not in str(caught.value)
        assert server.endpoint in str(caught.value)
        assert "\n" not in str(caught.value)


def test_lost_server_and_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = EmbeddedS3()
    folder = tmp_path / "s3"
    try:
        endpoint = server.start(folder)
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        assert stat.S_IMODE((folder / "credentials.json").stat().st_mode) == 0o600
        with pytest.raises(EmbeddedS3Error, match="already"):
            EmbeddedS3().start(folder)
        store = open_store(f"s3://{BUCKET}/run", endpoint)
        assert isinstance(store, S3Store)
        store.ensure_bucket()
        RunStore(store).create(RUN, "{}")
        commit(store, 0, os.urandom(300_000))
        writer = IterationWriter(store, RUN, 1)
        writer.put("metrics.json", b"{}")

        server.kill()
        assert not server.running
        start = time.monotonic()
        for call in (lambda: writer.put("more", b"x"), lambda: RunStore(store).latest_valid(RUN)):
            with pytest.raises(StorageError, match="is the server running") as caught:
                call()
            assert "\n" not in str(caught.value)
        assert time.monotonic() - start < 60

        assert server.start(folder) == endpoint
        latest = RunStore(store).latest_valid(RUN)
        assert latest is not None
        assert latest.iteration == 0
        writer.commit(policy_version=1, seed=0)
        assert RunStore(store).committed(RUN) == [0, 1]

        other = EmbeddedS3.attach(folder)
        assert other.endpoint == endpoint
        other.stop(timeout=3)
        assert not server.running
        with pytest.raises(EmbeddedS3Error, match="no S3 server"):
            EmbeddedS3.attach(folder)
    finally:
        server.stop(timeout=3)


def test_commands_on_a_run_whose_server_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROLEAGENT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(S3Store.__init__, "__kwdefaults__", {**S3Store.__init__.__kwdefaults__, "attempts": 1})
    server = EmbeddedS3()
    try:
        endpoint = server.start(tmp_path / "s3")
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        S3Store(BUCKET, endpoint_url=endpoint).ensure_bucket()
        place = [f"storage.uri=s3://{BUCKET}/lost", f"storage.endpoint_url={endpoint}"]
        committed_run([{}], config=load_config("smoke", place))
        server.kill()
        for command in (["resume", "a-run"], ["runs", "show"], ["evaluate", "--tasks", "2"], ["bank", "stats"]):
            drop_workers()
            with pytest.raises(
                StorageError, match=rf"cannot read s3://{BUCKET}/lost/.* at {endpoint}: no answer"
            ) as told:
                cli.run(command)
            assert "is the server running" in str(told.value)
            assert "\n" not in str(told.value)
        assert cli.run(["runs"]) == 0
        assert "unreadable" in capsys.readouterr().out

        server.start(tmp_path / "s3")
        assert cli.run(["runs", "show"]) == 0
        assert "a-run" in capsys.readouterr().out
    finally:
        drop_workers()
        server.stop(timeout=3)


def test_a_port_in_use_is_reported(server: EmbeddedS3, tmp_path: Path) -> None:
    second = EmbeddedS3()
    port = int(server.endpoint.rpartition(":")[2])
    with pytest.raises(EmbeddedS3Error, match=f"port {port} is in use"):
        second.start(tmp_path / "second", port=port)
    assert not second.running


def test_a_server_that_ends_at_once_is_reported(tmp_path: Path) -> None:
    server = EmbeddedS3()
    (tmp_path / "credentials.json").write_text("this is no JSON")
    with pytest.raises(EmbeddedS3Error, match=r"server\.log"):
        server.start(tmp_path, timeout=30)
    assert not server.running
