"""Environments by name, and mistakes in names and options."""

from __future__ import annotations

import pytest

from roleagent.environments.base import Environment
from roleagent.environments.registry import list_environments, make_environment, register
from roleagent.errors import ConfigError


def test_the_household_is_there_and_takes_its_options() -> None:
    environment = make_environment("household", level="medium", train_tasks=7, heldout_tasks=5)
    assert isinstance(environment, Environment)
    assert "household" in list_environments()
    assert (len(environment.tasks("train")), len(environment.tasks("heldout"))) == (7, 5)


def test_unknown_names_and_options_come_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="did you mean 'household'"):
        make_environment("houshold")
    with pytest.raises(ConfigError, match="did you mean 'level'"):
        make_environment("household", levl="small")
    with pytest.raises(ConfigError, match=r"choose among .*household"):
        make_environment("qqq")


def test_registering() -> None:
    register("twin", "roleagent.environments.household.household:Household")
    assert make_environment("twin").name == "household"
    register("twin", "roleagent.environments.household.household:Household")
    with pytest.raises(ConfigError, match="is registered as"):
        register("twin", "somewhere:else_")
    with pytest.raises(ConfigError, match="module:factory"):
        register("bad", "no_colon")
    register("absent", "roleagent.no_such_module:Thing")
    with pytest.raises(ConfigError, match="cannot be loaded"):
        make_environment("absent")
