"""What a person may get wrong, and what is said then."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import annotated_types
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from roleagent.config import TrainConfig, load_config, preset_path
from roleagent.errors import ConfigError

Case = tuple[str, object, object]


def fields(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from fields(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


def bounds() -> Iterator[Case]:
    """Every numeric bound of the configuration as (key, a value just outside, the last value inside or None)."""
    for key, field in fields(TrainConfig):
        rules = [*field.metadata]
        for part in get_args(field.annotation):
            rules += getattr(part, "__metadata__", ())
        whole = field.annotation is int or int in get_args(field.annotation)
        step: float = 1 if whole else 1e-6
        for rule in rules:
            if isinstance(rule, annotated_types.Ge):
                yield key, rule.ge - step, rule.ge
            elif isinstance(rule, annotated_types.Le):
                yield key, rule.le + step, rule.le
            elif isinstance(rule, annotated_types.Gt):
                yield key, rule.gt, None
            elif isinstance(rule, annotated_types.Lt):
                yield key, rule.lt, None


BOUNDS = list(bounds())


def test_bounds_are_found() -> None:
    # One of each kind, so that the cases below cannot silently become none.
    assert len(BOUNDS) > 50
    assert ("rollout.group_size", 0, 1) in BOUNDS
    assert ("learner.learning_rate", 0.0, None) in BOUNDS or ("learner.learning_rate", 0, None) in BOUNDS
    assert any(key == "learner.clip_low" and outside == 1 for key, outside, _ in BOUNDS)


@pytest.mark.parametrize(("key", "outside", "inside"), BOUNDS, ids=lambda value: str(value))
def test_every_bound(key: str, outside: object, inside: object) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"--set: {key}: input should be")) as error:
        load_config("smoke", [f"{key}={outside!r}"])
    assert "\n" not in str(error.value)
    if inside is not None:
        related = {"rollout.max_turn_tokens", "policy.max_context", "evaluation.final_tasks"}
        if key not in related:  # their smallest values contradict the preset's others
            load_config("smoke", [f"{key}={inside!r}"])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("rollout.temprature=1", "--set: rollout.temprature: unknown key; did you mean 'temperature'?"),
        ("rolout.temperature=1", "--set: rolout: unknown key; did you mean 'rollout'?"),
        ("learner.xyzzy=1", "--set: learner.xyzzy: unknown key; see `roleagent config show`"),
        ("policy.dtype=float16", "policy.dtype: input should be 'float32' or 'bfloat16' (got float16)"),
        ("seed=-1", "seed: input should be greater than or equal to 0 (got -1)"),
        ("seed=one", "seed: input should be a valid integer"),
        ("name=Big Name", "name: string should match pattern"),
        ("rollout=3", "rollout: input should be a valid dictionary"),
        ("evaluation.tasks=9", "--set: evaluation.tasks is larger than evaluation.final_tasks"),
        ("rollout.max_turn_tokens=1536", "rollout.max_turn_tokens must be smaller than policy.max_context"),
        ("seed", "override 'seed' must look like section.key=value"),
        ("=3", "override '=3' must look like section.key=value"),
        ("a..b=3", "override 'a..b=3' must look like section.key=value"),
        ("seed.x=3", "override 'seed.x=3': 'seed' is not a section"),
        ("seed=[1", "override 'seed=[1':"),
    ],
)
def test_a_wrong_override_is_one_line_that_names_it(change: str, told: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_config("smoke", ["seed=1", change])
    assert told in str(error.value)
    assert "configuration: " not in str(error.value)
    assert "\n" not in str(error.value)


def test_several_errors_are_counted() -> None:
    with pytest.raises(ConfigError, match=re.escape("(and 2 more)")):
        load_config("smoke", ["seed=-1", "iterations=0", "rollout.group_size=0"])


@pytest.mark.parametrize("key", ["storage.uri", "storage.endpoint_url", "tracking.uri"])
@pytest.mark.parametrize("user", ["AKIAKEY:SeCrEtVaLuE@", "SeCrEtVaLuE@", ":SeCrEtVaLuE@"])
def test_credentials_in_addresses_are_refused_and_never_repeated(key: str, user: str) -> None:
    with pytest.raises(ConfigError, match="holds credentials; give them in environment variables instead") as error:
        load_config("smoke", [f"{key}=https://{user}host/path"])
    assert "SeCrEtVaLuE" not in str(error.value)
    assert key in str(error.value)


@given(st.text(st.characters(codec="utf-8", exclude_characters="=."), min_size=1, max_size=20), st.text(max_size=20))
def test_any_override_loads_or_is_a_config_error(key: str, value: str) -> None:
    with suppress(ConfigError):  # any other exception fails
        load_config("smoke", [f"{key}={value}"])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"a: [", "cannot read"),
        (b"\xff\xfe", "cannot read"),
        (b"- 1\n", "must hold a mapping"),
        (b"seed: -1\n", "mine.yaml: seed:"),
        (b"sead: 1\n", "mine.yaml: sead: unknown key; did you mean 'seed'?"),
    ],
)
def test_a_wrong_preset_file_is_named(tmp_path: Path, text: bytes, told: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(text)
    with pytest.raises(ConfigError) as error:
        load_config(str(path), ["seed=1"])
    assert told in str(error.value)
    assert "mine.yaml" in str(error.value)
    assert "\n" not in str(error.value)


def test_an_empty_preset_file_is_the_papers_recipe(tmp_path: Path) -> None:
    path = tmp_path / "empty.yml"
    path.touch()
    assert load_config(str(path)) == TrainConfig()


def test_unknown_presets() -> None:
    with pytest.raises(
        ConfigError, match=r"no preset 'nope'; there are .*quickstart.*, or give a path to a \.yaml file"
    ):
        load_config("nope")
    with pytest.raises(ConfigError, match=r"preset file /nowhere\.yaml does not exist"):
        preset_path("/nowhere.yaml")


def test_overrides_make_sections_read_values_as_yaml_and_the_last_wins(tmp_path: Path) -> None:
    config = load_config(
        "smoke",
        ["learner.learning_rate=1e-4", "seed=1", "seed=2", "environment.options={level: medium}", "policy.device=cpu"],
    )
    assert config.learner.learning_rate == 1e-4
    assert config.seed == 2
    assert config.environment.options == {"level": "medium"}
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"name": "mine"}), encoding="utf-8")
    assert load_config(str(path), ["evaluation.every=0"]).evaluation.every == 0


def test_options_of_a_presets_environment_stay_with_it() -> None:
    assert load_config("quickstart").environment.options["level"] == "small"
    assert load_config("quickstart", ["environment.name=alfworld"]).environment.options == {}
    given = load_config("quickstart", ["environment.options.heldout=dev", "environment.name= alfworld"])
    assert given.environment.options == {"heldout": "dev"}
    same = load_config("quickstart", ["environment.name=household", "environment.options.level=large"])
    assert same.environment.options == load_config("quickstart").environment.options | {"level": "large"}


def test_a_key_without_value_is_emptied() -> None:
    config = load_config("smoke", ["tracking.uri=sqlite:///a.db", "tracking.uri=", "world_in_agent.horizon="])
    assert config.tracking.uri == ""
    assert config.world_in_agent.horizon is None
    with pytest.raises(ConfigError, match="seed: input should be a valid integer"):
        load_config("smoke", ["seed="])


@pytest.mark.parametrize("number", [".inf", ".nan", "-.inf"])
def test_numbers_are_finite(number: str) -> None:
    with pytest.raises(ConfigError, match=r"learner\.learning_rate: input should be"):
        load_config("smoke", [f"learner.learning_rate={number}"])


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("2026-13-45", "month must be in 1..12"),
        ("0b_", "invalid literal"),
        ("9" * 5000, "limit"),
        ("[" * 3000, "nested too deeply"),
    ],
)
def test_what_looks_like_a_value_and_is_none(value: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        load_config("smoke", [f"seed={value}"])
    assert len(str(caught.value)) < 600


def test_aliases_of_a_preset_are_not_written_out(tmp_path: Path) -> None:
    # Nine aliases of nine aliases, eight times: some 400 MB if it were shown in full, from half a kilobyte.
    rows = ['a0: &a0 ["lol"]', *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)), "seed: *a8"]
    path = tmp_path / "bomb.yaml"
    path.write_text("\n".join(rows))
    began = time.process_time()
    with pytest.raises(ConfigError, match="seed: "):
        load_config(str(path))
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("seed: 1\nseed: 2\n", "'seed' is given twice"),
        ("seed: 1\n#" + "x" * 1_000_000, "larger than 1,000,000 bytes"),
        ("seed: " + "[" * 3000, "nested too deeply"),
        ("seed: 2026-13-45", "month must be in 1..12"),
    ],
)
def test_presets_that_cannot_be_meant(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=told) as caught:
        load_config(str(path))
    assert str(path) in str(caught.value)


def test_a_folder_is_no_preset(tmp_path: Path) -> None:
    folder = tmp_path / "own.yaml"
    folder.mkdir()
    with pytest.raises(ConfigError, match="is not a file"):
        load_config(str(folder))


@pytest.mark.parametrize(
    "change",
    [
        "policy.model=s3://user:pa55word@bucket/x",
        "storage.uri=s3://AKX:pa55/word@bucket",
        "storage.uri=http://user:pa55word@[::1",
        "tracking.uri=postgresql://h/db?user=a&password=pa55word",
    ],
)
def test_credentials_in_addresses_are_refused_and_not_repeated(change: str) -> None:
    with pytest.raises(ConfigError, match="credentials") as caught:
        load_config("smoke", [change])
    assert "word" not in str(caught.value)
