"""Choosing failures and diagnosing them, with a scripted model."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roleagent.agent_in_world import diagnosis as module
from roleagent.agent_in_world.asking import Answer
from roleagent.agent_in_world.diagnosis import MAX_RAW, DiagnosisBatch, diagnose, fit_prompt, select_failures
from roleagent.agent_in_world.prompts import render_record
from roleagent.config.models import AgentInWorldConfig
from roleagent.types import DiagnosisStatus, StopReason, Trajectory
from tests.support.episodes import make_episode, make_step

CONFIG = AgentInWorldConfig(max_diagnosis_tokens=100)


def trajectory(
    task: str = "x",
    sample: int = 0,
    *,
    success: bool = False,
    steps: int = 4,
    stop: StopReason = StopReason.MAX_STEPS,
    observation: str = "You see nothing.",
) -> Trajectory:
    made = tuple(make_step(t, state=f"{observation} ({t})", action=f"go to place {t}") for t in range(1, steps + 1))
    return make_episode(
        made,
        task=task,
        success=success,
        trajectory_id=f"1/{task}/{sample}",
        goal=f"solve {task}",
        iteration=1,
        policy_version=7,
        sample_index=sample,
        final_state="The end.",
        stop_reason=StopReason.SUCCESS if success else stop,
    )


class CharacterTokenizer:
    """One token a character."""

    stop_ids = frozenset({0})

    def opening(self, system: str | None, first_user: str) -> list[int]:
        assert system is None
        return [ord(char) for char in first_user]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))


def good(step: int = 2, kind: str = "wrong object") -> str:
    return render_record(
        failure_type=kind, root_cause="It took a pen.", critical_step=step, lesson="Look.", retrieval_query="wrong pen"
    )


class Model:
    """Answers by a function of (prompt, attempt), and remembers what it was asked."""

    def __init__(self, answer: Callable[[str, int], str]) -> None:
        self._answer = answer
        self.calls: list[dict[str, Any]] = []

    def ask(
        self, engine: object, tokenizer: CharacterTokenizer, prompts: Sequence[list[int]], **options: Any
    ) -> object:
        texts = [tokenizer.decode(prompt) for prompt in prompts]
        self.calls.append({"prompts": texts, **options})
        answers = [self._answer(text, len(self.calls)) for text in texts]
        return [Answer(text, len(text)) for text in answers]


def run(
    monkeypatch: pytest.MonkeyPatch,
    answer: Callable[[str, int], str],
    trajectories: Sequence[Trajectory],
    *,
    max_context: int = 4000,
    config: AgentInWorldConfig = CONFIG,
    instructions: bool = False,
) -> tuple[DiagnosisBatch, Model]:
    model = Model(answer)
    monkeypatch.setattr(module, "ask", model.ask)
    batch = diagnose(
        None,  # type: ignore[arg-type]
        CharacterTokenizer(),  # type: ignore[arg-type]
        trajectories,
        config=config,
        run_id="run-1",
        seed=5,
        iteration=1,
        instructions=instructions,
        max_context=max_context,
    )
    return batch, model


# -- selection -------------------------------------------------------------------------------------------------------


def test_only_failures_of_the_model_are_chosen_and_the_rest_is_counted() -> None:
    group = [
        trajectory("a", 0, success=True),
        *[trajectory("a", i) for i in range(1, 6)],
        trajectory("b", 0, stop=StopReason.ENVIRONMENT_ERROR),
        trajectory("b", 1, stop=StopReason.ENVIRONMENT_TIMEOUT),
        trajectory("b", 2, steps=0, stop=StopReason.CONTEXT_FULL),
        trajectory("b", 3, stop=StopReason.MALFORMED),
    ]
    chosen, skipped = select_failures(group, 2, seed=1, iteration=1)
    assert [item.task.task_id for item in chosen] == ["a", "a", "b"]
    assert chosen[2].sample_index == 3
    assert skipped == {"over_limit": 3, "environment_fault": 2, "no_steps": 1}


def test_the_choice_is_seeded_and_fair() -> None:
    group = [trajectory("a", i) for i in range(6)]
    first = select_failures(group, 2, 1, 1)
    assert select_failures(group, 2, 1, 1) == first
    counts = Counter(
        item.sample_index for iteration in range(600) for item in select_failures(group, 2, 1, iteration).chosen
    )
    assert set(counts) == set(range(6))
    assert all(120 < count < 280 for count in counts.values())  # expected 200, deviation 11.5


@given(
    st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=30),
    st.integers(1, 4),
    st.randoms(use_true_random=False),
)
def test_selection_invariants(episodes: list[tuple[int, bool]], limit: int, shuffler: random.Random) -> None:
    group = [trajectory(f"task-{task}", i, success=success) for i, (task, success) in enumerate(episodes)]
    chosen, skipped = select_failures(group, limit, 3, 4)
    failed = [item for item in group if not item.success]
    assert len(chosen) + sum(skipped.values()) == len(failed)
    assert all(not item.success for item in chosen)
    per_task = Counter(item.task.task_id for item in chosen)
    available = Counter(item.task.task_id for item in failed)
    assert per_task == {task: min(limit, count) for task, count in available.items()}
    shuffled = list(group)
    shuffler.shuffle(shuffled)
    assert select_failures(shuffled, limit, 3, 4) == (chosen, skipped)


# -- diagnosing ------------------------------------------------------------------------------------------------------


def test_valid_answers_become_records(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, model = run(monkeypatch, lambda *_: f"Sure!\n{good()}", [trajectory("a"), trajectory("b", success=True)])
    (found,) = batch.diagnoses
    assert found.status is DiagnosisStatus.VALID
    assert (found.trajectory_id, found.task_id, found.environment) == ("1/a/0", "a", "household")
    assert (found.run_id, found.iteration, found.policy_version, found.attempts) == ("run-1", 1, 7, 1)
    assert (found.failure_type, found.critical_step, found.retrieval_query) == ("wrong object", 2, "wrong pen")
    assert (found.root_cause, found.lesson, found.error) == ("It took a pen.", "Look.", "")
    assert found.raw == f"Sure!\n{good()}"
    (call,) = model.calls
    assert call["max_tokens"] == 100
    assert call["temperature"] == 0.7
    assert call["prompts"][0].startswith("Diagnose the failed episode.\nTask: solve a\n1. go to place 1 -> ")
    assert call["prompts"][0].endswith("\n4. go to place 4 -> The end.")


def test_what_does_not_parse_is_asked_once_more_with_other_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    group = [trajectory("good"), trajectory("late"), trajectory("bad")]

    def answer(prompt: str, attempt: int) -> str:
        if "solve good" in prompt or ("solve late" in prompt and attempt == 2):
            return good()
        return good(step=99) if attempt == 2 else "no idea \ud800\x00"

    batch, model = run(monkeypatch, answer, group)
    by_task = {item.task_id: item for item in batch.diagnoses}
    assert by_task["good"].attempts == 1
    assert by_task["late"].attempts == 2
    assert by_task["late"].status is DiagnosisStatus.VALID
    bad = by_task["bad"]
    assert (bad.status, bad.attempts) == (DiagnosisStatus.QUARANTINED, 2)
    assert bad.error == "critical_step 99 is not in 1..4"
    assert bad.raw == good(step=99)
    assert (bad.failure_type, bad.critical_step, bad.retrieval_query) == ("", 0, "")
    assert [len(call["prompts"]) for call in model.calls] == [3, 2]
    first, second = model.calls[0]["seeds"], model.calls[1]["seeds"]
    assert len({*first, *second}) == 5
    expected = {"failed": 3, "diagnosed": 3, "valid": 2, "quarantined": 1, "retried": 2, "failure_types": 1}
    assert {name: batch.metrics[name] for name in expected} == expected
    assert batch.metrics["quarantined_share"] == pytest.approx(1 / 3)


def test_raw_words_are_bounded_and_storable(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, _ = run(monkeypatch, lambda *_: "x\ud800\x00" + "y" * 10_000, [trajectory()])
    (found,) = batch.diagnoses
    assert len(found.raw) <= MAX_RAW
    assert "\x00" not in found.raw
    found.raw.encode("utf-8")


def test_seeds_do_not_depend_on_the_other_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    _, alone = run(monkeypatch, lambda *_: good(), [trajectory("b")])
    _, together = run(monkeypatch, lambda *_: good(), [trajectory("a"), trajectory("b"), trajectory("c")])
    assert alone.calls[0]["seeds"][0] == together.calls[0]["seeds"][1]


def test_nothing_to_diagnose_asks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, model = run(monkeypatch, lambda *_: good(), [trajectory(success=True)])
    assert batch.diagnoses == ()
    assert model.calls == []
    assert batch.metrics["quarantined_share"] == 0
    assert batch.metrics["failed"] == 0


def test_a_long_episode_is_shortened_in_the_middle_until_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    episode = trajectory("a", steps=50)
    batch, model = run(monkeypatch, lambda *_: good(step=50), [episode], max_context=900)
    prompt = model.calls[0]["prompts"][0]
    assert len(prompt) <= 900 - 100
    assert "\n1. go to place 1 -> " in prompt
    assert "\n50. go to place 50 -> The end." in prompt
    assert "steps left out)" in prompt
    assert batch.metrics["shortened"] == 1
    assert batch.diagnoses[0].critical_step == 50


def test_an_episode_that_cannot_fit_is_quarantined_and_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, model = run(monkeypatch, lambda *_: good(), [trajectory("a", steps=30)], max_context=150)
    assert model.calls == []
    assert batch.diagnoses[0].status is DiagnosisStatus.QUARANTINED
    assert batch.diagnoses[0].error == "the episode does not fit into the context"
    assert (batch.diagnoses[0].attempts, batch.metrics["too_long"]) == (0, 1)


@given(st.integers(1, 40), st.integers(0, 800), st.booleans(), st.integers(0, 6000))
def test_a_fitted_prompt_never_exceeds_its_room(steps: int, length: int, instructions: bool, room: int) -> None:
    episode = trajectory("a", steps=steps, observation="o" * length)
    prompt, shortened = fit_prompt(CharacterTokenizer(), episode, instructions, room)  # type: ignore[arg-type]
    if prompt is None:
        assert shortened
        assert room < 2500 if instructions else room < 200
    else:
        assert len(prompt) <= room


def test_instructions_choose_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    _, model = run(monkeypatch, lambda *_: good(), [trajectory()], instructions=True)
    assert '"retrieval_query"' in model.calls[0]["prompts"][0]
