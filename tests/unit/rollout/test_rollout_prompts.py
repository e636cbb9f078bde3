"""What the policy reads: every token once, the templates of the context, the instructions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rollout_doubles import SETTINGS, Corridor, ScriptedEngine, east, play, task, whole_tags

from roleagent.environments.base import Observation
from roleagent.rollout.context import MALFORMED_REPLY
from roleagent.rollout.meter import RolloutMeter


def test_no_token_is_computed_twice() -> None:
    meter = RolloutMeter()
    engine = ScriptedEngine(whole_tags(), east)
    (trajectory,) = play(east, engine=engine, tasks=[(task(6), 0)], meter=meter)
    context = sum(len(step.context_ids) for step in trajectory.steps)
    generated = sum(len(step.generated_ids) for step in trajectory.steps)
    read = engine.prefilled + engine.steps
    assert read == context + generated - 1, "all but the very last token, each once"
    assert engine.prefilled == context + len(trajectory.steps) - 1, "contexts, and the last token of each turn"
    assert meter.prefilled_tokens == engine.prefilled
    assert meter.decoded_tokens == generated


def test_the_engine_holds_exactly_the_recorded_ids() -> None:
    engine = ScriptedEngine(whole_tags(), east)
    held: list[list[int]] = []
    original = engine.close

    def close(slots: Sequence[int]) -> None:
        held.extend(list(engine.held[slot]) for slot in slots)
        original(slots)

    engine.close = close  # type: ignore[method-assign]
    (trajectory,) = play(east, engine=engine)
    ids = [token for step in trajectory.steps for token in (*step.context_ids, *step.generated_ids)]
    assert held == [ids[:-1]]


def test_step_template_prompts_are_sequences_of_their_own() -> None:
    def script(text: str, turn: int) -> str:
        assert turn == 1, "each prompt has an empty slot"
        return east(text, turn)

    settings = replace(SETTINGS, context="step", window=1)
    (trajectory,) = play(script, settings=settings)
    assert trajectory.success
    assert not any(step.continues for step in trajectory.steps)
    assert whole_tags().decode(trajectory.steps[2].context_ids) == (
        "Your task is to: reach room 3\nYour last steps:\n"
        "Observation: You are in room 1.\nAction: go east\nNow:\nYou are in room 2."
    )


class Signposted(Corridor):
    """Lists what can be done."""

    def observation(self) -> Observation:
        return Observation(f"You are in room {self.room}.", lambda: ("go east", "go west", f"give up at {self.room}"))


def test_the_template_with_actions_tells_what_the_environment_lists() -> None:
    def script(text: str, turn: int) -> str | list[int]:
        silent = [*whole_tags().encode_text("hm"), whole_tags().eot_id]
        return east(text, turn) if "You are in room 0." in text.rsplit("Now:", 1)[-1] else silent

    settings = replace(SETTINGS, context="step_actions", window=1, max_malformed=2)
    (trajectory,) = play(script, factory=Signposted, settings=settings)
    prompts = [whole_tags().decode(step.context_ids) for step in trajectory.steps]
    assert prompts[0] == (
        "Your task is to: reach room 3\nYou are in room 0.\nPossible actions: go east; go west; give up at 0"
    )
    assert prompts[1] == (
        "Your task is to: reach room 3\nSteps taken: 1\nYour last steps:\nObservation: You are in room 0.\n"
        "Action: go east\nNow:\nYou are in room 1.\nPossible actions: go east; go west; give up at 1"
    )
    assert prompts[2].endswith(f"{MALFORMED_REPLY}\nPossible actions: go east; go west; give up at 1"), "as before"
    assert not any(step.continues for step in trajectory.steps)


def test_instructions_are_the_system_prompt() -> None:
    (trajectory,) = play(east, settings=replace(SETTINGS, instructions=True))
    text = whole_tags().decode(trajectory.steps[0].context_ids)
    assert "go east | go west" in text
    assert text.endswith("Your task is to: reach room 3\nYou are in room 0.")
