"""Child processes that outlive the command that started them: pid files, health, and a clean end.

Every service leads a process group of its own, so that Ctrl-C in the terminal reaches only the stack, which then ends
them in order. A pid file holds the process id and its start time: an id that the system has given to another program
since is never signalled.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import psutil

HOST = "127.0.0.1"
MARK = "ROLEAGENT_STACK"  #: environment variable by which a stack knows its processes again


class StackError(RuntimeError):
    """The stack cannot start or is not there; the message is one line that says how to mend it."""


def start(name: str, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> psutil.Process:
    """Start a service in a session of its own; its output goes to `<folder>/<name>.log`, its id to `<name>.pid`."""
    with (folder / f"{name}.log").open("ab") as log:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            env={**environment, MARK: str(folder)},
            start_new_session=True,
        )
    process = psutil.Process(child.pid)
    write_pid(folder, name, process)
    return process


def write_pid(folder: Path, name: str, process: psutil.Process) -> None:
    """Note which process a service is."""
    (folder / f"{name}.pid").write_text(f"{process.pid} {process.create_time():.2f}\n", encoding="utf-8")


def find(folder: Path, name: str) -> psutil.Process | None:
    """Return the living process of a service, or None."""
    try:
        pid, created = (folder / f"{name}.pid").read_text(encoding="utf-8").split()
        process = psutil.Process(int(pid))
        same = abs(process.create_time() - float(created)) < 1.5
    except (OSError, ValueError, psutil.NoSuchProcess):
        return None
    return process if same and alive(process) else None


def alive(process: psutil.Process) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def stop(leaders: Sequence[psutil.Process], timeout: float = 20.0) -> None:
    """End services with all their descendants: SIGTERM to their groups, SIGKILL to what is left after `timeout` s."""
    family = list(leaders)
    for leader in leaders:
        with contextlib.suppress(psutil.NoSuchProcess):
            family += leader.children(recursive=True)
    groups = {group for member in family if (group := _group(member))}  # a worker's flow runs lead groups of their own
    _signal(groups, signal.SIGTERM)
    _, left = psutil.wait_procs(family, timeout=timeout)
    for member in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    _signal(groups, signal.SIGKILL)
    psutil.wait_procs(left, timeout=5)


def marked(folder: Path) -> list[psutil.Process]:
    """Return the processes that a stack started, their descendants and orphans: they carry its folder in MARK."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(MARK) == str(folder) and alive(process):
                found.append(process)
    return found


def _group(process: psutil.Process) -> int:
    """The process group that a process leads, 0 if it leads none."""
    try:
        return process.pid if os.getpgid(process.pid) == process.pid else 0
    except ProcessLookupError:
        return 0


def _signal(groups: Iterable[int], number: signal.Signals) -> None:
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)


def wait_until(check: Callable[[], bool], process: psutil.Process, what: str, log: Path, timeout: float) -> None:
    """Wait for a service to answer; raise StackError when it ends, or does not answer in time."""
    deadline = time.monotonic() + timeout
    while not check():
        if not alive(process):
            raise StackError(f"{what} ended while starting: {last_line(log)} (see {log})")
        if time.monotonic() > deadline:
            raise StackError(f"{what} did not answer within {timeout:.0f} s (see {log})")
        time.sleep(0.25)


def answers(address: str) -> bool:
    """Whether an HTTP address answers with success within two seconds."""
    try:
        with urllib.request.urlopen(address, timeout=2) as response:
            return bool(response.status < 400)
    except (OSError, ValueError):
        return False


def last_line(log: Path) -> str:
    """Return the last line of a log that says something."""
    with contextlib.suppress(OSError):
        lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
        return next((line[:200] for line in reversed(lines) if line), "it wrote nothing")
    return "it wrote nothing"


def require_free_port(port: int, what: str, option: str) -> None:
    """Raise StackError, naming who holds it, when a port of this machine is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise StackError(
                f"port {port} for {what} is taken{_holder(port)}: stop that program, or choose another by {option}"
            ) from error


def _holder(port: int) -> str:
    try:
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN and connection.pid
            if listens and getattr(connection.laddr, "port", 0) == port:
                return f" by {psutil.Process(connection.pid).name()} (process {connection.pid})"
    except psutil.Error:
        return ""
    return ""
