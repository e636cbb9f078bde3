"""The command line's own part: arguments, errors in them, and what needs no run."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import yaml

from roleagent import cli
from roleagent.config import TrainConfig, list_presets, load_config
from roleagent.console.show import print_json
from roleagent.errors import ConfigError, RoleAgentError
from roleagent.loop import runs

COMMANDS = ("train", "resume", "ablate", "evaluate", "play", "doctor", "pretrain", "runs", "bank", "config")


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(re.search(rf"\b{name}\b", out) for name in COMMANDS)


@pytest.mark.parametrize("group", [[], ["bank"], ["config"]])
def test_a_group_without_command_shows_its_help(group: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(group) == 2
    assert "Usage: roleagent" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["resmue"], "no such command 'resmue'. Did you mean 'resume'?; see `roleagent --help`"),
        (["train", "--sed", "1"], "no such option: --sed"),
        (["train", "--preset"], "option '--preset' requires an argument"),
        (["train", "--seed", "x"], "invalid value for '--seed'"),
        (["evaluate", "--tasks", "0"], "invalid value for '--tasks'"),
        (["evaluate", "--iteration", "-7"], "invalid value for '--iteration'"),
        (["train", "--preset", "smoke", "--run-id", "../../x"], "run id '../../x' is not allowed"),
        (["bank", "search"], "missing argument 'text'; see `roleagent bank search --help`"),
        (["bank", "search", "x", "-k", "0"], "invalid value for '--count'"),
        (["bank", "search", " "], "the text to look for is empty"),
        (["runs", "show", "a", "b"], "got unexpected extra argument"),
        (["runs", "shwo"], "no such command 'shwo'"),
        (["play", "--temperature", "0"], "invalid value for '--temperature'"),
        (["train", "--preset", "nope"], "no preset 'nope'"),
        (["train", "--set", "seed"], "override 'seed' must look like section.key=value"),
        (["train", "--seed", "-1"], "invalid value for '--seed'"),
        (["evaluate", "--seed", "-1"], "invalid value for '--seed'"),
        (["config", "show", "--set", "a=1"], "--set: a: unknown key"),
        (["ablate", "--variants", "ful"], "no variant 'ful'; did you mean 'full'?"),
        (["ablate", "--seeds", "0"], "--seeds 0: must be from 1"),
        (["ablate", "--parallel", "-1", "--dry-run"], "--parallel -1 --threads 0: both must be at least 1"),
        (["ablate", "--variants", "full,x:seed=1"], "variant 'x' may not change seed"),
        (["play", "no-such-task"], "household has no task 'no-such-task'; its ids look like household-"),
        *(
            (arguments, "no run was made yet under")
            for arguments in (
                ["resume"],
                ["evaluate"],
                ["runs", "show"],
                ["bank", "stats"],
                ["bank", "search", "x"],
                ["bank", "show", "x"],
                ["bank", "rebuild"],
                ["play", "--run", "latest"],
            )
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_arguments_are_one_line(arguments: list[str], told: str) -> None:
    with pytest.raises(RoleAgentError) as error:
        cli.run(arguments)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_runs_without_any_says_how_to_make_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["runs"]) == 0
    assert capsys.readouterr().out == "No run yet. Start one with: make train\n"


def test_config_show_is_the_whole_configuration_as_yaml(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["config", "show", "--preset", "smoke", "--set", "seed=5"]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert TrainConfig.model_validate(shown) == load_config("smoke", ["seed=5"])
    assert set(shown) == set(TrainConfig.model_fields)


def test_config_show_is_a_preset_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.run(["config", "show", "--preset", "smoke"])
    path = tmp_path / "mine.yaml"
    path.write_text(capsys.readouterr().out, encoding="utf-8")
    assert load_config(str(path)) == load_config("smoke")


def test_config_list_names_the_presets(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["config", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list_presets()
    assert "smoke         Three tiny iterations: checks that everything is connected" in lines
    assert all(len(line.split()) > 5 for line in lines), "each says what it is for"


def test_train_gives_the_flow_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[TrainConfig, str]] = []
    monkeypatch.setattr(cli, "_train", lambda config, run_id: seen.append((config, run_id)))
    cli.run(["train", "-p", "smoke", "-s", "iterations=2", "--seed", "7", "--run-id", "mine"])
    assert seen == [(load_config("smoke", ["iterations=2", "seed=7"]), "mine")]


def test_train_refuses_a_run_that_has_another_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    monkeypatch.setattr(cli, "_train", lambda config, run_id: started.append(run_id))
    runs.open_run(load_config("smoke"), "mine")
    wanted = ["train", "-p", "smoke", "--run-id", "mine"]
    cli.run(wanted)  # the same command goes on
    assert started == ["mine"]
    with pytest.raises(ConfigError) as error:
        cli.run([*wanted, "--seed", "3", "-s", "policy.dtype=bfloat16"])
    assert str(error.value) == (
        "run mine exists with another configuration (seed is 0 there, policy.dtype is float32 there); "
        "go on with it as it is: roleagent resume mine; or begin another one: give another --run-id"
    )
    with pytest.raises(ConfigError, match=r"and \d+ more differ"):
        cli.run(["train", "-p", "quickstart", "--run-id", "mine"])
    runs.write_status(runs.find_run("mine").worker(), "running")
    with pytest.raises(ConfigError, match="run mine is being trained by process"):
        cli.run(wanted)
    assert started == ["mine"]


def test_the_plan_of_an_ablation_is_told_as_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["ablate", "-p", "smoke", "-v", "full,gigpo", "--seeds", "2", "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    runs_of_plan = [f"{run['variant']} {run['seed']}" for run in plan["runs"]]
    assert runs_of_plan == ["full 0", "gigpo 0", "full 1", "gigpo 1"]
    assert all("advantage.estimator=gigpo" in plan["variants"][run["variant"]] for run in plan["runs"][1::2])
    assert plan["seeds"] == [0, 1]


def test_json_is_written_with_its_unicode_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"text": "caf\u00e9 \x1b", "number": None})
    out = capsys.readouterr().out
    assert out.isascii()
    assert "\x1b" not in out
    assert json.loads(out) == {"text": "caf\u00e9 \x1b", "number": None}


def test_help_is_cheap() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-c", "from roleagent.cli import main; main()", "--help"],
        check=True,
        capture_output=True,
        timeout=120,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0


def test_version_is_told_and_cheap(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", "from roleagent.cli import main; main()", "--version"],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "ROLEAGENT_HOME": str(tmp_path)},
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.stdout == f"roleagent {metadata.version('roleagent')}\n"
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0


def test_usage_errors_are_config_errors() -> None:
    with pytest.raises(ConfigError):
        cli.run(["no-such-command"])
