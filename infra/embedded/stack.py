"""The services of `make up`, all on 127.0.0.1: S3, the Prefect server, the MLflow server, a Prefect worker.

Everything lies in one folder, `stack` in ROLEAGENT_HOME: data, logs (`<service>.log`), process ids (`<service>.pid`)
and `env`, a file for the shell that only its owner can read. Credentials are made once and are never printed.
MLflow's database is the one that runs without a server write to, so earlier runs are seen too.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from infra.embedded import processes, zombies
from infra.embedded.processes import HOST, StackError
from infra.embedded.s3 import EmbeddedS3, EmbeddedS3Error
from roleagent.loop.home import home as roleagent_home
from roleagent.policy.threads import limit_spinning

BUCKET = "roleagent"
POOL = "cpu"
SERVICES = ("s3", "prefect", "mlflow", "worker")
ENDING = (("worker",), ("mlflow", "prefect", "s3"))  #: the worker's runs still need the others
_QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # background jobs of hosted judges: nothing here uses them
}
# By default every event of a task is a transaction of its own. On SQLite that keeps a run that follows nine tasks
# waiting for two seconds (measured); written together once a second, for 0.3 s.
_SERVER = {
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "200",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "200",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
}
_START_SECONDS = 240.0


@dataclass(frozen=True, slots=True)
class Ports:
    """Ports on 127.0.0.1."""

    prefect: int = 4200
    mlflow: int = 5000
    s3: int = 8333


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """What `status` shows of a service."""

    name: str
    running: bool
    pid: int  #: 0 when it does not run
    address: str
    memory_mb: float  #: resident memory of it and its descendants


class Stack:
    """The stack of one home folder."""

    def __init__(self, home: Path | None = None, project: Path | None = None) -> None:
        """Name the home folder (ROLEAGENT_HOME by default) and the project's root, where prefect.yaml lies."""
        self.home = home or roleagent_home()
        self.folder = self.home / "stack"
        self.project = project or Path(__file__).parents[2]
        self._ports = self._saved_ports()

    # -- addresses -----------------------------------------------------------------------------------------------

    @property
    def prefect_api(self) -> str:
        """Prefect's API."""
        return f"http://{HOST}:{self._ports.prefect}/api"

    @property
    def addresses(self) -> dict[str, str]:
        """Address of each service; the worker has none and names its pool."""
        return {
            "prefect": f"http://{HOST}:{self._ports.prefect}",
            "mlflow": f"http://{HOST}:{self._ports.mlflow}",
            "s3": f"http://{HOST}:{self._ports.s3}",
            "worker": f"pool {POOL}",
        }

    def environment(self) -> dict[str, str]:
        """Return the variables with which a program uses the stack; credentials are among them."""
        return {
            "ROLEAGENT_HOME": str(self.home),
            "PREFECT_API_URL": self.prefect_api,
            "MLFLOW_TRACKING_URI": self.addresses["mlflow"],
            "AWS_ENDPOINT_URL_S3": self.addresses["s3"],
            **self._s3_server().environment(),
        }

    # -- life ----------------------------------------------------------------------------------------------------

    def up(self, ports: Ports, *, deploy: bool = True, tell: Callable[[str], None] = lambda _text: None) -> None:
        """Start every service and wait until all of them answer; end what was started when one does not.

        Raises:
            StackError: the folder cannot be written, the stack runs already, a port is taken or given twice, or a
                service does not come up.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.folder.chmod(0o700)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise StackError(f"cannot write {self.folder}: {reason}; set ROLEAGENT_HOME to another folder") from error
        if len(set(asdict(ports).values())) < len(asdict(ports)):
            raise StackError("two services have the same port; give each one of its own")
        with self._lock():
            running = [service.name for service in self.status() if service.running]
            if running:
                raise StackError(f"the stack is up already ({', '.join(running)}): `down` ends it, `status` shows it")
            for name in ("prefect", "mlflow", "s3"):
                processes.require_free_port(getattr(ports, name), name, f"--{name}-port")
            (self.folder / "stopping").unlink(missing_ok=True)
            self._ports = ports
            (self.folder / "ports.json").write_text(json.dumps(asdict(ports)), encoding="utf-8")
            try:
                self._start_all(deploy, tell)
            except (StackError, EmbeddedS3Error, OSError, KeyboardInterrupt) as error:
                self._stop_all(tell)
                if isinstance(error, (StackError, KeyboardInterrupt)):
                    raise
                raise StackError(" ".join(str(error).split())) from error

    def down(self, tell: Callable[[str], None] = lambda _text: None) -> list[str]:
        """End every service that runs, the worker first; return their names. Data stay."""
        return self._stop_all(tell)

    def status(self) -> list[ServiceStatus]:
        """Return the state of every service."""
        found = []
        for name in SERVICES:
            process = processes.find(self.folder, name)
            found.append(
                ServiceStatus(
                    name, process is not None, process.pid if process else 0, self.addresses[name], _memory_mb(process)
                )
            )
        return found

    def watch(self, seconds: float = 1.0) -> str:
        """Block until a service has ended; return its name, or "" when `down` from another terminal ends them."""
        while True:
            ended = next((name for name in SERVICES if processes.find(self.folder, name) is None), None)
            if (self.folder / "stopping").exists():
                return ""
            if ended is not None:
                return ended
            time.sleep(seconds)

    # -- the services --------------------------------------------------------------------------------------------

    def _start_all(self, deploy: bool, tell: Callable[[str], None]) -> None:
        tell("starting the Prefect server")
        prefect = self._start_prefect()
        tell("starting the S3 server")
        server = EmbeddedS3()
        server.start(self.folder / "s3", port=self._ports.s3)
        processes.write_pid(self.folder, "s3", psutil.Process(server.pid))
        self._make_bucket()
        self._write_environment()
        tell("starting the MLflow server")
        mlflow = self._start_mlflow()
        self._await("prefect", prefect, f"{self.prefect_api}/health")
        zombies.install(self.prefect_api)
        zombies.sweep(self.prefect_api, POOL)
        tell("starting the worker")
        worker = self._start_worker()
        self._await("mlflow", mlflow, f"{self.addresses['mlflow']}/health")
        processes.wait_until(self._worker_is_online, worker, "the worker", self.folder / "worker.log", _START_SECONDS)
        if deploy:
            tell("deploying the flows")
            self._deploy()

    def _await(self, name: str, process: psutil.Process, address: str) -> None:
        log = self.folder / f"{name}.log"
        processes.wait_until(lambda: processes.answers(address), process, f"the {name} server", log, _START_SECONDS)

    def _start_prefect(self) -> psutil.Process:
        command = [
            sys.executable,
            "-m",
            "prefect",
            "server",
            "start",
            "--host",
            HOST,
            "--port",
            str(self._ports.prefect),
        ]
        return processes.start("prefect", command, {**_SERVER, **self._prefect_environment()}, self.folder)

    def _start_mlflow(self) -> psutil.Process:
        command = [
            *(sys.executable, "-m", "infra.embedded.mlflow_server", str(self.home / "mlflow.db")),
            *("--host", HOST, "--port", str(self._ports.mlflow), "--workers", "1"),
            *("--artifacts-destination", f"s3://{BUCKET}/mlflow"),
        ]
        environment = {
            **os.environ,
            **_QUIET,
            **self._s3_server().environment(),
            "MLFLOW_S3_ENDPOINT_URL": self.addresses["s3"],
        }
        return processes.start("mlflow", command, environment, self.folder)

    def _start_worker(self) -> psutil.Process:
        command = [
            *(sys.executable, "-m", "prefect", "worker", "start", "--pool", POOL, "--type", "process"),
            *("--name", "local", "--limit", "1"),  # training fills a machine: runs queue up
        ]
        environment = {
            **self._prefect_environment(),
            **self.environment(),
            "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(zombies.HEARTBEAT_SECONDS),
        }
        limit_spinning(environment)  # the servers are on the same cores
        return processes.start("worker", command, environment, self.folder)

    def _worker_is_online(self) -> bool:
        try:
            workers = zombies.request(self.prefect_api, "POST", f"/work_pools/{POOL}/workers/filter", {})
        except OSError:
            return False  # the worker makes its pool when it starts
        return any(worker["status"] == "ONLINE" for worker in workers)

    def _deploy(self) -> None:
        if not (self.project / "prefect.yaml").is_file():
            return
        command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
        environment = {**self._prefect_environment(), "PREFECT_API_URL": self.prefect_api, "PWD": str(self.project)}
        done = subprocess.run(
            command,
            cwd=self.project,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_START_SECONDS,
            check=False,
        )
        log = self.folder / "deploy.log"
        log.write_text(done.stdout + done.stderr, encoding="utf-8")
        if done.returncode != 0:
            raise StackError(f"the flows could not be deployed: {processes.last_line(log)} (see {log})")

    def _prefect_environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_API")}
        # The pages ask the server that they come from, whatever its port and name are in the browser.
        own = {"PREFECT_HOME": str(self.folder / "prefect"), "PREFECT_UI_API_URL": "/api"}
        return {**kept, **_QUIET, **own}

    def _make_bucket(self) -> None:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError

        keys = self._s3_server().environment()
        client = boto3.client(
            "s3",
            endpoint_url=self.addresses["s3"],
            aws_access_key_id=keys["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=keys["AWS_SECRET_ACCESS_KEY"],
            region_name=keys["AWS_DEFAULT_REGION"],
            config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 5, "mode": "standard"}),
        )
        try:
            if BUCKET not in {bucket["Name"] for bucket in client.list_buckets()["Buckets"]}:
                client.create_bucket(Bucket=BUCKET)
        except (BotoCoreError, ClientError) as error:
            raise StackError(f"the bucket {BUCKET} could not be made: {error}") from error

    def _write_environment(self) -> None:
        path = self.folder / "env"
        lines = [f"export {name}={shlex.quote(value)}" for name, value in self.environment().items()]
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write("\n".join(lines) + "\n")

    def _s3_server(self) -> EmbeddedS3:
        server = EmbeddedS3()
        server.folder = self.folder / "s3"
        return server

    def _stop_all(self, tell: Callable[[str], None]) -> list[str]:
        if not self.folder.is_dir():
            return []
        (self.folder / "stopping").touch()  # tells a watching `up` that the end is wanted
        ended = []
        for names in ENDING:
            running = {name: process for name in names if (process := processes.find(self.folder, name))}
            if running:
                tell(f"stopping {', '.join(running)}")
                processes.stop(list(running.values()))
                ended += list(running)
            for name in names:
                (self.folder / f"{name}.pid").unlink(missing_ok=True)
        processes.stop(processes.marked(self.folder), timeout=5)  # a dead worker's runs, which nobody waits for
        return ended

    def _saved_ports(self) -> Ports:
        try:
            return Ports(**json.loads((self.folder / "ports.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return Ports()

    @contextmanager
    def _lock(self) -> Iterator[None]:
        with (self.folder / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise StackError("another `up` is starting the stack at this moment") from error
            yield


def running_environment(home: Path | None = None) -> dict[str, str]:
    """Return the variables of the stack that runs for a home folder; empty when none does."""
    stack = Stack(home)
    services = {service.name: service.running for service in stack.status()}
    return stack.environment() if services.get("prefect") and services.get("mlflow") and services.get("s3") else {}


def _memory_mb(process: psutil.Process | None) -> float:
    total = 0
    if process is not None:
        try:
            for member in (process, *process.children(recursive=True)):
                total += member.memory_info().rss
        except psutil.Error:
            return total / 2**20
    return total / 2**20
