"""Whatever call fails, and however, a run is in its old state or in its new one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roleagent.errors import StorageError
from roleagent.storage import IterationWriter, RunStore, prune
from roleagent.storage.local_store import LocalStore
from roleagent.storage.manifest import iteration_key

RUN = "quick-1"


class FaultyStore:
    """Passes calls on until call number `fail_at`, and refuses all later ones, as if the process had died.

    The failing call itself has no effect, its full effect without an answer, or (a write) leaves half an object.
    """

    def __init__(self, inner: LocalStore, fail_at: int, how: str) -> None:
        self._inner = inner
        self._left = fail_at
        self._how = how

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._inner, name)

        def call(*args: Any, **options: Any) -> Any:
            if name == "uri":
                return method(*args, **options)
            self._left -= 1
            if self._left < 0:
                raise StorageError("the store is gone")
            if self._left > 0:
                return method(*args, **options)
            if self._how == "after":
                method(*args, **options)
            if self._how == "half" and name == "put_file":
                path = self._inner.root / args[0]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(Path(args[1]).read_bytes()[:3])
            raise StorageError("the store failed")

        return call


def run_iteration(store: Any, folder: Path, iteration: int, text: str) -> None:
    """What the training loop does to the store in one iteration."""
    (folder / "model.safetensors").write_text(f"weights {iteration} {text}")
    (folder / "state.json").write_text(f"state {iteration} {text}")
    runs = RunStore(store)
    writer = IterationWriter(store, RUN, iteration, runs.take(RUN, "me"))
    writer.put("trajectories.parquet", f"rows {iteration} {text}".encode())
    writer.put("metrics.json", b"{}")
    writer.put_folder("checkpoint", folder)
    writer.commit(policy_version=iteration, seed=0)
    prune(store, RUN, keep_newest=2)


@settings(max_examples=60, deadline=None)
@given(fail_at=st.integers(1, 40), how=st.sampled_from(["before", "after", "half"]), committed=st.integers(1, 4))
def test_after_any_failure_the_state_is_old_or_new(fail_at: int, how: str, committed: int) -> None:
    # fsync is slow, and nothing here cuts the power
    with tempfile.TemporaryDirectory() as name, mock.patch("os.fsync"):
        folder = Path(name, "checkpoint")
        folder.mkdir()
        store = LocalStore(Path(name, "store"))
        runs = RunStore(store)
        runs.create(RUN, "{}")
        for iteration in range(committed):
            run_iteration(store, folder, iteration, "first try")
        failed = False
        try:
            run_iteration(FaultyStore(store, fail_at, how), folder, committed, "first try")
        except StorageError:
            failed = True
        latest = runs.latest_valid(RUN)
        assert latest is not None
        assert latest.iteration in {committed - 1, committed}
        if not failed:
            assert latest.iteration == committed
        fetched = runs.fetch_checkpoint(RUN, latest.iteration, Path(name, "fetched"))
        assert (fetched / "model.safetensors").read_text() == f"weights {latest.iteration} first try"
        assert (fetched / "state.json").read_text() == f"state {latest.iteration} first try"

        # Resuming repeats what is not committed, whatever lies there
        runs.rollback(RUN, latest.iteration)
        for iteration in range(latest.iteration + 1, committed + 2):
            run_iteration(store, folder, iteration, "second try")
        resumed = runs.latest_valid(RUN)
        assert resumed is not None
        assert resumed.iteration == committed + 1
        assert runs.committed(RUN) == list(range(committed + 2))
        assert store.sweep(older_than_seconds=0) == 0


def test_the_faults_reach_every_call() -> None:
    """The range of `fail_at` above covers an iteration's calls, so that no step goes untested."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "checkpoint")
        folder.mkdir()
        store = LocalStore(Path(name, "store"))
        RunStore(store).create(RUN, "{}")
        for iteration in range(4):
            run_iteration(store, folder, iteration, "")
        counting = FaultyStore(store, 1000, "before")
        run_iteration(counting, folder, 4, "")
        assert 10 < 1000 - counting._left <= 40


def test_full_disk_while_writing_leaves_the_earlier_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    store = LocalStore(tmp_path / "store")
    runs = RunStore(store)
    runs.create(RUN, "{}")
    run_iteration(store, folder, 0, "")

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("shutil.copyfileobj", full)
        with pytest.raises(StorageError, match="the disk is full: free some space") as caught:
            run_iteration(store, folder, 1, "")
    assert "\n" not in str(caught.value)
    latest = runs.latest_valid(RUN)
    assert latest is not None
    assert latest.iteration == 0
    assert not list((tmp_path / "store").rglob(".*"))
    assert store.exists(iteration_key(RUN, 1, "metrics.json"))
    run_iteration(store, folder, 1, "")
    assert runs.committed(RUN) == [0, 1]
