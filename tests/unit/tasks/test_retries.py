"""A phase is run again only where that may help."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest
from prefect.states import Failed

from roleagent.errors import CommitConflict, ConfigError, DataQualityError, RoleAgentError, StorageError
from roleagent.storage import MissingStoreError
from roleagent.storage.object_store import UnreachableStoreError
from tasks import common
from tasks.rollout import roll_out
from tasks.update import update


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (UnreachableStoreError("no answer"), True),
        (ConnectionResetError("by peer"), True),
        (RuntimeError("of a library"), True),
        (StorageError("the disk is full"), False),
        (MissingStoreError("not there"), False),
        (CommitConflict("taken over"), False),
        (DataQualityError("bad rows"), False),
        (ConfigError("unknown"), False),
        (RoleAgentError("any other"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_which_errors_are_worth_another_try(error: Exception, again: bool) -> None:
    assert common.may_help(MagicMock(), MagicMock(), Failed(data=error)) is again


def test_the_phases_ask() -> None:
    for task in (roll_out, update):
        assert task.retries == 2
        assert task.retry_condition_fn is common.may_help
