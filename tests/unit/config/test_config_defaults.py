"""The class defaults are the paper's recipe; presets load; every key is documented."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from roleagent.config import AdvantageConfig, LearnerConfig, TrainConfig, describe_preset, list_presets, load_config
from roleagent.config.load import parse_config
from roleagent.config.recipes import RECIPES

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
    "learner.ratio": "token",
    "learner.aggregation": "token",
    "learner.overlong_mask": False,
    "learner.value_coefficient": 0.0,
    "rollout.dynamic_sampling": False,
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
    assert at(TrainConfig(), key) == value


# One line a paper: its own numbers, where they are not the class defaults.
PAPERS: dict[str, dict[str, object]] = {
    "gigpo": {"advantage.state_similarity": 1.0, "learner.kl_coefficient": 0.01},
    "grpo": {"learner.aggregation": "sequence", "learner.kl_coefficient": 0.04, "learner.clip_high": 0.2},
    "dr_grpo": {
        "advantage.normalisation": "mean",
        "learner.aggregation": "constant",
        "learner.kl_coefficient": 0.0,
    },
    "dapo": {
        "learner.clip_low": 0.2,
        "learner.clip_high": 0.28,
        "learner.aggregation": "token",
        "learner.overlong_mask": True,
        "learner.kl_coefficient": 0.0,
        "learner.minibatches": 16,
        "rollout.dynamic_sampling": True,
    },
    "gspo": {
        "learner.ratio": "sequence",
        "learner.aggregation": "sequence",
        "learner.clip_low": 3e-4,
        "learner.clip_high": 4e-4,
        "learner.kl_coefficient": 0.0,
        "learner.minibatches": 4,
    },
    "rloo": {"learner.ratio": "product", "learner.aggregation": "sequence", "learner.kl_coefficient": 0.03},
    "reinforce_pp": {"learner.clip_high": 0.2, "learner.kl_coefficient": 0.01},
    "ppo": {
        "learner.clip_high": 0.2,
        "learner.epochs": 3,
        "learner.minibatches": 4,
        "learner.value_coefficient": 1.0,
        "learner.kl_coefficient": 0.0,
        "advantage.gae_lambda": 0.95,
    },
    "role_agent_without_aiw": {"agent_in_world.enabled": False, "world_in_agent.enabled": True},
    "role_agent_without_prediction": {"agent_in_world.enabled": True, "world_in_agent.enabled": False},
}


def at(config: TrainConfig, key: str) -> Any:
    found: Any = config
    for part in key.split("."):
        found = getattr(found, part)
    return found


def chosen(name: str, **sections: dict[str, object]) -> TrainConfig:
    return parse_config({"advantage": {"estimator": name}, **sections})


@pytest.mark.parametrize("name", PAPERS)
def test_one_value_brings_the_papers_recipe(name: str) -> None:
    config = chosen(name)
    assert {key: at(config, key) for key in PAPERS[name]} == PAPERS[name]
    if not name.startswith("role_agent"):
        assert not config.agent_in_world.enabled
        assert config.horizon == 0


def test_every_recipe_is_in_the_table_above() -> None:
    assert set(PAPERS) | {"role_agent"} == set(RECIPES)


def test_a_recipe_holds_only_keys_that_exist_and_values_that_differ() -> None:
    for name, recipe in RECIPES.items():
        for section, keys in recipe.items():
            for key, value in keys.items():
                default = at(TrainConfig(), f"{section}.{key}")
                assert at(chosen(name), f"{section}.{key}") == value
                assert default != value, f"{name}: {section}.{key} is the class default"


@pytest.mark.parametrize("name", PAPERS)
def test_every_key_of_a_recipe_may_be_overridden(name: str) -> None:
    for section, keys in RECIPES[name].items():
        for key in keys:
            default = at(TrainConfig(), f"{section}.{key}")
            given: dict[str, dict[str, object]] = {"advantage": {"estimator": name}}
            given.setdefault(section, {})[key] = default
            assert at(parse_config(given), f"{section}.{key}") == default


def test_written_keys_win_wherever_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("learner: {clip_high: 0.3}\n", encoding="utf-8")
    config = load_config(str(path), ["advantage.estimator=dapo", "rollout.dynamic_sampling=false"])
    assert (config.learner.clip_high, config.rollout.dynamic_sampling) == (0.3, False)
    assert config.learner.overlong_mask
    model = TrainConfig(advantage=AdvantageConfig(estimator="dapo"), learner=LearnerConfig(clip_high=0.3))
    assert (model.learner.clip_high, model.learner.minibatches) == (0.3, 16)


@pytest.mark.parametrize("name", RECIPES)
def test_a_stored_configuration_is_read_back_as_it_was(name: str) -> None:
    config = chosen(name, learner={"minibatches": 3})
    assert TrainConfig.model_validate_json(config.model_dump_json()) == config
    assert parse_config(config.model_dump()) == config


def test_the_length_constant_is_what_an_episode_may_generate() -> None:
    config = load_config("smoke", ["environment.max_steps=6", "rollout.max_turn_tokens=100"])
    assert config.learner.length_constant is None
    assert config.learner_settings.length_constant == 600
    assert load_config("smoke", ["learner.length_constant=7"]).learner_settings.length_constant == 7


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


def test_the_learning_rate_falls_in_a_line_by_hand() -> None:
    config = TrainConfig.model_validate({"iterations": 5, "learner": {"learning_rate_end": 0.2}})
    assert [config.learning_rate_factor(n) for n in range(1, 6)] == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2])
    assert TrainConfig(iterations=5).learning_rate_factor(5) == 1.0
    assert (
        TrainConfig.model_validate({"iterations": 1, "learner": {"learning_rate_end": 0.2}}).learning_rate_factor(1)
        == 1
    )


def test_a_preset_says_what_it_is_for(tmp_path: Path) -> None:
    assert all(describe_preset(name) for name in list_presets())
    mine = tmp_path / "mine.yaml"
    for text, told in (
        ("# Mine. And more.\nname: mine\n", "Mine"),
        ("# Over\n# two lines\nname: mine\n", "Over two lines"),
        ("name: mine\n# behind\n", ""),
    ):
        mine.write_text(text)
        assert describe_preset(str(mine)) == told
