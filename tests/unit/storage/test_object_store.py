"""The contract of an object store, held by the folder and by S3."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from roleagent.errors import CommitConflict, StorageError
from roleagent.storage import (
    MissingObjectError,
    MissingStoreError,
    ObjectExistsError,
    ObjectStore,
    StoredObject,
    open_store,
)
from roleagent.storage.local_store import LocalStore
from roleagent.storage.object_store import check_key
from tests.support.racing import race

KEYS = ["../escape", "/absolute", "a/../b", "a//b", "", "a/", ".hidden", "a/.b", "a\\b", "a\nb", "a b", "x" * 901, "ü"]


def test_put_get_replace_delete(store: ObjectStore) -> None:
    store.put("a/b.json", b"one")
    assert store.get("a/b.json") == b"one"
    store.put("a/b.json", b"two")
    assert store.get("a/b.json") == b"two"
    assert store.exists("a/b.json")
    store.delete("a/b.json")
    assert not store.exists("a/b.json")
    store.delete("a/b.json")


def test_empty_object(store: ObjectStore) -> None:
    store.put("empty", b"")
    assert store.get("empty") == b""
    assert store.list() == [StoredObject("empty", 0)]


def test_if_absent_keeps_the_first(store: ObjectStore) -> None:
    store.put("once", b"first", if_absent=True)
    with pytest.raises(ObjectExistsError) as caught:
        store.put("once", b"second", if_absent=True)
    assert isinstance(caught.value, CommitConflict)
    assert store.get("once") == b"first"


def test_a_check_for_writing_leaves_nothing(store: ObjectStore) -> None:
    store.check_writable()
    assert store.list() == []
    assert store.sweep(older_than_seconds=0) == 0
    store.put("a", b"x")
    store.check_writable()
    assert store.list() == [("a", 1)]


def test_list_is_by_folder_and_sorted(store: ObjectStore) -> None:
    for key, size in (("runs/b/x", 3), ("runs/a/x", 1), ("runs/a1/x", 2), ("runs/a/y/z", 4)):
        store.put(key, b"." * size)
    assert store.list("runs/a") == [("runs/a/x", 1), ("runs/a/y/z", 4)]
    assert store.list("runs/a/") == store.list("runs/a")
    assert [item.key for item in store.list()] == ["runs/a/x", "runs/a/y/z", "runs/a1/x", "runs/b/x"]
    assert store.folders("runs") == ("a", "a1", "b")
    assert store.folders("nothing") == ()
    assert store.list("nothing") == []


def test_files_and_digests(store: ObjectStore, tmp_path: Path) -> None:
    data = bytes(range(256)) * 5000
    source = tmp_path / "source.bin"
    source.write_bytes(data)
    store.put_file("files/x.bin", source)
    store.get_file("files/x.bin", tmp_path / "deep" / "down" / "x.bin")
    assert (tmp_path / "deep" / "down" / "x.bin").read_bytes() == data
    assert store.digest("files/x.bin") == (len(data), hashlib.sha256(data).hexdigest())
    assert [path.name for path in (tmp_path / "deep" / "down").iterdir()] == ["x.bin"]


def test_missing_objects_are_named(store: ObjectStore, tmp_path: Path) -> None:
    for read in (store.get, store.digest, lambda key: store.get_file(key, tmp_path / "out")):
        with pytest.raises(MissingObjectError, match="not/there"):
            read("not/there")
    assert not (tmp_path / "out").exists()


def test_missing_source_file(store: ObjectStore, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"nothing\.bin") as caught:
        store.put_file("x", tmp_path / "nothing.bin")
    assert "\n" not in str(caught.value)
    assert not store.exists("x")


@pytest.mark.parametrize("key", KEYS)
def test_unsafe_keys_are_refused(store: ObjectStore, key: str) -> None:
    source = Path(__file__)
    writes = (lambda k: store.put(k, b"x"), lambda k: store.put_file(k, source))
    for call in (store.get, store.exists, store.delete, *writes):
        with pytest.raises(StorageError, match="not allowed"):
            call(key)


def test_sixteen_writers_one_winner(store: ObjectStore) -> None:
    race(store, "race")


def test_uris(tmp_path: Path, s3_store: ObjectStore) -> None:
    assert open_store(f"file://{tmp_path}").uri("a/b") == f"{tmp_path}/a/b"
    assert open_store(str(tmp_path)).uri() == str(tmp_path)
    assert s3_store.uri("a/b").startswith("s3://unit-tests/")
    assert s3_store.uri("a/b").endswith("/a/b")


@pytest.mark.parametrize(
    "uri", ["", "  ", "gs://bucket/x", "file://host/x", "s3://", "s3://Upper_case/x", "s3://bucket/../x"]
)
def test_unusable_addresses(uri: str) -> None:
    with pytest.raises(StorageError) as caught:
        open_store(uri)
    assert "\n" not in str(caught.value)


def test_a_key_may_be_as_long_as_stated() -> None:
    assert check_key("x" * 900)


def test_folder_shows_no_temporary_files(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / ".b.0123.tmp").write_bytes(b"left by a killed writer")
    store.put("a/b", b"x")
    assert store.list() == [("a/b", 1)]
    assert store.sweep(older_than_seconds=3600) == 0
    assert store.sweep(older_than_seconds=0) == 1
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["b"]


def test_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="cannot open"):
        open_store(str(tmp_path / "file"))


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("/proc/nope", "cannot write /proc/nope: no folder can be made there: set storage.uri to another one"),
        ("{file}/store", "a part of the path is not a folder: set storage.uri to another one"),
        ("{file}", "a part of the path is not a folder: set storage.uri to another one"),
        ("/tmp/" + "x" * 300, "the name is too long: set storage.uri to another folder"),
    ],
)
def test_a_folder_that_takes_nothing_is_told_with_a_remedy(tmp_path: Path, place: str, told: str) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    for act in (lambda store: store.check_writable(), lambda store: store.put("a", b"x")):
        with pytest.raises(StorageError) as caught:
            act(open_store(place.format(file=tmp_path / "file")))
        assert told in str(caught.value)
        assert not isinstance(caught.value, MissingObjectError)


def test_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path)
    store.put("a", b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageError, match="the disk is full") as caught:
        store.put("a", b"new")
    assert "\n" not in str(caught.value)
    assert store.get("a") == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_only_a_write_makes_the_folder(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "new" / "store"))
    assert store.list() == []
    assert store.folders() == ()
    assert not store.exists("a")
    store.delete("a")
    with pytest.raises(MissingObjectError, match="there is no such object"):
        store.get("a")
    assert not (tmp_path / "new").exists()
    store.put("a", b"x")
    assert store.get("a") == b"x"
    with pytest.raises(MissingObjectError, match="there is no such object"):
        store.get("b")


def test_a_folder_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    """As a disk that was unmounted: an empty folder in its place would look as if everything were lost."""
    store = open_store(str(tmp_path / "store"))
    store.put("a", b"x")
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    for call in (lambda: store.put("b", b"y"), lambda: store.get("a"), lambda: store.digest("a")):
        with pytest.raises(MissingStoreError, match="mount it or bring it back") as caught:
            call()
        assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere"]
    (tmp_path / "elsewhere").rename(tmp_path / "store")
    store.put("b", b"y")
    assert [item.key for item in store.list()] == ["a", "b"]
