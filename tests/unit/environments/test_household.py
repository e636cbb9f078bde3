"""The household under the three-method contract."""

from __future__ import annotations

import time

import pytest

from roleagent.environments.checker import check_environment
from roleagent.environments.household.demonstrations import demonstrate
from roleagent.environments.household.expert import APPLIANCES
from roleagent.environments.household.generator import LEVELS
from roleagent.environments.household.household import Household
from roleagent.errors import ConfigError, EnvironmentFault


@pytest.mark.parametrize("level", list(LEVELS))
def test_it_keeps_the_contract(level: str) -> None:
    report = check_environment(
        lambda: Household(level=level, train_tasks=40, heldout_tasks=40),
        episodes=10,
        solve=lambda task: [step.action for step in demonstrate(task.task_id, max_steps=200).steps],
    )
    report.raise_for_findings()


def test_pools() -> None:
    household = Household(train_tasks=13, heldout_tasks=6)
    train, heldout = household.tasks("train"), household.tasks("heldout")
    assert train[-1].task_id == "household-small-train-000012"
    assert heldout[0].task_id == "household-small-heldout-000000"
    assert len({task.task_type for task in heldout}) == 6
    assert {household.reset(task.task_id)[0] for task in train}
    with pytest.raises(ConfigError, match="unknown split"):
        household.tasks("test")  # type: ignore[arg-type]


def test_listing_tasks_builds_no_game(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(text: str) -> None:
        raise AssertionError(f"a game was built for {text}")

    monkeypatch.setattr("roleagent.environments.household.household.generate", refuse)
    started = time.perf_counter()
    assert len(Household(train_tasks=20_000).tasks("train")) == 20_000
    assert time.perf_counter() - started < 5


def test_pretraining_games_are_played_but_never_listed() -> None:
    household = Household(train_tasks=3, heldout_tasks=3)
    goal, first = household.reset("household-small-pretrain-1234567")
    assert goal.endswith(".")
    assert first.text.startswith("You are in the middle of a room.")
    listed = [task.task_id for split in ("train", "heldout") for task in household.tasks(split)]  # type: ignore[arg-type]
    assert not any("pretrain" in text for text in listed)


def test_winning_pays_one_and_ends_the_episode() -> None:
    household = Household()
    text = household.tasks("train")[3].task_id
    steps = demonstrate(text).steps
    goal, first = household.reset(text)
    assert first.text == steps[0].state
    for step in steps[:-1]:
        outcome = household.step(f"  {step.action.upper()} ")
        assert (outcome.observation.text, outcome.reward, outcome.done) == (step.next_state, 0.0, False)
    outcome = household.step(steps[-1].action)
    assert (outcome.reward, outcome.score, outcome.done, outcome.success) == (1.0, 1.0, True, True)
    with pytest.raises(EnvironmentFault, match="call reset first"):
        household.step("look")
    assert household.reset(text) == (goal, first)


def test_an_observation_does_not_change_under_its_reader() -> None:
    household = Household()
    text = household.tasks("train")[0].task_id
    _, first = household.reset(text)
    for step in demonstrate(text).steps[:4]:
        household.step(step.action)
    assert first.admissible == Household().reset(text)[1].admissible


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("household-small-train-000512", "the train pool has 512 tasks"),
        ("household-small-heldout-000512", "the heldout pool has 512 tasks"),
        ("household-large-train-000001", "has level small"),
        ("mug", "unknown household task id 'mug'"),
    ],
)
def test_unknown_tasks(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Household().reset(text)


@pytest.mark.parametrize(
    "options", [{"level": "tiny"}, {"train_tasks": 0}, {"heldout_tasks": -1}, {"train_tasks": 2.5}]
)
def test_bad_options(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        Household(**options)  # type: ignore[arg-type]


def test_the_guide_names_every_verb() -> None:
    for verb in ("go to", "open", "close", "take", "move", "examine", "use", "slice", "look", "inventory", *APPLIANCES):
        assert verb in Household.guide
