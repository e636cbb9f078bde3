"""The stack's command line, where nothing runs: what a person may get wrong is one line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from infra.embedded import __main__ as command
from infra.embedded.processes import StackError
from infra.embedded.stack import Ports, Stack


def run(monkeypatch: pytest.MonkeyPatch, home: Path, *arguments: str) -> object:
    monkeypatch.setenv("ROLEAGENT_HOME", str(home))
    monkeypatch.setattr(sys, "argv", ["stack", *arguments])
    with pytest.raises(SystemExit) as ended:
        command.main()
    return ended.value.code


def test_a_home_that_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "file"
    home.touch()
    assert run(monkeypatch, home, "up") == 2
    assert capsys.readouterr().err == (
        f"error: cannot write {home}/stack: not a directory; set ROLEAGENT_HOME to another folder\n"
    )


@pytest.mark.parametrize("name", ["[/x]", "[red]", "a\\[b"])
def test_a_home_whose_name_is_console_markup(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, tmp_path / name, "status") == 1
    assert f"Logs: {tmp_path}/{name}/stack " in capsys.readouterr().out
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    assert run(monkeypatch, tmp_path / name, "up") == 2
    assert f"{tmp_path}/{name}/stack" in capsys.readouterr().err


def test_one_port_for_two_services(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="two services have the same port"):
        Stack(tmp_path).up(Ports(4001, 4001, 4002))
    assert [path.name for path in (tmp_path / "stack").iterdir()] == []
