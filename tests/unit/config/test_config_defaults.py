"""The class defaults are the paper's recipe; presets load; every key is documented."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from roleagent.config import TrainConfig, list_presets, load_config
from roleagent.config.load import parse_config

# The method, sections 1 to 4: the paper's values, and where it leaves one open, that of its public ALFWorld recipe.
RECIPE: dict[str, object] = {
    "iterations": 150,
    "environment.max_steps": 50,
    "rollout.tasks_per_iteration": 16,
    "rollout.group_size": 8,
    "rollout.temperature": 1.0,
    "world_in_agent.enabled": True,
    "world_in_agent.horizon": None,
    "world_in_agent.weight": 1.0,
    "world_in_agent.matching": "words",
    "world_in_agent.discount": 0.95,
    "advantage.estimator": "role_agent",
    "advantage.alpha": 1.0,
    "advantage.normalisation": "mean_std",
    "advantage.state_similarity": 0.9,
    "learner.learning_rate": 1e-6,
    "learner.clip_low": 0.2,
    "learner.clip_high": 0.2,
    "learner.kl_coefficient": 0.01,
    "learner.entropy_coefficient": 0.0,
    "learner.importance_cap": 2.0,
    "learner.old_logprobs": "recorded",
    "agent_in_world.enabled": True,
    "agent_in_world.max_diagnoses_per_task": 2,
    "agent_in_world.top_k": 5,
    "agent_in_world.mixture": 0.5,
    "agent_in_world.decay": 0.9,
    "evaluation.every": 5,
    "evaluation.tasks": 128,
    "evaluation.temperature": 0.4,
    "policy.model": "Qwen/Qwen2.5-1.5B-Instruct",
}


@pytest.mark.parametrize(("key", "value"), RECIPE.items())
def test_default_is_the_papers(key: str, value: object) -> None:
    found: Any = TrainConfig()
    for part in key.split("."):
        found = getattr(found, part)
    assert found == value


@pytest.mark.parametrize(("max_steps", "horizon"), [(50, 3), (15, 1), (4, 1), (20, 1), (21, 2), (40, 2), (41, 3)])
def test_horizon_is_five_percent_of_the_steps_rounded_up(max_steps: int, horizon: int) -> None:
    # The paper's best: ALFWorld 50 -> 3, WebShop 15 -> 1, search 4 -> 1.
    assert load_config("smoke", [f"environment.max_steps={max_steps}"]).horizon == horizon


def test_horizon_is_what_is_set_or_nothing_without_predictions() -> None:
    assert load_config("smoke", ["world_in_agent.horizon=4"]).horizon == 4
    assert load_config("smoke", ["world_in_agent.horizon=4", "world_in_agent.enabled=false"]).horizon == 0


def test_presets_are_there() -> None:
    assert {"quickstart", "smoke"} <= set(list_presets())


@pytest.mark.parametrize("name", list_presets())
def test_every_preset_loads_and_survives_its_own_yaml(name: str) -> None:
    config = load_config(name)
    written = yaml.safe_dump(config.model_dump(mode="json"))
    assert parse_config(yaml.safe_load(written)) == config
    assert TrainConfig.model_validate_json(config.model_dump_json()) == config


def models(model: type[BaseModel]) -> list[type[BaseModel]]:
    found = [model]
    for field in model.model_fields.values():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            found += models(field.annotation)
    return found


@pytest.mark.parametrize("model", models(TrainConfig), ids=lambda model: model.__name__)
def test_every_key_says_what_it_is(model: type[BaseModel]) -> None:
    sections = {name for name, field in model.model_fields.items() if isinstance(field.default, BaseModel)}
    silent = [name for name, field in model.model_fields.items() if not field.description and name not in sections]
    assert not silent


@pytest.mark.parametrize("model", models(TrainConfig), ids=lambda model: model.__name__)
def test_configurations_are_frozen_and_closed(model: type[BaseModel]) -> None:
    assert model.model_config["frozen"]
    assert model.model_config["extra"] == "forbid"
