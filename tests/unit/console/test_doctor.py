"""The check of the set-up: what passes, what is told when it does not."""

from __future__ import annotations

import io
from importlib import metadata
from pathlib import Path

import pytest
from rich.console import Console

from roleagent.console import doctor
from roleagent.errors import RoleAgentError
from roleagent.loop.servers import server_answers


def examine(monkeypatch: pytest.MonkeyPatch, *checks: str) -> tuple[bool, str]:
    kept = tuple((name, check) for name, check in doctor._CHECKS if name in checks)
    assert len(kept) == len(checks)
    monkeypatch.setattr(doctor, "_CHECKS", kept)
    file = io.StringIO()
    fine = doctor.examine(Console(file=file, width=100, color_system=None))
    return fine, " ".join(file.getvalue().split())


def test_all_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    fine, text = examine(monkeypatch, "python", "packages")
    assert fine
    assert text.startswith("ok python 3.1")
    assert f"torch {metadata.version('torch')}" in text
    assert text.endswith("All is well. Start with: roleagent train")


def test_a_missing_or_wrong_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        doctor.metadata, "requires", lambda name: ["no-such-package-here>=1", "rich<1", 'mypy>=99; extra == "dev"']
    )
    fine, text = examine(monkeypatch, "python", "packages")
    assert not fine
    assert "no-such-package-here is missing; rich is" in text
    assert "needed is <1; run: pip install -e . -c constraints.txt" in text
    assert "mypy" not in text  # only developers need it
    assert text.endswith("1 of 2 things need mending.")


def test_a_home_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ROLEAGENT_HOME", str(tmp_path / "file" / "home"))
    fine, text = examine(monkeypatch, "home folder")
    assert not fine
    assert "set ROLEAGENT_HOME to a writable folder" in text


def test_what_a_home_that_cannot_be_made_stops_as_well_is_not_counted_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "file").touch()
    monkeypatch.setenv("ROLEAGENT_HOME", str(tmp_path / "file" / "home"))
    fine, text = examine(monkeypatch, "home folder", "MLflow")
    assert not fine
    assert "- MLflow its database is kept in the home folder: mend that first" in text
    assert text.endswith("1 of 2 things need mending.")


@pytest.mark.parametrize(("name", "value"), [("_FREE_GB", "_free"), ("_MEMORY_GB", "_memory")])
def test_too_little_room_is_told(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setattr(doctor, name, 1e9)
    fine, text = examine(monkeypatch, "home folder" if name == "_FREE_GB" else "machine")
    assert not fine
    assert "GB" in text


def test_servers_are_asked_only_when_they_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    fine, text = examine(monkeypatch, "Prefect")
    assert fine
    assert "a server of its own for each run" in text


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("http://user:SeCrEt@127.0.0.1:9/api", "the server of PREFECT_API_URL at 127.0.0.1:9 does not answer"),
        ("nonsense", "PREFECT_API_URL is no address of a server"),
        ("http://[::1", "PREFECT_API_URL is no address of a server"),
        ("ftp://user:SeCrEt@host", "PREFECT_API_URL is no address of a server"),
    ],
)
def test_a_server_that_does_not_answer_is_told_without_credentials(
    monkeypatch: pytest.MonkeyPatch, address: str, told: str
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", address)
    with pytest.raises(RoleAgentError, match=told) as error:
        server_answers("PREFECT_API_URL")
    assert "SeCrEt" not in str(error.value)
