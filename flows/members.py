"""The runs of an ablation as processes: started, followed and ended. `flows.member` is the other end.

A process gets a descriptor to which it writes what happens, one JSON object a line, and a pipe as its standard input
that is held here and never written to.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from roleagent.ablation.events import ablation_listener
from roleagent.ablation.machine import Slots
from roleagent.ablation.plan import Member, Plan
from roleagent.errors import RoleAgentError, shortened

_PATIENCE_SECONDS = 20.0  # for a run that was told to end
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
_REASON = 300  # characters


class MemberFailed(RoleAgentError):
    """A run ended without finishing; the message says why and names its log."""

    transient = False


class MemberStopped(MemberFailed):
    """A run was ended because the ablation was."""


class MemberLost(MemberFailed):
    """A run's process was killed from outside. It goes on from its last commit when it is started again."""

    transient = True


class Members:
    """Starts runs as processes, follows them, and ends them all."""

    def __init__(self, plan: Plan, slots: Slots) -> None:
        self._plan, self._slots = plan, slots
        self._lock = threading.Lock()
        self._running: dict[int, subprocess.Popen[bytes]] = {}  # by place
        self._stopping = False

    def run(self, member: Member) -> None:
        """Train a run to its end, in a process; it takes one of the machine's places for that time.

        Raises:
            MemberFailed: it did not finish.
        """
        log = self._plan.log(member.run_id)
        with log.open("ab") as file:
            receiver, sender = os.pipe()
            with self._lock:
                if self._stopping:
                    os.close(receiver)
                    os.close(sender)
                    raise MemberStopped("the ablation was stopped")
                place = next(n for n in range(len(self._running) + 1) if n not in self._running)
                process = subprocess.Popen(
                    [sys.executable, "-m", "flows.member", str(self._plan.folder), member.run_id, str(sender)],
                    stdin=subprocess.PIPE,
                    stdout=file,
                    stderr=file,
                    pass_fds=(sender,),
                    env=self._environment(place),
                    start_new_session=True,  # Ctrl-C in a terminal reaches the ablation alone, which then ends them
                )
                self._running[place] = process
        os.close(sender)
        ablation_listener().member_started(member)
        try:
            with os.fdopen(receiver, encoding="utf-8", errors="replace") as events:
                for line in events:
                    _tell(member, line)
            status = process.wait()
        finally:
            if process.poll() is None:
                process.kill()
            with self._lock:
                del self._running[place]
            if process.stdin:
                process.stdin.close()
        if status:
            raise self._failure(status, log)

    def stop(self) -> None:
        """End every run: asked first, so that each can record that it was interrupted, then killed."""
        with self._lock:
            self._stopping = True
            running = list(self._running.values())
        for process in running:
            process.terminate()
        for process in running:
            try:
                process.wait(timeout=_PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()

    def _environment(self, place: int) -> dict[str, str]:
        found = {**os.environ, **dict.fromkeys(_THREADS, str(self._slots.threads))}
        if self._slots.gpus:
            found["CUDA_VISIBLE_DEVICES"] = self._slots.gpus[place % len(self._slots.gpus)]
        return found

    def _failure(self, status: int, log: Path) -> MemberFailed:
        if self._stopping:
            return MemberStopped("the ablation was stopped")
        if status < 0:
            return MemberLost(f"its process was ended by {_signal(-status)}")
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines() or [f"it ended with status {status}"]
        return MemberFailed(shortened(lines[-1].removeprefix("error: "), _REASON))


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _tell(member: Member, line: str) -> None:
    try:
        event = json.loads(line)
        n, kind = int(event["iteration"]), event["event"]
        if kind == "phase":
            ablation_listener().member_phase(member, n, str(event["phase"]))
        elif kind == "iteration":
            ablation_listener().member_iteration(member, n, event["metrics"])
    except (ValueError, KeyError, TypeError):
        return  # a line that was cut off when its process died
