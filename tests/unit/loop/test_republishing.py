"""Publishing: what is made up for after a crash, and runs without Agent-In-World."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock, patch

import pytest

from roleagent.loop import publishing


@pytest.fixture
def worker() -> Any:
    fake = MagicMock()
    fake.run_id = "run"
    fake.config.agent_in_world.enabled = True
    fake.history = {n: {"iteration": n} for n in range(4)}
    fake.store.committed.return_value = [0, 1, 2, 3]
    fake.tracker.wants_traces.return_value = True
    fake.curriculum.return_value.solved = {"old": 2, "new": 3}
    fake.diagnoses.return_value = [MagicMock(trajectory_id="t")]
    with patch.object(publishing, "prune") as fake.prune:
        yield fake


def test_a_resumed_run_makes_up_for_everything_of_the_last_commit(worker: Any) -> None:
    publishing.republish(worker, 3)
    worker.tracker.sync.assert_called_once_with([worker.history[n] for n in range(4)])
    worker.open_bank.assert_called_once_with()
    worker.bank.mark_resolved.assert_called_once_with(["new"], 3)
    worker.tracker.set_checkpoint.assert_called_once_with(3, worker.store.checkpoint_uri.return_value)
    worker.tracker.log_traces.assert_called_once_with(
        worker.trajectories.return_value, {"t": worker.diagnoses.return_value[0]}
    )
    worker.prune.assert_called_once()


def test_a_run_that_stopped_after_its_first_commit_still_names_its_datasets(worker: Any) -> None:
    publishing.republish(worker, 0)
    (pools,) = worker.tracker.log_datasets.call_args.args
    assert set(pools) == {"train", "heldout"}
    worker.tracker.log_traces.assert_not_called()
    worker.bank.add.assert_not_called()


def test_without_agent_in_world_traces_have_no_diagnoses(worker: Any) -> None:
    """Such a run has no diagnoses to read."""
    worker.config.agent_in_world.enabled = False
    worker.diagnoses.side_effect = AssertionError("there are none")
    publishing.publish(worker, 3, {})
    worker.tracker.log_traces.assert_called_once_with(worker.trajectories.return_value, {})
    worker.bank.add.assert_not_called()


def test_the_last_iteration_is_always_traced(worker: Any) -> None:
    worker.tracker.wants_traces.return_value = False
    worker.config.iterations = 3
    publishing.publish(worker, 2, {})
    worker.tracker.log_traces.assert_not_called()
    publishing.publish(worker, 3, {})
    worker.tracker.log_traces.assert_called_once()


def test_a_committed_row_is_read_once(worker: Any) -> None:
    worker.history = {}
    worker.store.read.return_value = b'{"metrics": {"seconds/update": 2.0}, "failure_types": {"a": 1}}'
    first = publishing.row(worker, 2)
    assert publishing.row(worker, 2) is first
    assert first["phase_seconds"] == {"update": 2.0}
    worker.store.read.assert_called_once_with("run", 2, "metrics.json")
