"""Templates, settings and the cleaning of texts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roleagent.config.models import EnvironmentConfig, PolicyConfig, RolloutConfig, TrainConfig, WorldInAgentConfig
from roleagent.rollout.context import RememberingTokenizer, clean_text, first_user_text, step_user_text
from roleagent.rollout.settings import RolloutSettings, settings_from_config

TURNS = [("hall", "go north"), ("attic", "open box"), ("the box is open", "take key")]


def test_first_message() -> None:
    assert first_user_text("find a key", "You are in a hall.") == "Your task is to: find a key\nYou are in a hall."


@pytest.mark.parametrize("window", [0, 2])
def test_step_prompt_without_earlier_turns_is_the_first_message(window: int) -> None:
    assert step_user_text("g", [], "s", window) == first_user_text("g", "s")


def test_step_prompt_shows_the_last_turns_only() -> None:
    text = step_user_text("find a key", TURNS, "You have a key.", 2)
    assert text == (
        "Your task is to: find a key\nYour last steps:\nObservation: attic\nAction: open box\n"
        "Observation: the box is open\nAction: take key\nNow:\nYou have a key."
    )
    assert step_user_text("g", TURNS, "s", 0) == first_user_text("g", "s")
    assert step_user_text("g", TURNS, "s", 0, ["a", "b"]) == (
        "Your task is to: g\nSteps taken: 3\ns\nPossible actions: a; b"
    )
    assert "hall" in step_user_text("g", TURNS, "s", 9)


class CountingTokenizer:
    """Gives ids that depend on everything, and counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def opening(self, system: str | None, first_user: str) -> list[int]:
        self.asked += 1
        return [system is None, *map(ord, f"{system}|{first_user}")]

    def next_user(self, text: str, ended: bool) -> list[int]:
        self.asked += 1
        return [2, *map(ord, f"{text}|{ended}")]


def test_remembered_ids_are_those_of_the_tokenizer() -> None:
    plain, counted = CountingTokenizer(), CountingTokenizer()
    remembering = RememberingTokenizer(counted, limit=3)
    calls = [(name, first, second) for name in ("opening", "next_user") for first in ("a", "b") for second in ("c", "")]
    for name, first, second in calls * 2:
        argument = bool(second) if name == "next_user" else second
        assert getattr(remembering, name)(first, argument) == getattr(plain, name)(first, argument)
    counted = CountingTokenizer()
    remembering = RememberingTokenizer(counted, limit=3)
    for _ in range(5):
        assert remembering.opening(None, "x") == plain.opening(None, "x")
        assert remembering.opening("None", "x") == plain.opening("None", "x")
        assert remembering.next_user("x", True) == plain.next_user("x", True)
    assert counted.asked == 3


@given(st.text(st.characters()))
def test_clean_text_can_be_encoded_and_changes_nothing_else(text: str) -> None:
    cleaned = clean_text(text)
    cleaned.encode()
    assert len(cleaned) == len(text)
    assert all(
        new == old or (new == "?" and 0xD800 <= ord(old) <= 0xDFFF) for new, old in zip(cleaned, text, strict=True)
    )


@pytest.mark.parametrize("value", [None, b"text", 3])
def test_clean_text_refuses_what_is_no_text(value: object) -> None:
    with pytest.raises(TypeError, match="expected a text"):
        clean_text(value)


def test_every_setting_comes_from_the_configuration() -> None:
    config = TrainConfig(
        environment=EnvironmentConfig(max_steps=40, step_timeout_seconds=3.0, workers=5),
        policy=PolicyConfig(max_context=900, instructions=False),
        rollout=RolloutConfig(
            temperature=0.7, max_turn_tokens=70, max_malformed=4, context="step", window=6, concurrency=9
        ),
        world_in_agent=WorldInAgentConfig(),
    )
    settings = settings_from_config(config)
    assert settings == RolloutSettings(
        horizon=2,
        max_steps=40,
        max_turn_tokens=70,
        max_context=900,
        temperature=0.7,
        max_malformed=4,
        context="step",
        window=6,
        instructions=False,
        concurrency=9,
        step_timeout_seconds=3.0,
        environment_workers=5,
    )
    assert settings_from_config(config, temperature=0.4).temperature == 0.4
    assert settings_from_config(config, max_context=500).max_context == 500
    assert settings_from_config(config, max_context=5000).max_context == 900


@pytest.mark.parametrize(
    "change",
    [
        {"max_steps": 0},
        {"temperature": -0.5},
        {"concurrency": 0},
        {"horizon": -1},
        {"max_context": 50},
        {"refill_share": 0.0},
        {"refill_share": 1.5},
    ],
)
def test_impossible_settings_are_refused(change: dict[str, Any]) -> None:
    values: dict[str, Any] = {"horizon": 1, "max_steps": 5, "max_turn_tokens": 50, "max_context": 100, **change}
    with pytest.raises(ValueError, match=next(iter(change))):
        RolloutSettings(**values)
