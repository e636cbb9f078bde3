"""Environments by name. To add one: `register("name", "module:factory")`, where the factory takes the options."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable
from typing import Any, cast

from roleagent.environments.base import Environment
from roleagent.errors import ConfigError

_FACTORIES: dict[str, str] = {
    "alfworld": "roleagent.environments.alfworld.alfworld:AlfWorld",
    "household": "roleagent.environments.household.household:Household",
}


def register(name: str, target: str) -> None:
    """Add an environment.

    Args:
        name: what the configuration calls it.
        target: "module:factory"; the module is imported when the environment is first made.

    Raises:
        ConfigError: the target is not of that form, or the name belongs to another target.
    """
    module, _, attribute = target.partition(":")
    if not module or not attribute.isidentifier():
        raise ConfigError(f"environment {name!r} has target {target!r}: write it as module:factory")
    if _FACTORIES.get(name, target) != target:
        raise ConfigError(f"environment {name!r} is registered as {_FACTORIES[name]}: choose another name")
    _FACTORIES[name] = target


def list_environments() -> list[str]:
    """Return the names of all registered environments, sorted."""
    return sorted(_FACTORIES)


def make_environment(name: str, **options: Any) -> Environment:
    """Make an environment.

    Raises:
        ConfigError: the name or an option is unknown, or the environment's module cannot be imported.
    """
    if name not in _FACTORIES:
        raise ConfigError(f"unknown environment {name!r}: {_suggestion(name, list_environments())}")
    module, _, attribute = _FACTORIES[name].partition(":")
    try:
        factory: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"environment {name!r} cannot be loaded from {module}:{attribute}: {error}") from error
    parameters = inspect.signature(factory).parameters
    if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        for option in options:
            if option not in parameters:
                raise ConfigError(
                    f"environment {name!r} has no option {option!r}: {_suggestion(option, list(parameters))}"
                )
    return cast(Environment, factory(**options))


def _suggestion(given: str, known: list[str]) -> str:
    close = difflib.get_close_matches(given, known, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"choose among {', '.join(known)}" if known else "it takes no options"
