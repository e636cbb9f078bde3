"""One process, and one object in it, uses a folder at a time."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

from roleagent.errors import BankError

_held: set[Path] = set()  # POSIX locks do not stop the process that holds them from locking again
_held_mutex = threading.Lock()


class FolderLock:
    """An advisory lock on a file in the folder.

    The kernel frees it when the process ends, however it ends. It is a POSIX lock, so child processes that were forked
    meanwhile and outlive this one do not keep it.
    """

    def __init__(self, path: Path, what: str) -> None:
        """Take the lock at once.

        Args:
            path: the lock file; made if it is not there, and never removed.
            what: what it guards, for the error.

        Raises:
            BankError: somebody else holds it.
        """
        self._path = path.resolve()
        self._descriptor = -1
        with _held_mutex:
            if self._path in _held:
                raise BankError(f"{what} is already open in this process; close it there first")
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError) as error:
                holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
                os.close(descriptor)
                raise BankError(f"{what} is in use by process {holder}; wait until it ends, or stop it") from error
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            _held.add(self._path)
            self._descriptor = descriptor

    def release(self) -> None:
        """Free the lock; a second call does nothing."""
        with _held_mutex:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1
                _held.discard(self._path)
