"""Things that go wrong, at a chosen moment: a process that is killed, a disk that is full, bytes that change."""

from __future__ import annotations

import errno
import fnmatch
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

from roleagent.storage import ObjectStore
from roleagent.storage.local_store import LocalStore

Action = Callable[[], object]
Moment = Literal["before", "after"]


def kill() -> None:
    """End this process as `kill -9` does: no handler, no `finally`, nothing flushed."""
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class KillAt:
    """Kills the process when a phase of an iteration begins, or when it has done part of its work.

    A listener of the loop, and a `before` of `tests.support.loop.train`, which announces the phases that have no event.
    """

    iteration: int
    phase: str
    done: int = 0  #: episodes that are finished first

    def __call__(self, iteration: int, phase: str) -> None:
        if (iteration, phase, 0) == (self.iteration, self.phase, self.done):
            kill()

    def run_started(self, run_id: str, iterations: int, first: int) -> None: ...

    def phase_started(self, iteration: int, phase: str) -> None:
        self(iteration, phase)

    def phase_progress(self, iteration: int, phase: str, done: int, total: int) -> None:
        if self.done and (iteration, phase) == (self.iteration, self.phase) and done >= self.done:
            kill()

    def iteration_finished(self, iteration: int, metrics: Mapping[str, float]) -> None: ...

    def notice(self, text: str) -> None: ...


class FaultyStore:
    """An object store whose calls may have an accident: `strike` is called around each with its name and key."""

    def __init__(self, inner: ObjectStore, strike: Callable[[Moment, str, str], object]) -> None:
        self._inner = inner
        self._strike = strike

    def __getattr__(self, name: str) -> Any:
        inner = getattr(self._inner, name)
        if name not in {"put", "put_file", "get", "get_file", "delete", "list", "exists", "digest"}:
            return inner

        def call(key: str = "", *args: Any, **options: Any) -> Any:
            self._strike("before", name, key)
            result = inner(key, *args, **options)
            self._strike("after", name, key)
            return result

        return call


@contextmanager
def faulty_stores(strike: Callable[[Moment, str, str], object]) -> Iterator[None]:
    """Give every worker that is made in this block a store with accidents."""
    from roleagent.loop import worker

    opened = worker.open_store
    with patch.object(worker, "open_store", lambda *args: FaultyStore(opened(*args), strike)):
        yield


def at(moment: Moment, call: str, pattern: str, action: Action) -> Callable[[Moment, str, str], None]:
    """Return a `strike` that acts before or after a call on a key that the pattern (`*`, `?`) fits."""

    def strike(now: Moment, name: str, key: str) -> None:
        if (now, name) == (moment, call) and fnmatch.fnmatchcase(key, pattern):
            action()

    return strike


@contextmanager
def torn_write(name: str, action: Action) -> Iterator[None]:
    """Act in the middle of writing the local object `name` (a path's end): half of its bytes are on the disk."""
    rename = Path.replace

    def half(written: Path, target: Path) -> Path:
        if target.as_posix().endswith(name):
            os.truncate(written, written.stat().st_size // 2)
            action()
        return rename(written, target)

    with patch.object(Path, "replace", half):
        yield


class FullDisk:
    """A disk that takes nothing any more from the first write on whose key the pattern (`*`, `?`) fits."""

    def __init__(self, pattern: str, code: int = errno.ENOSPC) -> None:
        self._pattern = pattern
        self._code = code
        self._full = False

    @contextmanager
    def mounted(self) -> Iterator[None]:
        """Let local stores write to this disk."""
        write = LocalStore._write

        def refuse(_file: object) -> None:
            raise OSError(self._code, os.strerror(self._code))

        def filling(store: LocalStore, key: str, fill: Any, *, if_absent: bool) -> None:
            self._full = self._full or fnmatch.fnmatchcase(key, self._pattern)
            write(store, key, refuse if self._full else fill, if_absent=if_absent)

        with patch.object(LocalStore, "_write", filling):
            yield
