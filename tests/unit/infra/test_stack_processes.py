"""Services start, are found again, and end with all that they started."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml

from infra.embedded import processes, zombies
from infra.embedded.processes import MARK, StackError
from infra.embedded.stack import Stack, running_environment
from roleagent.config import load_config
from roleagent.config.load import parse_config

ROOT = Path(__file__).parents[3]
# A service whose child leads a session of its own and, like the service, does not listen to SIGTERM when told so.
FAMILY = """
import signal, subprocess, sys, time
if sys.argv[1] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("ready", flush=True)
time.sleep(600)
"""


def start_family(folder: Path, mood: str) -> psutil.Process:
    leader = processes.start("family", [sys.executable, "-c", FAMILY, mood], os.environ, folder)
    log = folder / "family.log"
    processes.wait_until(lambda: "ready" in log.read_text(), leader, "the family", log, 30)
    return leader


@pytest.mark.parametrize("mood", ["obedient", "deaf"])
def test_stop_ends_a_service_and_its_descendants(tmp_path: Path, mood: str) -> None:
    leader = start_family(tmp_path, mood)
    (child,) = leader.children(recursive=True)
    assert os.getpgid(child.pid) != os.getpgid(leader.pid)
    processes.stop([leader], timeout=2)
    assert not processes.alive(leader)
    assert not processes.alive(child)


def test_orphans_of_a_killed_service_are_found_by_their_mark(tmp_path: Path) -> None:
    leader = start_family(tmp_path, "obedient")
    (child,) = leader.children(recursive=True)
    assert {process.pid for process in processes.marked(tmp_path)} == {leader.pid, child.pid}
    leader.kill()
    leader.wait(10)
    stack = Stack(tmp_path / "home", tmp_path)
    assert stack.down() == []  # another stack's orphans are left alone
    assert processes.alive(child)
    processes.stop(processes.marked(tmp_path), timeout=2)
    assert not processes.alive(child)


def test_a_pid_that_now_belongs_to_another_program_is_not_found(tmp_path: Path) -> None:
    me = psutil.Process()
    processes.write_pid(tmp_path, "me", me)
    assert processes.find(tmp_path, "me") == me
    (tmp_path / "me.pid").write_text(f"{me.pid} {me.create_time() - 100:.2f}\n")
    assert processes.find(tmp_path, "me") is None
    (tmp_path / "me.pid").write_text("nonsense")
    assert processes.find(tmp_path, "me") is None
    assert processes.find(tmp_path, "nobody") is None


def test_a_service_that_ends_while_starting_says_why(tmp_path: Path) -> None:
    failing = [sys.executable, "-c", "import sys; sys.exit('no such database')"]
    leader = processes.start("db", failing, os.environ, tmp_path)
    with pytest.raises(StackError, match=r"the db ended while starting: no such database \(see .*db.log\)"):
        processes.wait_until(lambda: False, leader, "the db", tmp_path / "db.log", 30)


def test_a_silent_service_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="did not answer within 1 s"):
        processes.wait_until(lambda: False, psutil.Process(), "it", tmp_path / "log", 1)


def test_a_taken_port_names_its_holder_and_the_option() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(StackError, match=rf"port {port} for mlflow .*process {os.getpid()}.*--mlflow-port"):
            processes.require_free_port(port, "mlflow", "--mlflow-port")
    processes.require_free_port(port, "mlflow", "--mlflow-port")


def test_watch_tells_a_wanted_end_from_a_failure(tmp_path: Path) -> None:
    stack = Stack(tmp_path, tmp_path)
    stack.folder.mkdir()
    assert stack.watch() == "s3"  # nothing runs
    stack.down()
    assert stack.watch() == ""


def test_no_stack_gives_no_environment(tmp_path: Path) -> None:
    assert running_environment(tmp_path / "nowhere") == {}
    assert not (tmp_path / "nowhere").exists()


def test_down_without_a_stack_says_so(tmp_path: Path) -> None:
    environment = {**os.environ, "ROLEAGENT_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "infra.embedded", "down"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "Nothing was running.")


def test_the_automation_outlasts_some_lost_heartbeats() -> None:
    trigger = zombies.automation()["trigger"]
    assert trigger["within"] >= 3 * zombies.HEARTBEAT_SECONDS
    assert set(trigger["after"]) < set(trigger["expect"])


def test_deployments_start_the_quickstart_preset() -> None:
    document = yaml.safe_load((ROOT / "prefect.yaml").read_text(encoding="utf-8"))
    train, nightly = document["deployments"]
    quickstart = load_config("quickstart")
    for deployment, name in ((train, "quickstart"), (nightly, "nightly")):
        config = parse_config(deployment["parameters"]["config"])
        assert config.storage.uri == "s3://roleagent/store"
        expected = quickstart.model_copy(update={"storage": config.storage, "name": name})
        assert config == expected, "prefect.yaml repeats the preset quickstart: change both"
        module, function = deployment["entrypoint"].split(":")
        assert f"def {function}(" in (ROOT / module).read_text(encoding="utf-8")


def test_the_mark_reaches_every_service(tmp_path: Path) -> None:
    leader = start_family(tmp_path, "obedient")
    assert leader.environ()[MARK] == str(tmp_path)
    os.killpg(leader.pid, signal.SIGKILL)
    time.sleep(0.1)
    processes.stop(processes.marked(tmp_path), timeout=2)
    assert processes.marked(tmp_path) == []
