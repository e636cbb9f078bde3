"""Child processes that begin with everything imported: forked from one prepared process.

`start(function, ...)` runs a function of a module in such a child. What it returns, or the error it raised, comes
back; a child that was killed has neither. The prepared process is one of Python's own fork server.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_CONTEXT = multiprocessing.get_context("forkserver")
_ENVIRONMENT = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended."""

    code: int  #: exit status; -9 when it was killed
    value: Any = None  #: what the function returned
    error: str = ""  #: name of the error's class; "" if none was raised
    message: str = ""  #: the error's text
    trace: str = ""

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL

    def result(self) -> Any:
        """Return the value, or fail with the child's traceback."""
        assert self.code == 0, f"the child ended with {self.code}"
        assert not self.error, self.trace
        return self.value


class Child:
    """A running child."""

    def __init__(self, process: Any, pipe: Connection) -> None:
        self.process = process
        self._pipe = pipe

    def wait(self, seconds: float = 600.0) -> Ended:
        """Wait for the end. A child that takes longer is killed, and the test fails."""
        answer: dict[str, Any] = {}
        try:
            if not self._pipe.poll(seconds):
                self.process.kill()
                raise AssertionError(f"a child did not end within {seconds:g} s")
            answer = pickle.loads(self._pipe.recv_bytes())
        except EOFError:
            pass  # it was killed
        finally:
            self.process.join()
            self._pipe.close()
        return Ended(self.process.exitcode, **answer)


def start(function: Callable[..., Any], *args: Any, environment: dict[str, str] | None = None, **options: Any) -> Child:
    """Run a module's function in a child with these environment variables; the child stays in its own folder."""
    _start_server()
    receiver, sender = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_run, args=(sender, function, args, options, environment or {}))
    process.start()
    sender.close()  # so that the pipe ends with the child
    return Child(process, receiver)


def run(function: Callable[..., Any], *args: Any, environment: dict[str, str] | None = None, **options: Any) -> Ended:
    """Run a module's function in a child and wait for its end."""
    return start(function, *args, environment=environment, **options).wait()


def _start_server() -> None:
    _CONTEXT.set_forkserver_preload(["tests.support.preload"])
    before = {name: os.environ.get(name) for name in _ENVIRONMENT}
    path = os.pathsep.join([_ENVIRONMENT["PYTHONPATH"], *filter(None, [before["PYTHONPATH"]])])
    os.environ.update(_ENVIRONMENT | {"PYTHONPATH": path})
    try:
        forkserver.ensure_running()
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value


def _run(
    pipe: Connection,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    options: dict[str, Any],
    environment: dict[str, str],
) -> None:
    os.environ.update(environment)
    assert "tests.support.preload" in sys.modules, "the fork server could not import tests.support.preload"
    try:
        answer = {"value": function(*args, **options)}
    except BaseException as error:
        answer = {"error": type(error).__name__, "message": str(error), "trace": traceback.format_exc()}
    pipe.send_bytes(pickle.dumps(answer))
    pipe.close()
