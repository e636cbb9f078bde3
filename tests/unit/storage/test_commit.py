"""The commit protocol: nothing before the manifest, everything after it."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from roleagent.errors import CommitConflict, StorageError
from roleagent.storage import IterationWriter, Manifest, MissingObjectError, ObjectRecord, ObjectStore, RunStore
from roleagent.storage.manifest import iteration_key, parse_pruned
from roleagent.storage.object_store import UnreachableStoreError

RUN = "quick-1"


def write(store: ObjectStore, iteration: int, text: str = "", commit: bool = True) -> IterationWriter:
    writer = IterationWriter(store, RUN, iteration)
    writer.put("metrics.json", f'{{"n": {iteration}}}{text}'.encode())
    writer.put("checkpoint/model.safetensors", f"weights {iteration}{text}".encode())
    if commit:
        writer.commit(policy_version=iteration, seed=7)
    return writer


@pytest.fixture
def runs(store: ObjectStore) -> RunStore:
    runs = RunStore(store)
    runs.create(RUN, '{"seed": 7}')
    return runs


def test_a_commit_is_read_back(store: ObjectStore, runs: RunStore) -> None:
    assert runs.latest_valid(RUN) is None
    write(store, 0)
    write(store, 1)
    assert runs.committed(RUN) == [0, 1]
    manifest = runs.latest_valid(RUN)
    assert manifest is not None
    assert (manifest.run_id, manifest.iteration, manifest.policy_version, manifest.seed) == (RUN, 1, 1, 7)
    assert [record.name for record in manifest.objects] == ["checkpoint/model.safetensors", "metrics.json"]
    assert runs.read(RUN, 1, "metrics.json") == b'{"n": 1}'
    assert Manifest.from_json(manifest.to_json()) == manifest


def test_killed_before_the_manifest_is_not_committed(store: ObjectStore, runs: RunStore) -> None:
    write(store, 0)
    write(store, 1, commit=False)
    assert runs.committed(RUN) == [0]
    latest = runs.latest_valid(RUN)
    assert latest is not None
    assert latest.iteration == 0
    write(store, 1, text=" again")
    assert runs.read(RUN, 1, "metrics.json") == b'{"n": 1} again'


@pytest.mark.parametrize("damage", ["changed", "shorter", "missing", "manifest"])
def test_damage_goes_back_to_the_commit_before(
    store: ObjectStore, runs: RunStore, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    write(store, 0)
    write(store, 1)
    key = iteration_key(RUN, 1, "manifest.json" if damage == "manifest" else "checkpoint/model.safetensors")
    if damage == "missing":
        store.delete(key)
    else:
        store.put(key, b"weights X" if damage == "changed" else b"{}")
    with caplog.at_level(logging.WARNING):
        latest = runs.latest_valid(RUN)
    assert latest is not None
    assert latest.iteration == 0
    assert "iteration 1" in caplog.text


def test_without_verify_only_sizes_are_compared(store: ObjectStore, runs: RunStore) -> None:
    write(store, 0)
    key = iteration_key(RUN, 0, "checkpoint/model.safetensors")
    store.put(key, b"weights X")
    assert runs.inspect(RUN, verify=False).latest is not None
    assert runs.inspect(RUN, verify=True).latest is None
    store.put(key, b"weights XX")
    assert runs.inspect(RUN, verify=False).latest is None


def test_iterations_are_contiguous(store: ObjectStore, runs: RunStore) -> None:
    with pytest.raises(StorageError, match="iteration 0 is not committed"):
        write(store, 1)
    for iteration in range(4):
        write(store, iteration)
    store.delete(iteration_key(RUN, 2, "manifest.json"))
    state = runs.inspect(RUN)
    assert state.latest is not None
    assert state.latest.iteration == 1
    assert state.problems == (f"iteration 3 of run {RUN} cannot follow: iteration 2 has no manifest",)


@pytest.mark.parametrize("damage", ["changed", "cut", "missing", "manifest"])
def test_what_is_read_of_all_iterations_must_be_valid_in_all(store: ObjectStore, runs: RunStore, damage: str) -> None:
    for iteration in range(4):
        write(store, iteration)
    key = iteration_key(RUN, 1, "manifest.json" if damage == "manifest" else "metrics.json")
    if damage == "missing":
        store.delete(key)
    else:
        store.put(key, {"changed": b"X" * len(store.get(key))}.get(damage, b"{}"))
    newest = runs.inspect(RUN)
    assert newest.latest is not None
    assert newest.latest.iteration == 3  # of those before it only the manifest's presence was asked for
    state = runs.inspect(RUN, every=("metrics.json", "none.json"))
    assert state.latest is not None
    assert state.latest.iteration == 0
    assert [problem.partition(":")[0] for problem in state.problems] == [
        f"iteration 1 of run {RUN} is not valid, nor what follows it"
    ]


def test_a_store_that_cannot_be_read_makes_no_commit_invalid(
    store: ObjectStore, runs: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for iteration in range(2):
        write(store, iteration)
    get = store.get

    def silent(key: str) -> bytes:
        if key == iteration_key(RUN, 1, "manifest.json"):
            raise UnreachableStoreError("no answer")
        return get(key)

    monkeypatch.setattr(store, "get", silent)
    with pytest.raises(UnreachableStoreError):  # going on from iteration 0 would undo iteration 1
        runs.inspect(RUN)


def test_rollback_lets_the_iteration_be_repeated(store: ObjectStore, runs: RunStore) -> None:
    for iteration in range(3):
        write(store, iteration)
    for iteration in (1, 2):
        store.put(iteration_key(RUN, iteration, "metrics.json"), b"damaged!")
    state = runs.inspect(RUN)
    assert state.latest is not None
    assert len(state.problems) == 2
    assert runs.rollback(RUN, state.latest.iteration) == [1, 2]
    assert runs.committed(RUN) == [0]
    undone = [item.key for item in store.list(iteration_key(RUN, 1)) if "undone-" in item.key]
    assert len(undone) == 1
    write(store, 1, text=" repeated")
    latest = runs.latest_valid(RUN)
    assert latest is not None
    assert latest.iteration == 1
    assert runs.rollback(RUN, 1) == []


def test_second_writer_conflicts(store: ObjectStore, runs: RunStore) -> None:
    first = IterationWriter(store, RUN, 0)
    second = IterationWriter(store, RUN, 0)
    first.put("metrics.json", b"1")
    second.put("other.json", b"2")
    first.commit(policy_version=0, seed=0)
    with pytest.raises(CommitConflict, match="another process trains this run") as caught:
        second.commit(policy_version=0, seed=0)
    assert "\n" not in str(caught.value)
    with pytest.raises(CommitConflict):
        IterationWriter(store, RUN, 0).put("metrics.json", b"late")
    assert runs.read(RUN, 0, "metrics.json") == b"1"


def test_a_repeated_commit_is_the_same_commit(store: ObjectStore, runs: RunStore) -> None:
    writer = write(store, 0)
    again = writer.commit(policy_version=0, seed=7)
    assert again == runs.manifest(RUN, 0)
    with pytest.raises(CommitConflict):
        writer.commit(policy_version=1, seed=7)


def test_a_lost_upload_is_found_before_the_commit(store: ObjectStore, runs: RunStore) -> None:
    writer = write(store, 0, commit=False)
    store.delete(iteration_key(RUN, 0, "metrics.json"))
    with pytest.raises(StorageError, match=r"metrics\.json should have 8 bytes, but it is missing"):
        writer.commit(policy_version=0, seed=0)
    store.put(iteration_key(RUN, 0, "metrics.json"), b"other content")
    with pytest.raises(StorageError, match="13 bytes were found"):
        writer.commit(policy_version=0, seed=0)
    assert runs.committed(RUN) == []


def test_objects_written_by_another_task(store: ObjectStore, runs: RunStore) -> None:
    record = IterationWriter(store, RUN, 0).put("trajectories.parquet", b"rows")
    IterationWriter(store, RUN, 0).put("diagnoses.parquet", b"more rows")
    writer = IterationWriter(store, RUN, 0)
    writer.add(record)
    writer.adopt("diagnoses.parquet")
    writer.commit(policy_version=0, seed=0)
    assert runs.latest_valid(RUN) is not None
    assert runs.read(RUN, 0, "diagnoses.parquet") == b"more rows"
    with pytest.raises(MissingObjectError):
        IterationWriter(store, RUN, 1).adopt("nothing")


def test_names_are_checked(store: ObjectStore) -> None:
    writer = IterationWriter(store, RUN, 0)
    for name in ("manifest.json", "pruned.json", "../1/metrics.json", "/x"):
        with pytest.raises(StorageError):
            writer.put(name, b"x")
        with pytest.raises(StorageError):
            writer.add(ObjectRecord(name, 1, "0" * 64))
    with pytest.raises(StorageError, match="no objects"):
        writer.commit(policy_version=0, seed=0)
    with pytest.raises(StorageError, match="negative"):
        IterationWriter(store, RUN, -1)
    with pytest.raises(StorageError, match="run id"):
        IterationWriter(store, "a/b", 0)


def test_checkpoint_folder_round_trip(store: ObjectStore, runs: RunStore, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "optimizer").mkdir(parents=True)
    (source / "model.safetensors").write_bytes(b"m" * 1000)
    (source / "optimizer" / "state.safetensors").write_bytes(b"o" * 500)
    writer = IterationWriter(store, RUN, 0)
    records = writer.put_folder("checkpoint", source)
    assert [record.name for record in records] == [
        "checkpoint/model.safetensors",
        "checkpoint/optimizer/state.safetensors",
    ]
    writer.commit(policy_version=0, seed=0)
    target = runs.fetch_checkpoint(RUN, 0, tmp_path / "target")
    assert (target / "model.safetensors").read_bytes() == b"m" * 1000
    assert (target / "optimizer" / "state.safetensors").read_bytes() == b"o" * 500
    (target / "model.safetensors").write_bytes(b"stale")
    store.delete(iteration_key(RUN, 0, "checkpoint/optimizer/state.safetensors"))  # right already, so not fetched
    runs.fetch_checkpoint(RUN, 0, target)
    assert (target / "model.safetensors").read_bytes() == b"m" * 1000
    with pytest.raises(StorageError, match="holds no file"):
        writer.put_folder("checkpoint", tmp_path / "nothing")


def test_damaged_objects_are_not_handed_out(store: ObjectStore, runs: RunStore, tmp_path: Path) -> None:
    write(store, 0)
    store.put(iteration_key(RUN, 0, "metrics.json"), b"tampered")
    with pytest.raises(StorageError, match="not what was committed"):
        runs.read(RUN, 0, "metrics.json")
    store.put(iteration_key(RUN, 0, "checkpoint/model.safetensors"), b"tampered!")
    with pytest.raises(StorageError, match="not what was committed"):
        runs.fetch_checkpoint(RUN, 0, tmp_path / "target")
    assert not (tmp_path / "target" / "model.safetensors").exists()
    with pytest.raises(StorageError, match="no object 'x'"):
        runs.read(RUN, 0, "x")
    with pytest.raises(MissingObjectError, match="not committed"):
        runs.read(RUN, 1, "metrics.json")


def test_a_run_id_is_taken_once(store: ObjectStore, runs: RunStore) -> None:
    with pytest.raises(StorageError, match="exists already"):
        runs.create(RUN, "{}")
    assert runs.config(RUN) == '{"seed": 7}'
    runs.create("another", "{}")
    store.put("runs/no-config/status.json", b"{}")
    assert runs.list_runs() == ["another", RUN]
    with pytest.raises(MissingObjectError, match="there is no run nobody"):
        runs.config("nobody")
    for name in ("", "a b", "../x", "a.b", "x" * 129):
        with pytest.raises(StorageError):
            runs.create(name, "{}")


def test_objects_of_the_run(runs: RunStore) -> None:
    assert runs.write(RUN, "status.json", b"{}").endswith(f"runs/{RUN}/status.json")
    assert runs.read_run(RUN, "status.json") == b"{}"
    with pytest.raises(MissingObjectError):
        runs.read_run(RUN, "summary.json")
    for name in ("config.json", "lease.json", "iterations/0/manifest.json"):
        with pytest.raises(StorageError):
            runs.write(RUN, name, b"{}")


def test_whoever_takes_the_run_last_has_it(store: ObjectStore, runs: RunStore) -> None:
    old = runs.take(RUN, "host-a 11")
    writer = IterationWriter(store, RUN, 0, old)
    writer.put("metrics.json", b"1")
    new = runs.take(RUN, "host-b 22")
    with pytest.raises(CommitConflict, match="taken over by host-b 22"):
        writer.put("more.json", b"2")
    with pytest.raises(CommitConflict, match="taken over by host-b 22"):
        writer.commit(policy_version=0, seed=0)
    other = IterationWriter(store, RUN, 0, new)
    other.put("metrics.json", b"3")
    other.commit(policy_version=0, seed=0)
    assert runs.read(RUN, 0, "metrics.json") == b"3"


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"iteration": -1},
        {"iteration": True},
        {"policy_version": "1"},
        {"run_id": "../x"},
        {"objects": [{"name": "../x", "size": 1, "sha256": "0" * 64}]},
        {"objects": [{"name": "x", "size": 1, "sha256": "0"}]},
        {"objects": [{"name": "x", "size": -1, "sha256": "0" * 64}]},
        {"objects": None},
    ],
)
def test_manifests_from_outside_are_checked(change: dict[str, object]) -> None:
    good = Manifest(RUN, 0, 0, 0, "2026-01-01T00:00:00+00:00", (ObjectRecord("x", 1, "0" * 64),))
    values = json.loads(good.to_json())
    assert Manifest.from_json(json.dumps(values).encode()) == good
    with pytest.raises(StorageError) as caught:
        Manifest.from_json(json.dumps({**values, **change}).encode())
    assert "\n" not in str(caught.value)


def test_a_manifest_of_another_run_is_refused(store: ObjectStore, runs: RunStore) -> None:
    write(store, 0)
    foreign = json.loads(store.get(iteration_key(RUN, 0, "manifest.json")))
    store.put(iteration_key(RUN, 0, "manifest.json"), json.dumps({**foreign, "run_id": "other"}).encode())
    with pytest.raises(StorageError, match="belongs to iteration 0 of other"):
        runs.manifest(RUN, 0)
    assert runs.latest_valid(RUN) is None


def test_a_damaged_list_of_pruned_objects_counts_as_empty() -> None:
    assert parse_pruned(b'{"objects": ["a", 3]}') == {"a"}
    assert parse_pruned(b"[]") == frozenset()
    assert parse_pruned(b"\xff") == frozenset()
    assert parse_pruned(b'{"objects": 5}') == frozenset()
    assert parse_pruned(b"[" * 100_000) == frozenset()


@pytest.mark.parametrize("text", [b"{", b"[]", b"[" * 100_000, b'{"format": 1}'])
def test_a_damaged_manifest_is_one_line(text: bytes) -> None:
    with pytest.raises(StorageError, match="place is damaged") as error:
        Manifest.from_json(text, "place")
    assert len(str(error.value).splitlines()) == 1
