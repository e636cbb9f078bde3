"""What stands in the way of a model of the hub: asked of a real server on this machine, once, and told in one line."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants

from roleagent import hub
from roleagent.agent_in_world.embedding import find_embedding_model
from roleagent.config import load_config
from roleagent.errors import BankError, PolicyError
from roleagent.loop import runs
from roleagent.policy.model import find_model
from tests.support.commands import BIN, command

ELSEWHERE = "download the model elsewhere and give its folder as policy.model"
FULL_CACHE = "copy a full cache here (HF_HOME) and set HF_HUB_OFFLINE=1"
COMMIT = "a" * 40


@dataclass
class Hub:
    """A hub whose models are named after what it answers."""

    url: str
    asked: list[str] = field(default_factory=list)


ANSWERS: dict[str, tuple[int, dict[str, str]]] = {
    "there": (200, {"X-Repo-Commit": COMMIT, "ETag": '"1"'}),
    "gated": (401, {"X-Error-Code": "GatedRepo"}),
    "misspelt": (401, {"X-Error-Code": "RepoNotFound"}),
    "empty": (404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT}),
    "token": (403, {}),
    "broken": (503, {}),
    "portal": (200, {}),
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A hub on this machine, and an empty cache."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            asked.append(self.path)
            status, headers = ANSWERS[self.path.split("/")[2]]
            self.send_response(status)
            for name, value in {**headers, "Content-Length": "2"}.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{listening.server_address[1]}"
        use(monkeypatch, url, tmp_path / "cache")
        yield Hub(url, asked)
        listening.shutdown()


def use(monkeypatch: pytest.MonkeyPatch, url: str, cache: Path, *, offline: bool = False) -> None:
    """Set what HF_ENDPOINT, HF_HUB_CACHE and HF_HUB_OFFLINE set, which are read once a process."""
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)


def put(cache: Path, *names: str) -> None:
    """Put files of the model `org/there` into the cache, as the hub's client lays them out."""
    folder = cache / "models--org--there"
    (folder / "refs").mkdir(parents=True, exist_ok=True)
    (folder / "refs" / "main").write_text(COMMIT, encoding="utf-8")
    (folder / "snapshots" / COMMIT).mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / "snapshots" / COMMIT / name).write_text("{}", encoding="utf-8")


def test_a_model_of_the_hub_is_asked_for_once_and_not_downloaded(server: Hub, tmp_path: Path) -> None:
    assert find_model("org/there") == "org/there"
    assert server.asked == ["/org/there/resolve/main/config.json"]
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("gated", "model 'org/gated' is gated: accept its terms at {url}/org/gated and set HF_TOKEN, or {elsewhere}"),
        ("misspelt", "{url} has no model 'org/misspelt': correct policy.model; to a private model, HF_TOKEN gives"),
        ("empty", "'org/empty' at {url} holds no model: config.json is missing; correct policy.model"),
        ("token", "{url} refuses the token in HF_TOKEN: correct or unset it, or {elsewhere}"),
        ("broken", "and {url} answers 503: check the network, or {elsewhere}, or {full}"),
        ("portal", "and {url} answers as no hub does: check the network, or {elsewhere}"),
    ],
)
def test_what_the_hub_answers_is_one_line_with_a_remedy(server: Hub, model: str, told: str) -> None:
    with pytest.raises(PolicyError) as caught:
        find_model(f"org/{model}")
    assert told.format(url=server.url, elsewhere=ELSEWHERE, full=FULL_CACHE) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(server.asked) == 1


def test_a_cached_model_is_not_asked_for(server: Hub, tmp_path: Path) -> None:
    put(tmp_path / "cache", "config.json")
    find_model("org/there")
    assert len(server.asked) == 1  # its weights are not there
    put(tmp_path / "cache", "model.safetensors")
    find_model("org/there")
    assert len(server.asked) == 1


def test_offline_only_the_cache_counts(server: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use(monkeypatch, server.url, tmp_path / "cache", offline=True)
    told = f"HF_HUB_OFFLINE=1 forbids to ask the hub: unset it, or {ELSEWHERE}"
    with pytest.raises(PolicyError, match=told):
        find_model("org/there")
    put(tmp_path / "cache", "config.json", "model.safetensors.index.json")
    assert find_model("org/there") == "org/there"
    assert server.asked == []


def test_nobody_there_is_told_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: the port refuses
        url = f"http://user:hunter2@127.0.0.1:{taken.getsockname()[1]}"
        use(monkeypatch, url, tmp_path)
        began = time.monotonic()
        with pytest.raises(PolicyError) as caught:
            find_model("org/there")
    assert time.monotonic() - began < 2
    shown = url.replace("user:hunter2", "***")
    assert str(caught.value) == (
        f"model 'org/there' is not in the cache of this machine, and {shown} does not answer (Connection refused): "
        f"check the network, or {ELSEWHERE}, or {FULL_CACHE}"
    )


def test_a_silent_hub_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(hub, "_SECONDS", 0.3)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        use(monkeypatch, f"http://127.0.0.1:{silent.getsockname()[1]}", tmp_path)
        began = time.monotonic()
        with pytest.raises(PolicyError, match="does not answer"):
            find_model("org/there")
    assert time.monotonic() - began < 3


def test_what_is_no_id_is_told(server: Hub) -> None:
    with pytest.raises(
        PolicyError, match=r"'a--b/c' is neither a folder nor an id as owner/name; correct policy.model"
    ):
        find_model("a--b/c")
    assert server.asked == []


def test_it_is_found_before_a_run_begins(server: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROLEAGENT_HOME", str(tmp_path / "home"))
    with pytest.raises(PolicyError, match="is gated"):
        runs.open_run(load_config("smoke", ["policy.model=org/gated"]))
    with pytest.raises(BankError, match=r"has no model 'org/misspelt': correct agent_in_world.embedding_model"):
        runs.open_run(load_config("smoke", ["agent_in_world.embedding_model=org/misspelt"]))
    assert find_embedding_model("org/there") == ("org/there", "org/there")
    assert not list((tmp_path / "home").rglob("*.json"))


def test_the_client_writes_to_the_log_alone(monkeypatch: pytest.MonkeyPatch, server: Hub) -> None:
    library = logging.getLogger("huggingface_hub")
    monkeypatch.setattr(library, "handlers", [logging.StreamHandler()])
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    hub.obstacle("org/there", "policy.model")
    assert len(library.handlers) == 1  # a program without a log of its own
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.NullHandler()])
    hub.obstacle("org/there", "policy.model")
    assert library.handlers == []
    assert library.propagate


def test_a_command_says_one_line(server: Hub, tmp_path: Path) -> None:
    more = {"HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "0"}
    train = [str(BIN / "roleagent"), "train", "--preset", "smoke", "--set", "policy.model=org/broken"]
    done = command(train, tmp_path / "home", more=more)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(
        "error: model 'org/broken' is not in the cache of this machine, and http://127.0.0.1:"
    )
    assert done.stderr.count("\n") == 1
    assert not list((tmp_path / "home").glob("runs/*"))
