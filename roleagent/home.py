"""Where a machine keeps what Role-Agent writes: one folder, ROLEAGENT_HOME or `.roleagent`."""

from __future__ import annotations

import os
from pathlib import Path

from roleagent.errors import StorageError


def home() -> Path:
    """Return the absolute home folder. It is made when something is first written."""
    return Path(os.environ.get("ROLEAGENT_HOME") or ".roleagent").absolute()


def writable_home() -> Path:
    """Return the home folder, made if it was not there.

    Raises:
        StorageError: it cannot be made, or not be written.
    """
    folder = home()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise StorageError(f"cannot make {folder}: {reason}; set ROLEAGENT_HOME to a writable folder") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StorageError(f"{folder} is not writable; set ROLEAGENT_HOME to a folder that is")
    return folder
