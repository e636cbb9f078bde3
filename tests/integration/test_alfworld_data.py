"""Fetching and adding games from the command line: a real download from a server on this machine."""

from __future__ import annotations

import functools
import hashlib
import http.server
import json
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from roleagent import cli
from roleagent.environments.alfworld import fetching
from roleagent.environments.registry import make_environment
from roleagent.errors import ConfigError
from tests.differential.games import Source, load


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty machine."""
    monkeypatch.setenv("ROLEAGENT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "none"))
    return tmp_path / "home"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """An archive in the official layout."""
    games = load("valid_seen")[:4]
    (tmp_path / "site").mkdir()
    with zipfile.ZipFile(tmp_path / "site" / "json_2.1.2_tw-pddl.zip", "w", zipfile.ZIP_DEFLATED) as file:
        for split, game in zip(("train", "train", "valid_seen", "valid_unseen"), games, strict=True):
            text = json.dumps(Source("valid_seen", game).game_file())
            file.writestr(f"json_2.1.1/{split}/{game}/game.tw-pddl", text)
    return tmp_path / "site" / "json_2.1.2_tw-pddl.zip"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def address(archive: Path) -> Iterator[str]:
    """The address of the archive on a server."""
    handler = functools.partial(_Quiet, directory=str(archive.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/{archive.name}"
        server.shutdown()
        thread.join()


def test_fetch(home: Path, archive: Path, address: str, capsys: pytest.CaptureFixture[str]) -> None:
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    assert cli.run(["data", "fetch", "alfworld", "--url", address, "--sha256", digest]) == 0
    shown = capsys.readouterr().out
    assert f"SHA-256 {digest}" in shown
    assert all(split in shown for split in ("train", "valid_seen", "valid_unseen"))
    folder = home / "data" / "alfworld"
    assert sorted(path.name for path in folder.iterdir()) == ["train.zip", "valid_seen.zip", "valid_unseen.zip"]
    environment = make_environment("alfworld", heldout="valid_unseen")
    assert (len(environment.tasks("train")), len(environment.tasks("heldout"))) == (2, 1)
    goal, _ = environment.reset(environment.tasks("heldout")[0].task_id)
    assert goal.endswith(".")


def test_another_archive_is_refused(home: Path, address: str) -> None:
    with pytest.raises(ConfigError, match="not the one that was asked for; nothing was stored"):
        cli.run(["data", "fetch", "alfworld", "--url", address, "--sha256", "0" * 64])
    with pytest.raises(ConfigError, match=r"nothing-here\.zip cannot be downloaded: 404"):
        cli.run(["data", "fetch", "alfworld", "--url", address.replace("json_2.1.2_tw-pddl", "nothing-here")])
    assert list((home / "data" / "alfworld").iterdir()) == []


def test_the_address_is_that_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fetching._downloader()["TW_PDDL_FILES_URL"].startswith("https://github.com/alfworld/alfworld/releases/")
    monkeypatch.setattr(fetching, "PROGRAM", "no-such-program")
    with pytest.raises(ConfigError, match="pip install alfworld"):
        fetching.fetch()


def test_add(home: Path, archive: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with zipfile.ZipFile(archive) as file:
        file.extractall(home.parent / "official")
    assert cli.run(["data", "add", "alfworld", str(home.parent / "official")]) == 0
    assert "valid_unseen" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="unknown data set 'webshop': choose among alfworld"):
        cli.run(["data", "add", "webshop", str(home)])
