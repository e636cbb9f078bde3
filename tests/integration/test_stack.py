"""`make up` for real: every service answers, works with the others, and ends without a trace."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
import psutil
import pytest

from infra.embedded import processes, zombies
from infra.embedded.stack import BUCKET, SERVICES, Stack

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]
FLOW = """
import os
from prefect import flow, task

@task
def double(x: int) -> int:
    return 2 * x

@flow(name="doubling")
def doubling(x: int, out: str) -> None:
    with open(out, "w") as file:
        file.write(f"{double(x)} {os.environ['MLFLOW_TRACKING_URI']} {os.environ['PREFECT_FLOWS_HEARTBEAT_FREQUENCY']}")
"""


@dataclass
class Running:
    stack: Stack
    process: subprocess.Popen[str]
    environment: dict[str, str]
    ports: tuple[int, int, int]

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run([sys.executable, "-m", "infra.embedded", *arguments], self.environment, ROOT)


def run(command: list[str], environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def wait_for(check: Any, seconds: float) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := check()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(1)
    return value


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    home = tmp_path_factory.mktemp("home")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PREFECT_", "MLFLOW_", "AWS_", "_MLFLOW"))
    }
    environment = {**kept, "ROLEAGENT_HOME": str(home), "COLUMNS": "200"}
    prefect, mlflow, s3 = free_ports(3)
    command = [
        *(sys.executable, "-m", "infra.embedded", "up"),
        *("--prefect-port", str(prefect), "--mlflow-port", str(mlflow), "--s3-port", str(s3)),
    ]
    with (home / "up.log").open("w") as log:
        process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=log, stderr=log, text=True)
    try:
        wait_for(lambda: process.poll() is not None or "Ctrl-C" in (home / "up.log").read_text(), 480)
        assert process.poll() is None, (home / "up.log").read_text()
        yield Running(Stack(home, ROOT), process, environment, (prefect, mlflow, s3))
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(120)
        run([sys.executable, "-m", "infra.embedded", "down"], environment, ROOT)


def test_every_address_answers(running: Running) -> None:
    assert [service.name for service in running.stack.status()] == list(SERVICES)
    assert all(service.running and service.memory_mb > 10 for service in running.stack.status())
    addresses = running.stack.addresses
    assert processes.answers(f"{addresses['prefect']}/api/health")
    with urllib.request.urlopen(f"{addresses['prefect']}/ui-settings", timeout=10) as answer:
        assert json.load(answer)["api_url"] == "/api"  # the pages find their server on any port
    assert processes.answers(addresses["prefect"])  # the web interface
    assert processes.answers(addresses["mlflow"])
    shown = running.command("status")
    assert shown.returncode == 0
    assert all(address in shown.stdout for address in addresses.values())


def test_only_loopback_listens(running: Running) -> None:
    for name in SERVICES:
        leader = processes.find(running.stack.folder, name)
        assert leader is not None
        for process in (leader, *leader.children(recursive=True)):
            for connection in process.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    assert connection.laddr.ip == "127.0.0.1", (name, connection.laddr)


def test_credentials_are_for_the_owner_and_never_shown(running: Running) -> None:
    path = running.stack.folder / "env"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    secret = running.stack.environment()["AWS_SECRET_ACCESS_KEY"]
    assert len(secret) > 20
    assert secret in path.read_text()
    texts = [log.read_text(errors="replace") for log in running.stack.folder.glob("*.log")]
    texts += [(running.stack.home / "up.log").read_text(), running.command("status").stdout]
    assert not any(secret in text for text in texts)


def test_a_second_stack_and_a_taken_port_are_refused(running: Running, tmp_path: Path) -> None:
    second = running.command("up")
    assert second.returncode == 2
    assert "the stack is up already" in second.stderr
    other = {**running.environment, "ROLEAGENT_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "infra.embedded", "up", "--prefect-port", str(running.ports[0])]
    taken = run(command, other, ROOT)
    assert taken.returncode == 2
    assert f"port {running.ports[0]} for prefect is taken" in taken.stderr
    assert "--prefect-port" in taken.stderr
    assert all(service.running for service in running.stack.status())


def test_the_flows_are_deployed_with_their_schedule_and_form(running: Running) -> None:
    api = running.stack.prefect_api
    train = zombies.request(api, "GET", "/deployments/name/train/train")
    assert train["pull_steps"] == [{"prefect.deployments.steps.set_working_directory": {"directory": str(ROOT)}}]
    assert train["work_pool_name"] == "cpu"
    field = train["parameter_openapi_schema"]["definitions"]["LearnerConfig"]["properties"]["learning_rate"]
    assert field["exclusiveMinimum"] == 0
    assert field["description"]
    nightly = zombies.request(api, "GET", "/deployments/name/nightly/nightly")
    (schedule,) = nightly["schedules"]
    assert (schedule["active"], schedule["schedule"]["cron"]) == (True, "0 2 * * *")


def test_the_worker_runs_a_deployment_with_the_stack_in_its_environment(running: Running, tmp_path: Path) -> None:
    (tmp_path / "doubling.py").write_text(FLOW)
    pull = [{"prefect.deployments.steps.set_working_directory": {"directory": str(tmp_path)}}]
    deployment = {"name": "doubling", "entrypoint": "doubling.py:doubling", "work_pool": {"name": "cpu"}}
    (tmp_path / "prefect.yaml").write_text(json.dumps({"pull": pull, "deployments": [deployment]}))
    environment = {**running.environment, **running.stack.environment(), "PREFECT_HOME": str(tmp_path / "prefect")}
    deployed = run([sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"], environment, tmp_path)
    assert deployed.returncode == 0, deployed.stdout + deployed.stderr
    api = running.stack.prefect_api
    identifier = zombies.request(api, "GET", "/deployments/name/doubling/doubling")["id"]
    out = tmp_path / "out.txt"
    started = zombies.request(
        api, "POST", f"/deployments/{identifier}/create_flow_run", {"parameters": {"x": 21, "out": str(out)}}
    )

    def state() -> str:
        name = str(zombies.request(api, "GET", f"/flow_runs/{started['id']}")["state_name"])
        return name if name in {"Completed", "Failed", "Crashed"} else ""

    assert wait_for(state, 240) == "Completed"
    assert out.read_text().split() == ["42", running.stack.addresses["mlflow"], str(zombies.HEARTBEAT_SECONDS)]


def test_mlflow_keeps_artifacts_in_s3(running: Running, tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from roleagent.tracking import Tracker\n"
        "from roleagent.config import TrackingConfig\n"
        f"t = Tracker(TrackingConfig(), Path({str(tmp_path)!r})); t.start_run('r-stack', 'stack', {{}})\n"
        "t.log_iteration(1, {'loss': 0.5}); t.log_text('kept in s3', 'note.txt'); print(t.mlflow_run_id); t.end()"
    )
    environment = {**running.environment, **running.stack.environment()}
    done = run([sys.executable, "-c", code], environment, tmp_path)
    assert done.returncode == 0, done.stderr
    keys = running.stack.environment()
    client = boto3.client(
        "s3",
        endpoint_url=keys["AWS_ENDPOINT_URL_S3"],
        aws_access_key_id=keys["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=keys["AWS_SECRET_ACCESS_KEY"],
        region_name=keys["AWS_DEFAULT_REGION"],
    )
    found = client.list_objects_v2(Bucket=BUCKET, Prefix="mlflow/")["Contents"]
    (key,) = [item["Key"] for item in found if item["Key"].endswith(f"{done.stdout.strip()}/artifacts/note.txt")]
    assert client.get_object(Bucket=BUCKET, Key=key)["Body"].read() == b"kept in s3"


def test_a_run_without_heartbeats_is_crashed(running: Running) -> None:
    api = running.stack.prefect_api
    known = zombies.request(api, "POST", "/automations/filter", {})
    assert [item["name"] for item in known] == [zombies.NAME]
    assert zombies.install(api, silence_seconds=10) == known[0]["id"]  # brought up to date, not made twice
    flow = zombies.request(api, "POST", "/flows/", {"name": "lost"})["id"]
    body = {"flow_id": flow, "state": {"type": "RUNNING", "name": "Running"}}
    lost, beating = (zombies.request(api, "POST", "/flow_runs/", body)["id"] for _ in range(2))

    def beat(identifier: str) -> None:
        event = {
            "occurred": datetime.now(UTC).isoformat(),
            "event": "prefect.flow-run.heartbeat",
            "resource": {"prefect.resource.id": f"prefect.flow-run.{identifier}"},
            "id": str(uuid.uuid4()),
        }
        zombies.request(api, "POST", "/events", [event])

    def state(identifier: str) -> str:
        return str(zombies.request(api, "GET", f"/flow_runs/{identifier}")["state_name"])

    beat(lost)

    def crashed() -> bool:
        beat(beating)
        return state(lost) == "Crashed"

    wait_for(crashed, 120)
    assert state(beating) == "Running"
    zombies.install(api)


def test_runs_of_an_earlier_life_are_swept(running: Running) -> None:
    api = running.stack.prefect_api
    flow = zombies.request(api, "POST", "/flows/", {"name": "earlier"})["id"]
    body = {"flow_id": flow, "state": {"type": "RUNNING", "name": "Running"}}
    lost = zombies.request(api, "POST", "/flow_runs/", {**body, "work_pool_name": "cpu"})
    task = {"flow_run_id": lost["id"], "task_key": "k", "dynamic_key": "0"}
    tracking = zombies.request(api, "POST", "/task_runs/", task)["id"]
    child = zombies.request(api, "POST", "/flow_runs/", {**body, "parent_task_run_id": tracking})
    elsewhere = zombies.request(api, "POST", "/flow_runs/", body)  # started from a shell: it may well be alive
    assert zombies.sweep(api, "cpu") == [lost["name"], child["name"]]
    assert zombies.sweep(api, "cpu") == []
    states = [zombies.request(api, "GET", f"/flow_runs/{r['id']}")["state_name"] for r in (lost, child, elsewhere)]
    assert states == ["Crashed", "Crashed", "Running"]


def test_ctrl_c_ends_everything(running: Running) -> None:
    leaders = [processes.find(running.stack.folder, name) for name in SERVICES]
    family = [member for leader in leaders if leader for member in (leader, *leader.children(recursive=True))]
    assert len(family) >= len(SERVICES)
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(120) == 0
    assert not [process for process in family if processes.alive(process)]
    assert processes.marked(running.stack.folder) == []
    for port in running.ports:
        processes.require_free_port(port, "a service", "--port")
    assert running.command("status").returncode == 1
    assert (running.stack.folder / "prefect" / "prefect.db").is_file()  # data stay
