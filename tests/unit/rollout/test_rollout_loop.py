"""The loop with a scripted engine: what is recorded, why an episode stops, slots and environments."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from rollout_doubles import SETTINGS, TOKENIZERS, Corridor, ScriptedEngine, Slow, east, play, task, walk, whole_tags

from roleagent.environments.base import Outcome
from roleagent.policy.tokens import PolicyTokenizer
from roleagent.policy.turns import render_turn
from roleagent.rollout.loop import collect
from roleagent.rollout.meter import RolloutMeter
from roleagent.types import StopReason


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_success_and_the_record(tokenizer: Callable[[], PolicyTokenizer]) -> None:
    (trajectory,) = play(east, tokenizer=tokenizer())
    assert trajectory.stop_reason is StopReason.SUCCESS
    assert trajectory.success
    assert trajectory.score == 1.0
    assert trajectory.goal == "reach room 3"
    assert trajectory.states == tuple(f"You are in room {room}." for room in range(4))
    assert (trajectory.iteration, trajectory.policy_version, trajectory.sample_index) == (2, 7, 0)
    assert trajectory.trajectory_id == "rollout-00002-corridor-3-00"
    assert [step.reward for step in trajectory.steps] == [0.0, 0.0, 1.0]
    for number, step in enumerate(trajectory.steps, start=1):
        assert step.index == number
        assert step.action == "go east"
        assert step.reasoning == "on we go"
        assert step.predictions == (f"You are in room {number}.",)
        assert step.valid_action
        assert not step.malformed
        assert not step.truncated
        assert step.continues == (number > 1)
        assert len(step.logprobs) == len(step.generated_ids)
        assert step.logprobs == (0.0,) * len(step.generated_ids)
        assert tokenizer().decode(step.generated_ids) == render_turn("on we go", "go east", step.predictions)
    assert tokenizer().decode(trajectory.steps[0].context_ids) == "Your task is to: reach room 3\nYou are in room 0."
    assert tokenizer().decode(trajectory.steps[1].context_ids) == "You are in room 1."


def test_failure() -> None:
    (trajectory,) = play(walk("give up"))
    assert trajectory.stop_reason is StopReason.FAILURE
    assert not trajectory.success
    assert len(trajectory.steps) == 1


def test_the_score_is_the_environments_and_not_the_success() -> None:
    class Partial(Corridor):
        def step(self, action: str) -> Outcome:
            return replace(super().step(action), score=0.25 * self.room)

    (trajectory,) = play(east, factory=Partial, settings=replace(SETTINGS, max_steps=2))
    assert trajectory.stop_reason is StopReason.MAX_STEPS
    assert trajectory.score == 0.5
    assert not trajectory.success


def test_max_steps() -> None:
    (trajectory,) = play(walk("wait"), settings=replace(SETTINGS, max_steps=4))
    assert trajectory.stop_reason is StopReason.MAX_STEPS
    assert len(trajectory.steps) == 4
    assert trajectory.final_state == "You are in room 0."


def test_context_full_before_the_turn_that_would_not_fit() -> None:
    tokenizer = whole_tags()
    engine = ScriptedEngine(tokenizer, walk("wait"))
    (trajectory,) = play(walk("wait"), engine=engine, settings=replace(SETTINGS, max_context=200))
    assert trajectory.stop_reason is StopReason.CONTEXT_FULL
    length = sum(len(step.context_ids) + len(step.generated_ids) for step in trajectory.steps)
    context = len(tokenizer.next_user(trajectory.final_state, False))
    assert length <= 200
    assert length + context + SETTINGS.max_turn_tokens > 200
    last = trajectory.steps[-1]
    assert length - len(last.generated_ids) + SETTINGS.max_turn_tokens <= 200, "the last turn had room"


def test_context_full_at_once_has_no_steps() -> None:
    (trajectory,) = play(
        east, factory=lambda: Corridor(text=" word" * 900), settings=replace(SETTINGS, max_context=300)
    )
    assert trajectory.stop_reason is StopReason.CONTEXT_FULL
    assert trajectory.steps == ()
    assert trajectory.final_state.startswith("You are in room 0. word")


def test_the_models_own_limit_counts_too() -> None:
    (trajectory,) = play(walk("wait"), engine=ScriptedEngine(whole_tags(), walk("wait"), max_context=200))
    assert trajectory.stop_reason is StopReason.CONTEXT_FULL


def test_finished_episodes_leave_and_waiting_ones_take_their_slots() -> None:
    tasks = [(task(target), 0) for target in (1, 8, 2, 5)] + [(task(target), 1) for target in (1, 3, 7)]
    engine = ScriptedEngine(whole_tags(), east)
    progress: list[tuple[int, int]] = []
    played = collect(
        engine,
        whole_tags(),
        Corridor,
        tasks,
        replace(SETTINGS, concurrency=3),
        iteration=0,
        policy_version=0,
        seed=0,
        purpose="rollout",
        on_progress=lambda done, total: progress.append((done, total)),
    )
    assert [(trajectory.task, trajectory.sample_index) for trajectory in played] == tasks, "the order of the tasks"
    assert all(trajectory.success for trajectory in played)
    assert [len(trajectory.steps) for trajectory in played] == [1, 8, 2, 5, 1, 3, 7]
    assert engine.largest == 3
    assert progress == [(done, 7) for done in range(1, 8)]


def test_environments_are_used_again() -> None:
    made: list[Corridor] = []

    def factory() -> Corridor:
        made.append(Corridor())
        return made[-1]

    play(
        east,
        factory=factory,
        tasks=[(task(2), sample) for sample in range(9)],
        settings=replace(SETTINGS, concurrency=3),
    )
    assert len(made) == 3


def test_slow_environments_run_side_by_side() -> None:
    meter = RolloutMeter()
    started = time.monotonic()
    play(
        east,
        factory=Slow,
        tasks=[(task(4), sample) for sample in range(8)],
        settings=replace(SETTINGS, concurrency=8, environment_workers=8),
        meter=meter,
    )
    assert time.monotonic() - started < 8 * 4 * 0.05, "one after another it would take 1.6 s"
    assert meter.environment_calls == 8 * 5


def test_a_pair_may_not_be_played_twice() -> None:
    with pytest.raises(ValueError, match="once"):
        play(east, tasks=[(task(3), 0), (task(3), 0)])


def test_nothing_to_play() -> None:
    assert play(east, tasks=[]) == []
