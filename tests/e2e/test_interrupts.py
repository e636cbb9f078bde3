"""A run that is interrupted, killed and resumed ends as one that never was."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.support.commands import BIN, ROOT, Trained, command, environment

pytestmark = pytest.mark.timeout(1200)

RUN = "Interrupted_Run"  # Prefect takes no such names: keys of its artifacts are made of it


class Running:
    """A training that goes on in the background, in a session of its own as in a terminal."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self._log = home.parent / "stderr.txt"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [str(BIN / "roleagent"), *arguments],
                cwd=ROOT,
                env=environment(home),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )

    @property
    def told(self) -> str:
        """What it has written to standard error."""
        return self._log.read_text(encoding="utf-8")

    def wait_for(self, pattern: str) -> None:
        """Wait until it has written what the pattern matches."""
        deadline = time.monotonic() + 600
        while not re.search(pattern, self.told):
            assert self.process.poll() is None, self.told
            assert time.monotonic() < deadline, self.told
            time.sleep(0.1)

    def end(self, number: signal.Signals) -> int:
        """Send a signal to the whole group, as a terminal does, and return the exit status."""
        os.killpg(self.process.pid, number)
        return self.process.wait(timeout=120)


def servers(home: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if "flows.local_server" in process.cmdline() and process.environ()["ROLEAGENT_HOME"] == str(home):
                found.append(process)
        except (psutil.Error, KeyError):
            continue
    return found


def test_interrupted_killed_and_resumed_is_the_same_run(trained: Trained, tmp_path: Path) -> None:
    home = tmp_path / "home"

    first = Running(home, "train", "--preset", "smoke", "--seed", "1", "--run-id", RUN)
    first.wait_for("before training:  held-out")
    time.sleep(0.5)  # into the first iteration
    assert first.end(signal.SIGINT) == 130
    assert first.told.splitlines()[-1] == f"interrupted; go on with: roleagent resume {RUN}"
    assert "Traceback" not in first.told
    assert not servers(home)
    listed = command([str(BIN / "roleagent"), "runs"], home).stdout
    assert f"{RUN}" in listed
    assert "interrupted" in listed

    second = Running(home, "resume", RUN)
    second.wait_for(r"  [12]/3  ")  # a fast machine may have committed one before the interrupt
    refused = command([str(BIN / "roleagent"), "resume", RUN], home)
    assert refused.returncode == 2
    assert f"run {RUN} is being trained by process {second.process.pid}" in refused.stderr
    assert second.end(signal.SIGKILL) == -signal.SIGKILL
    deadline = time.monotonic() + 60
    while servers(home):
        assert time.monotonic() < deadline, "Prefect's server outlives a run that was killed"
        time.sleep(0.2)

    done = command([str(BIN / "roleagent"), "resume", RUN], home)
    assert done.returncode == 0, done.stderr
    resumed, whole = Trained(home, RUN, done.stdout, done.stderr), trained
    after, before = (run.json("runs", "show", run.run_id, "--json") for run in (resumed, whole))
    same = ("status", "iterations", "heldout", "train_success", "prediction_match", "failure_types", "bank_size")
    assert {key: after[key] for key in same} == {key: before[key] for key in same}
    assert weights(after["checkpoint"]) == weights(before["checkpoint"])


def weights(checkpoint: str) -> str:
    return hashlib.sha256((Path(checkpoint) / "model.safetensors").read_bytes()).hexdigest()


def test_sigterm_is_as_ctrl_c(tmp_path: Path) -> None:
    run = Running(tmp_path / "home", "train", "--preset", "smoke", "--run-id", RUN)
    run.wait_for("before training: load the policy")
    run.process.terminate()
    assert run.process.wait(timeout=120) == 143
    assert run.told.splitlines()[-1] == f"terminated; go on with: roleagent resume {RUN}"


def test_an_error_inside_the_flow_is_one_line(tmp_path: Path) -> None:
    # The folder passes for a model's until it is loaded, which happens in a Prefect task.
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}", encoding="utf-8")
    done = command(
        [str(BIN / "roleagent"), "train", "--preset", "smoke", "--set", f"policy.model={model}"], tmp_path / "home"
    )
    assert done.returncode == 2
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert lines[-1].startswith(f"error: cannot load model '{model}': ")
    assert len(lines) == 3  # which run, what it was doing, the error
