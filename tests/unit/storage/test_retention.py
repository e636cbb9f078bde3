"""Which checkpoints stay, and that a crash in between loses nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from roleagent.errors import StorageError
from roleagent.storage import IterationWriter, MissingObjectError, ObjectStore, RunStore, prune
from roleagent.storage.manifest import iteration_key

RUN = "quick-1"


@pytest.fixture
def runs(store: ObjectStore) -> RunStore:
    for iteration in range(7):
        writer = IterationWriter(store, RUN, iteration)
        writer.put("metrics.json", b"{}")
        writer.put("checkpoint/model.safetensors", f"weights {iteration}".encode())
        writer.put("checkpoint/optimizer.safetensors", b"moments")
        writer.commit(policy_version=iteration, seed=0)
    return RunStore(store)


def with_checkpoint(store: ObjectStore) -> list[int]:
    return [n for n in range(7) if store.exists(iteration_key(RUN, n, "checkpoint/model.safetensors"))]


def test_first_best_and_newest_stay(store: ObjectStore, runs: RunStore, tmp_path: Path) -> None:
    assert prune(store, RUN, keep_newest=2, best_iteration=3) == [1, 2, 4]
    assert with_checkpoint(store) == [0, 3, 5, 6]
    assert prune(store, RUN, keep_newest=2, best_iteration=3) == []
    assert runs.committed(RUN) == list(range(7))
    assert runs.read(RUN, 1, "metrics.json") == b"{}"
    with pytest.raises(MissingObjectError, match="keep_checkpoints"):
        runs.fetch_checkpoint(RUN, 1, tmp_path)


def test_a_pruned_iteration_is_no_point_to_resume_from(store: ObjectStore, runs: RunStore) -> None:
    prune(store, RUN, keep_newest=1)
    store.delete(iteration_key(RUN, 6, "metrics.json"))
    state = runs.inspect(RUN)
    assert state.latest is not None
    assert state.latest.iteration == 0
    assert sum("removed by retention" in problem for problem in state.problems) == 5


def test_no_best_yet_and_a_new_best(store: ObjectStore, runs: RunStore) -> None:
    assert prune(store, RUN, keep_newest=5) == [1]
    assert prune(store, RUN, keep_newest=1, best_iteration=5) == [2, 3, 4]
    assert prune(store, RUN, keep_newest=1, best_iteration=6) == [5]
    assert with_checkpoint(store) == [0, 6]


def test_a_crash_while_deleting_is_finished_later(
    store: ObjectStore, runs: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted: list[str] = []
    original = type(store).delete

    def crash(self: ObjectStore, key: str) -> None:
        if deleted:
            raise StorageError("killed")
        deleted.append(key)
        original(self, key)

    with monkeypatch.context() as patch:
        patch.setattr(type(store), "delete", crash)
        with pytest.raises(StorageError, match="killed"):
            prune(store, RUN, keep_newest=1)
    assert runs.pruned(RUN, 1) == {"checkpoint/model.safetensors", "checkpoint/optimizer.safetensors"}
    assert runs.inspect(RUN).latest is not None
    assert prune(store, RUN, keep_newest=1) == [1, 2, 3, 4, 5]
    assert with_checkpoint(store) == [0, 6]
    assert store.list(iteration_key(RUN, 1, "checkpoint")) == []


def test_an_unfinished_iteration_is_left_alone(store: ObjectStore, runs: RunStore) -> None:
    IterationWriter(store, RUN, 7).put("checkpoint/model.safetensors", b"new")
    prune(store, RUN, keep_newest=1)
    assert store.get(iteration_key(RUN, 7, "checkpoint/model.safetensors")) == b"new"


def test_at_least_one_is_kept(store: ObjectStore, runs: RunStore) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        prune(store, RUN, keep_newest=0)
