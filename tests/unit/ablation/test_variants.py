"""What `--variants` means, and what it refuses."""

from __future__ import annotations

import pytest

from roleagent.ablation.variants import VARIANTS, Variant, full_key, known_names, parse_variants, reference
from roleagent.config import load_config
from roleagent.errors import ConfigError
from roleagent.learning.advantages.base import list_estimators


def names(*texts: str) -> list[str]:
    return [variant.name for variant in parse_variants(texts)]


def test_the_registry_knows_the_ablations_and_every_estimator() -> None:
    assert list(VARIANTS) == ["full", "no-aiw", "additive", "no-wia", "no-predictions"]
    assert set(list_estimators()) <= set(known_names())
    assert len(set(known_names())) == len(known_names())


@pytest.mark.parametrize(
    ("name", "estimator", "predicts", "paid", "aiw"),
    [
        ("full", "role_agent", True, True, True),
        ("no-aiw", "role_agent", True, True, False),
        ("additive", "role_agent", True, True, True),
        ("no-wia", "role_agent", True, False, True),
        ("no-predictions", "role_agent", False, True, True),
        *((name, name, True, False, False) for name in ("gigpo", "grpo", "rloo", "ppo", "dapo")),
        ("role_agent", "role_agent", True, True, True),
        ("role_agent_without_aiw", "role_agent_without_aiw", True, True, False),
        ("role_agent_without_prediction", "role_agent_without_prediction", False, False, True),
    ],
)
def test_a_variant_switches_what_its_name_says(
    name: str, estimator: str, predicts: bool, paid: bool, aiw: bool
) -> None:
    (variant,) = parse_variants([name])
    config = load_config("smoke", variant.overrides)
    assert config.advantage.estimator == estimator
    assert (config.world_in_agent.enabled, config.agent_in_world.enabled) == (predicts, aiw)
    assert (config.world_in_agent.weight > 0) == paid


@pytest.mark.parametrize("name", [*VARIANTS, "gigpo", "grpo"])
def test_a_variant_is_the_same_over_a_preset_that_says_otherwise(name: str) -> None:
    (variant,) = parse_variants([name])
    halves = ["world_in_agent.enabled", "agent_in_world.enabled"]
    configs = [
        load_config("smoke", [*(f"{half}={value}" for half in halves), "advantage.estimator=rloo", *variant.overrides])
        for value in ("true", "false")
    ]
    assert configs[0] == configs[1]


def test_the_form_of_the_reward_is_that_of_the_variant_whatever_the_preset_says() -> None:
    for name, form in (("full", "multiplicative"), ("no-aiw", "multiplicative"), ("additive", "additive")):
        for preset in ("multiplicative", "additive"):
            config = load_config("smoke", [f"world_in_agent.form={preset}", *VARIANTS[name]])
            assert config.world_in_agent.form == form


def test_lists_free_variants_and_sweeps() -> None:
    assert names("full,no-aiw", "grpo") == ["full", "no-aiw", "grpo"]
    assert parse_variants(["mine:alpha=0.5,learner.learning_rate=1e-4,full"]) == [
        Variant("mine", ("advantage.alpha=0.5", "learner.learning_rate=1e-4")),
        Variant("full", VARIANTS["full"]),
    ]
    assert [(v.name, v.overrides) for v in parse_variants(["full,alpha=0,0.5,2,H=1,2"])][1:] == [
        ("alpha=0", ("advantage.alpha=0",)),
        ("alpha=0.5", ("advantage.alpha=0.5",)),
        ("alpha=2", ("advantage.alpha=2",)),
        ("H=1", ("world_in_agent.horizon=1",)),
        ("H=2", ("world_in_agent.horizon=2",)),
    ]
    bracketed = parse_variants(["small:environment.options={level: small, train_tasks: 3},rollout.group_size=4"])
    assert bracketed[0].overrides == ("environment.options={level: small, train_tasks: 3}", "rollout.group_size=4")


def test_an_estimator_is_a_variant() -> None:
    method = "role_agent_without_aiw"  # its recipe says which half is off
    assert parse_variants([method]) == [Variant(method, (f"advantage.estimator={method}",))]
    (rloo,) = parse_variants(["rloo"])
    assert rloo.overrides[0] == "advantage.estimator=rloo"
    assert "agent_in_world.enabled=false" in rloo.overrides


def test_names_become_parts_of_run_ids() -> None:
    assert [variant.slug for variant in parse_variants(["alpha=0.5,dr_grpo,no-wia"])] == [
        "alpha_0p5",
        "dr_grpo",
        "no-wia",
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("ful", "no variant 'ful'; did you mean 'full'?"),
        ("xyz", "no variant 'xyz'; there are full, no-aiw"),
        ("full,full", "variant 'full' is named twice"),
        ("mine:alpha=1,advantage.alpha=2", "variant 'mine' gives advantage.alpha twice; to compare values write"),
        ("full,,grpo", "has an empty place"),
        ("", "has an empty place"),
        ("alhpa=1", "no setting is called 'alhpa'; did you mean 'alpha'?"),
        ("temperature=1", "key 'temperature' is in several sections: write rollout.temperature or"),
        ("full:alpha=1", "variant name 'full' has a meaning of its own"),
        ("Mine:alpha=1", "variant name 'Mine' must be"),
        ("mine:alpha", "variant 'mine:alpha' must look like name:section.key=value"),
        ("alpha=[1,2]", "sweep alpha: '[1,2]' is no plain value"),
        ("a.b:alpha=1,full,a-b:alpha=2,apb:alpha=3", "whose runs would have the same ids"),
    ],
)
def test_errors_say_what_is_wrong(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_variants([text])
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_short_keys() -> None:
    assert full_key("alpha") == "advantage.alpha"
    assert full_key("lambda") == "agent_in_world.mixture"
    assert full_key("iterations") == "iterations"
    assert full_key("some.key") == "some.key"


def test_the_reference_is_the_full_method_or_the_first() -> None:
    found = parse_variants(["grpo,full"])
    assert reference(found).name == "full"
    assert reference(found, "grpo").name == "grpo"
    assert reference(found[:1]).name == "grpo"
    with pytest.raises(ConfigError, match="--against 'gigpo' is none of the variants grpo, full"):
        reference(found, "gigpo")
