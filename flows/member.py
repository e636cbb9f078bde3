"""One run of an ablation in a process of its own; `flows.members` starts it.

The process is `python -m flows.member FOLDER RUN_ID EVENTS`: it trains that run of the plan in FOLDER, or goes on with
it, and writes what happens to the file descriptor EVENTS, one JSON object a line. Its standard input is a pipe that
the parent holds and never writes to: when the parent is gone, however it went, the pipe ends, and so does the process,
at once. What it has not committed never happened.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from roleagent.ablation.plan import read_member


class _Events:
    """The listener of the run's own process: writes events for the parent."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def run_started(self, run_id: str, iterations: int, first: int) -> None: ...

    def phase_progress(self, iteration: int, phase: str, done: int, total: int) -> None: ...

    def phase_started(self, iteration: int, phase: str) -> None:
        self._write({"event": "phase", "iteration": iteration, "phase": phase})

    def iteration_finished(self, iteration: int, metrics: Mapping[str, float]) -> None:
        shown = {key: metrics[key] for key in ("success/train", "success/heldout") if key in metrics}
        self._write({"event": "iteration", "iteration": iteration, "metrics": shown})

    def notice(self, text: str) -> None:
        sys.stderr.write(f"note: {' '.join(text.split())}\n")

    def _write(self, event: dict[str, Any]) -> None:
        os.write(self._descriptor, (json.dumps(event) + "\n").encode())  # short enough to be written whole


def _end_with_parent() -> None:
    os.read(0, 1)  # returns when the last writer is gone
    os._exit(1)


def train_member(folder: Path, run_id: str, descriptor: int) -> int:
    """Train one run of a plan in this process; return 0."""
    from flows.launch import train
    from roleagent.loop.events import listening

    threading.Thread(target=_end_with_parent, daemon=True).start()
    member = read_member(folder, run_id)
    with listening(_Events(descriptor)):
        train(member.config, run_id)
    return 0


def main(arguments: list[str]) -> None:
    """Run `FOLDER RUN_ID EVENTS`; errors are one line on standard error, as those of the command line."""
    from roleagent.console.guard import end, guard, keep_quiet
    from roleagent.policy.threads import limit_spinning

    limit_spinning()
    keep_quiet()
    folder, run_id, descriptor = arguments
    end(guard(lambda: train_member(Path(folder), run_id, int(descriptor))))


if __name__ == "__main__":
    main(sys.argv[1:])
