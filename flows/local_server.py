"""A Prefect server for the time of one run, where the user has none.

It is Prefect's own temporary server, started in another way: in a session of its own, so that Ctrl-C in a terminal
reaches the run alone, which can then still report its end; and with an eye on the process that started it, so that
no server outlives a run that was killed. Started as `python -m flows.local_server PORT`.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from roleagent.errors import RoleAgentError

_HOST = "127.0.0.1"
_START_SECONDS = 180  # on a busy machine it takes half a minute
_WATCH_SECONDS = 1.0
_ENVIRONMENT = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}


class ServerError(RoleAgentError):
    """Prefect's server did not start; the message names its log."""


class LocalServer:
    """A server that is starting, or has started."""

    def __init__(self, process: subprocess.Popen[bytes], address: str, log: Path) -> None:
        self.address = address  #: of its API
        self._process, self._log = process, log

    def wait(self) -> None:
        """Wait until it answers.

        Raises:
            ServerError: it ended while starting, or did not answer in time.
        """
        deadline = time.monotonic() + _START_SECONDS
        while not _answers(self.address):
            status = self._process.poll()
            if status is not None:
                raise ServerError(f"Prefect's server ended with status {status} while starting (see {self._log})")
            if time.monotonic() > deadline:
                raise ServerError(f"Prefect's server did not answer within {_START_SECONDS} s (see {self._log})")
            time.sleep(0.1)


@contextmanager
def local_server(log: Path) -> Iterator[LocalServer]:
    """Run a server for the time of a block; it is still starting when the block begins."""
    log.parent.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    with log.open("wb") as file:
        server = subprocess.Popen(
            [sys.executable, "-m", "flows.local_server", str(port)],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env={**os.environ, **_ENVIRONMENT},
            start_new_session=True,
        )
    try:
        yield LocalServer(server, f"http://{_HOST}:{port}/api", log)
    finally:
        server.terminate()
        try:
            server.wait(timeout=5)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


def _end_with_parent() -> None:
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(_WATCH_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


def main(port: int) -> None:
    """Serve until the parent process ends or asks for the end."""
    import uvicorn

    threading.Thread(target=_end_with_parent, daemon=True).start()
    uvicorn.run("prefect.server.api.server:create_app", factory=True, host=_HOST, port=port, log_level="error")


if __name__ == "__main__":
    main(int(sys.argv[1]))
