"""Reading presets and overrides into a `TrainConfig`, with errors a person can act on."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from roleagent.config.models import TrainConfig
from roleagent.errors import ConfigError, shortened

_PRESETS = Path(__file__).parent / "presets"
_LARGEST_BYTES = 1_000_000
_ENVIRONMENT = "environment.name"


def list_presets() -> list[str]:
    """Names of the presets that ship with the package."""
    return sorted(path.stem for path in _PRESETS.glob("*.yaml"))


def describe_preset(preset: str) -> str:
    """Return the first sentence of the comment that a preset begins with; "" where there is none."""
    lines = preset_path(preset).read_text(encoding="utf-8").splitlines()
    comment = [line.removeprefix("#").strip() for line in takewhile(lambda line: line.startswith("#"), lines)]
    return " ".join(comment).partition(". ")[0].removesuffix(".")


def preset_path(preset: str) -> Path:
    """Return the YAML file of a preset name, or of a path to one."""
    path = Path(preset)
    if path.suffix in {".yaml", ".yml"}:
        if not path.is_file():
            raise ConfigError(f"preset file {preset} {'is not a file' if path.exists() else 'does not exist'}")
        return path
    path = _PRESETS / f"{preset}.yaml"
    if not path.is_file():
        known = ", ".join(list_presets())
        raise ConfigError(f"no preset '{preset}'; there are {known}, or give a path to a .yaml file")
    return path


def load_config(preset: str = "quickstart", overrides: Iterable[str] = ()) -> TrainConfig:
    """Build a config from a preset and `section.key=value` overrides (values are read as YAML).

    A preset's `environment.options` are those of its environment: an override of `environment.name` leaves them out.

    Raises:
        ConfigError: one line that names the key, its value and what was expected.
    """
    path = preset_path(preset)
    values = _read(path) or {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold a mapping of configuration keys")
    config = parse_config(values, source=path.name)
    changes = list(overrides)
    if _another_environment(changes, config.environment.name):
        values.get("environment", {}).pop("options", None)
    for override in changes:
        _apply(values, override)
    return parse_config(values, source="--set") if changes else config


def parse_config(values: Mapping[str, Any], source: str = "configuration") -> TrainConfig:
    """Validate a mapping; the first error becomes one line."""
    try:
        return TrainConfig.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            near = difflib.get_close_matches(str(first["loc"][-1]), _siblings(first["loc"][:-1]), n=1)
            message = "unknown key; " + (f"did you mean '{near[0]}'?" if near else "see `roleagent config show`")
        elif first["loc"] and "credentials" not in message:
            message = f"{message[:1].lower()}{message[1:]} (got {shortened(_shown(first['input']), 60)})"
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        # What contradicts another key has no place of its own: its message names both.
        raise ConfigError(": ".join(part for part in (source, key, message) if part) + more) from error


def _another_environment(overrides: Iterable[str], name: str) -> bool:
    named = [
        text.strip() for key, _, text in (item.partition("=") for item in overrides) if key.strip() == _ENVIRONMENT
    ]
    return bool(named) and named[-1] != name


def _apply(values: dict[str, Any], override: str) -> None:
    key, found, text = override.partition("=")
    parts = key.strip().split(".")
    if not found or not all(parts):
        raise ConfigError(f"override '{override}' must look like section.key=value")
    node = values
    for part in parts[:-1]:
        child = node.setdefault(part, {})
        if not isinstance(child, dict):
            raise ConfigError(f"override '{override}': '{part}' is not a section")
        node = child
    try:
        node[parts[-1]] = _parse(text) if text.strip() else _empty(parts)
    except ValueError as error:
        raise ConfigError(f"override '{shortened(override, 200)}': {error}") from error


class _Loader(yaml.SafeLoader):
    """YAML's safe loader, to which a key that is given twice is an error: one of the two values would be lost."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"'{key}' is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


def _read(path: Path) -> Any:
    try:
        if path.stat().st_size > _LARGEST_BYTES:  # YAML is read slowly
            raise ValueError(f"it is larger than {_LARGEST_BYTES:,} bytes, which no preset is")
        return _parse(path.read_text(encoding="utf-8-sig"))
    except (ValueError, OSError) as error:
        raise ConfigError(f"cannot read {path}: {_one_line(str(error))}") from error


def _parse(text: str) -> Any:
    """Read YAML, with any text that is none as a ValueError of one line."""
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError) as error:  # dates and numbers that are none are a ValueError
        raise ValueError(_one_line(str(error))) from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _shown(value: Any) -> str:
    """Show the beginning of a value: an alias in YAML may stand for gigabytes."""
    return value[:1000] if isinstance(value, str) else reprlib.repr(value)


def _empty(parts: list[str]) -> str | None:
    """What `key=` without a value means: an empty text where the key takes one, else no value."""
    model = _section(tuple(parts[:-1]))
    field = model.model_fields.get(parts[-1]) if model else None
    return "" if field is not None and isinstance(field.default, str) else None


def _siblings(location: tuple[int | str, ...]) -> list[str]:
    model = _section(location)
    return list(model.model_fields) if model else []


def _section(location: tuple[int | str, ...]) -> type[BaseModel] | None:
    """Return the model of a section, None if there is no such section."""
    model: type[BaseModel] = TrainConfig
    for part in location:
        annotation = model.model_fields[str(part)].annotation if str(part) in model.model_fields else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return None
        model = annotation
    return model


def _one_line(text: str) -> str:
    return " ".join(text.split())
