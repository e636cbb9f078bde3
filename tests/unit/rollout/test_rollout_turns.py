"""One turn with a scripted engine: malformed and truncated turns, predictions, the moment of the action."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from rollout_doubles import (
    SETTINGS,
    TOKENIZERS,
    Corridor,
    ScriptedEngine,
    ThreadedCorridor,
    east,
    play,
    task,
    walk,
    whole_tags,
)

from roleagent.policy.tokens import PolicyTokenizer
from roleagent.policy.turns import render_turn
from roleagent.rollout.context import MALFORMED_REPLY
from roleagent.rollout.meter import RolloutMeter
from roleagent.types import StopReason


def test_malformed_turns_in_a_row_end_the_episode_and_reach_no_environment() -> None:
    end = whole_tags().eot_id
    environment = Corridor()
    (trajectory,) = play(lambda text, turn: [*whole_tags().encode_text("hm"), end], factory=lambda: environment)
    assert trajectory.stop_reason is StopReason.MALFORMED
    assert len(trajectory.steps) == 3
    assert environment.actions == []
    assert trajectory.states == ("You are in room 0.", *[MALFORMED_REPLY] * 3)
    for step in trajectory.steps:
        assert step.malformed
        assert step.action == ""
        assert step.predictions == ("",)
        assert not step.valid_action


def test_a_readable_action_resets_the_malformed_count() -> None:
    end = whole_tags().eot_id

    def script(text: str, turn: int) -> str | list[int]:
        return [end] if turn % 3 else render_turn("", "wait", ["x"])

    (trajectory,) = play(script)
    assert trajectory.stop_reason is StopReason.MAX_STEPS
    assert [step.malformed for step in trajectory.steps] == [True, True, False] * 3 + [True]
    assert trajectory.steps[3].state == "You are in room 0."


def test_an_empty_action_is_malformed_and_its_predictions_do_not_count() -> None:
    (trajectory,) = play(walk(""))
    assert trajectory.stop_reason is StopReason.MALFORMED
    assert trajectory.steps[0].predictions == ("",)


def test_invalid_action_is_sent_and_marked() -> None:
    (trajectory,) = play(walk("fly"), settings=replace(SETTINGS, max_steps=2))
    assert [step.valid_action for step in trajectory.steps] == [False, False]
    assert not trajectory.steps[0].malformed
    assert trajectory.steps[1].state == "Nothing happens."


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_truncated_turn_keeps_its_action(tokenizer: Callable[[], PolicyTokenizer]) -> None:
    def script(text: str, turn: int) -> str:
        return "<action>go east</action><predict>" + "room " * 200

    (trajectory,) = play(script, tokenizer=tokenizer(), settings=replace(SETTINGS, max_turn_tokens=60))
    assert trajectory.stop_reason is StopReason.SUCCESS
    step = trajectory.steps[0]
    assert step.truncated
    assert len(step.generated_ids) == 60
    assert step.predictions == ("",)
    assert tokenizer().eot_id in trajectory.steps[1].context_ids, "the glue closes the turn"
    assert tokenizer().eot_id not in step.generated_ids


def test_a_turn_that_ends_with_its_last_allowed_token_is_not_truncated() -> None:
    turn = render_turn("", "go east", ["x"])
    length = len(whole_tags().encode_text(turn))
    (trajectory,) = play(lambda text, _: turn, settings=replace(SETTINGS, max_turn_tokens=length))
    assert not any(step.truncated for step in trajectory.steps)
    assert trajectory.success


def test_the_models_own_end_of_turn_is_not_repeated() -> None:
    tokenizer = whole_tags()
    turn = [*tokenizer.encode_text("<action>go east</action>"), tokenizer.eot_id]
    (trajectory,) = play(lambda text, _: turn)
    assert trajectory.success
    assert trajectory.steps[0].generated_ids == tuple(turn)
    assert tokenizer.eot_id not in trajectory.steps[1].context_ids
    assert trajectory.steps[0].predictions == ("",)


def test_the_text_before_the_models_own_end_of_turn_is_read_to_its_end() -> None:
    tokenizer = whole_tags()
    turn = [*tokenizer.encode_text("<think>open <action>go east</action>"), tokenizer.eot_id]
    (trajectory,) = play(lambda text, _: turn)
    assert trajectory.success, "the action is read when the turn is over, up to its last tag"


@pytest.mark.parametrize("horizon", [0, 1, 3])
def test_a_turn_ends_after_as_many_predictions_as_were_asked_for(horizon: int) -> None:
    def script(text: str, turn: int) -> str:  # the scripted engine refuses to go beyond this text
        return render_turn("hm", "go east", [f"prediction {number}" for number in range(horizon)])

    (trajectory,) = play(script, settings=replace(SETTINGS, horizon=horizon))
    assert trajectory.success
    assert trajectory.steps[0].predictions == tuple(f"prediction {number}" for number in range(horizon))


def test_predictions_before_the_action_do_not_end_the_turn() -> None:
    def script(text: str, turn: int) -> str:
        early = "<think>a <predict>no</predict> b</think><predict>no</predict>"
        return f"{early}<action>go east</action><predict>yes</predict>"

    (trajectory,) = play(script)
    assert trajectory.steps[0].predictions == ("yes",)


def test_action_of_a_think_block_that_never_closes_is_sent_at_the_end() -> None:
    (trajectory,) = play(lambda text, turn: "<think>well <action>go east</action><predict>x</predict>")
    assert trajectory.success
    assert trajectory.steps[0].reasoning == "well"


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_the_action_is_sent_while_predictions_are_still_to_come(tokenizer: Callable[[], PolicyTokenizer]) -> None:
    left: list[int] = []
    engine = ScriptedEngine(tokenizer(), east)
    play(
        east,
        engine=engine,
        tokenizer=tokenizer(),
        factory=lambda: Corridor(on_step=lambda action: left.append(len(engine.rest[0]))),
    )
    predictions = [len(tokenizer().encode_text(f"<predict>You are in room {room}.</predict>")) for room in range(1, 4)]
    assert left == predictions, "the environment was called with every prediction token still undecoded"


def test_the_action_is_sent_early_to_an_environment_in_a_thread_too() -> None:
    engine = ScriptedEngine(whole_tags(), east)
    called = threading.Event()
    waited: list[bool] = []

    def script(text: str, turn: int) -> str:
        return east(text, turn)

    original = engine.step

    def step(slots: Sequence[int], token_ids: Sequence[int]) -> object:
        if whole_tags().decode(engine.held[0]).count("</action>") == 1 and not waited:
            waited.append(called.wait(10))  # decoding stands still here: the call must come without it
        return original(slots, token_ids)

    engine.step = step  # type: ignore[method-assign, assignment]
    play(script, engine=engine, factory=lambda: ThreadedCorridor(on_step=lambda action: called.set()))
    assert waited == [True]


def test_time_is_the_predictions_from_the_first_token_behind_the_action(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that goes one second a decode step of one lane, seconds are tokens."""
    engine = ScriptedEngine(whole_tags(), east)
    monkeypatch.setattr("roleagent.rollout.turn_batch.time.perf_counter", lambda: float(engine.steps))
    meter = RolloutMeter()
    (trajectory,) = play(east, engine=engine, meter=meter)
    (closing,) = whole_tags().encode_text("</action>")
    foretold = sum(len(ids) - ids.index(closing) - 1 for ids in (step.generated_ids for step in trajectory.steps))
    assert foretold > 0
    assert meter.prediction_tokens == foretold
    assert meter.prediction_seconds == meter.prediction_only_seconds == meter.prediction_any_seconds == foretold
    # The first token of each turn comes with the prefill, and is no decode step.
    generated = sum(len(step.generated_ids) for step in trajectory.steps)
    assert meter.decode_seconds == generated - len(trajectory.steps)


def test_a_prefill_without_guesses_is_no_decode_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with times whose products and quotients round."""
    engine = ScriptedEngine(whole_tags(), east)
    monkeypatch.setattr(
        "roleagent.rollout.turn_batch.time.perf_counter", lambda: engine.steps * 0.1 + engine.prefilled * 0.37
    )
    meter = RolloutMeter()
    play(east, engine=engine, tasks=[(task(target), 0) for target in range(1, 9)], meter=meter)
    assert meter.decode_steps == engine.steps


def test_without_predictions_their_time_is_zero() -> None:
    meter = RolloutMeter()
    play(lambda text, turn: render_turn("", "go east", []), settings=replace(SETTINGS, horizon=0), meter=meter)
    assert meter.decode_seconds > 0
    assert meter.prediction_seconds == meter.prediction_any_seconds == meter.prediction_tokens == 0
