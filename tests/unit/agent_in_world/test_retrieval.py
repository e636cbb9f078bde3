"""From diagnoses to relevance, with hand-made vectors in place of a model and a store."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from roleagent.agent_in_world import retrieval as module
from roleagent.agent_in_world.asking import Answer
from roleagent.agent_in_world.curriculum import TaskDistribution
from roleagent.agent_in_world.records import BankRecord, Catalogue, Neighbour
from roleagent.agent_in_world.retrieval import Retrieval, retrieve
from roleagent.config.models import AgentInWorldConfig
from roleagent.types import Diagnosis, DiagnosisStatus

ANGLES = {"explore": 0.0, "explore more": 0.3, "misplace": 1.2, "unlike": 3.0}


class PlaneEmbedder:
    """A kind of failure is a direction in the plane."""

    name, dimension = "plane", 2

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        angles = [ANGLES[text.partition(":")[0]] for text in texts]
        return np.array([[np.cos(angle), np.sin(angle)] for angle in angles], dtype=np.float32).reshape(-1, 2)


class MemoryBank:
    """The bank's search, exactly, over a catalogue."""

    def __init__(self, diagnoses: Sequence[Diagnosis]) -> None:
        self.embedder = PlaneEmbedder()
        self.calls = 0
        self._catalogue = Catalogue()
        self._catalogue.put(BankRecord.of(item) for item in diagnoses)

    def neighbours(
        self, vectors: np.ndarray, k: int, *, exclude: Sequence[Collection[str]], floor: float, salt: int
    ) -> list[list[Neighbour]]:
        self.calls += 1
        texts = {record.pattern_id: record.text for record in self._catalogue}
        known = self.embedder.embed(list(texts.values()))
        return [
            self._catalogue.tasks(
                [(pattern, float(vector @ row)) for pattern, row in zip(texts, known, strict=True)],
                k,
                exclude=unwanted,
                floor=floor,
                salt=salt,
            )
            for vector, unwanted in zip(vectors, exclude, strict=True)
        ]


def diagnosis(task: str, kind: str, iteration: int = 1, sample: int = 0) -> Diagnosis:
    return Diagnosis(
        trajectory_id=f"{iteration}/{task}/{sample}",
        task_id=task,
        environment="household",
        run_id="run",
        iteration=iteration,
        policy_version=iteration - 1,
        status=DiagnosisStatus.VALID,
        failure_type=kind,
        root_cause=f"cause in {task}",
        critical_step=1,
        lesson="l",
        retrieval_query="q",
    )


PAST = [
    diagnosis("a", "explore"),
    diagnosis("b", "explore more"),
    diagnosis("c", "misplace"),
    diagnosis("d", "unlike"),
]


def run(diagnoses: Sequence[Diagnosis], bank: MemoryBank | None = None, **values: Any) -> Retrieval:
    config = AgentInWorldConfig.model_validate(values)
    model: Any = object() if config.model_selects else None
    tokenizer: Any = Tokenizer() if config.model_selects else None
    return retrieve(
        bank or MemoryBank(PAST),  # type: ignore[arg-type]
        diagnoses,
        config=config,
        seed=1,
        iteration=2,
        engine=model,
        tokenizer=tokenizer,
    )


def test_relevance_is_the_similarity_of_the_closest_failure() -> None:
    now = [diagnosis("x", "explore", 2), diagnosis("y", "misplace", 2)]
    found = run(now, similarity_floor=0.3)
    assert found.relevance == {
        "a": pytest.approx(1.0),
        "b": pytest.approx(np.cos(0.3)),  # 0.955 to the first, cos 0.9 = 0.62 to the second
        "c": pytest.approx(1.0),
    }
    assert found.metrics["queries"] == 2
    assert found.metrics["neighbours"] == 6  # a (cos 0, cos 1.2), b (cos 0.3, cos 0.9), c (cos 1.2, cos 0)
    assert found.metrics["tasks"] == 3
    assert found.metrics["similarity_max"] == pytest.approx(1.0)
    assert found.metrics["empty_share"] == 0


def test_the_floor_and_top_k_limit_what_is_found() -> None:
    assert set(run([diagnosis("x", "explore", 2)], similarity_floor=0.99).relevance) == {"a"}
    assert set(run([diagnosis("x", "explore", 2)], top_k=2).relevance) == {"a", "b"}


def test_a_task_does_not_retrieve_itself() -> None:
    assert set(run([diagnosis("a", "explore", 2)]).relevance) == {"b", "c"}
    both = run([diagnosis("a", "explore", 2), diagnosis("b", "explore", 2)])
    assert set(both.relevance) == {"a", "b", "c"}


def test_several_failures_of_one_task_count_like_one() -> None:
    one = run([diagnosis("x", "explore", 2)])
    three = run([diagnosis("x", "explore", 2, sample) for sample in range(3)])
    assert one.relevance == three.relevance


def test_negative_similarity_gives_no_relevance() -> None:
    found = run([diagnosis("x", "explore", 2)], similarity_floor=-1.0)
    assert "d" not in found.relevance
    assert found.metrics["neighbours"] == 4


def test_quarantined_records_are_never_asked_about() -> None:
    bad = replace(diagnosis("x", "explore", 2), status=DiagnosisStatus.QUARANTINED)
    bank = MemoryBank(PAST)
    found = run([bad], bank)
    assert found.relevance == {}
    assert bank.calls == 0
    assert found.metrics["queries"] == 0
    assert found.metrics["similarity_mean"] == 0


def test_an_empty_bank_gives_nothing_and_all_queries_are_one_call() -> None:
    assert run([diagnosis("x", "explore", 2)], MemoryBank([])).metrics["empty_share"] == 1
    bank = MemoryBank(PAST)
    run([diagnosis(f"x{i}", "explore", 2) for i in range(16)], bank)
    assert bank.calls == 1


def test_only_tasks_that_failed_become_more_likely() -> None:
    """Through to the distribution: tasks without a failure in the bank stay at the base rate."""
    pool = ["a", "b", "c", "d", *[f"won-{i}" for i in range(16)]]
    made = TaskDistribution(pool, AgentInWorldConfig(max_probability=0.5))
    made.add_relevance(run([diagnosis("x", "explore", 2)]).relevance)
    made.end_iteration()
    p = dict(zip(pool, made.probabilities().tolist(), strict=True))
    assert p["a"] > p["b"] > p["c"] > p["d"]
    assert p["d"] == p["won-0"] == pytest.approx(0.5 / 20)


class Tokenizer:
    def opening(self, system: str | None, first_user: str) -> list[int]:
        return [ord(char) for char in first_user]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))


def selecting(monkeypatch: pytest.MonkeyPatch, *answers: str) -> list[list[str]]:
    seen: list[list[str]] = []

    def ask(engine: object, tokenizer: Tokenizer, prompts: Sequence[list[int]], **_: Any) -> list[Answer]:
        seen.append([tokenizer.decode(prompt) for prompt in prompts])
        return [Answer(text, 1) for text in answers[: len(prompts)]]

    monkeypatch.setattr(module, "ask", ask)
    return seen


def test_the_model_chooses_among_the_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = selecting(monkeypatch, "[2]", "[]")
    found = run([diagnosis("x", "explore", 2), diagnosis("y", "misplace", 2)], model_selects=True)
    assert set(found.relevance) == {"b"}
    assert found.metrics["selected_share"] == pytest.approx(1 / 6)
    assert found.metrics["selection_unparsed"] == 0
    assert "explore. cause in x" in seen[0][0]
    assert "1. explore. cause in a\n2. explore more. cause in b\n3. misplace. cause in c" in seen[0][0]


def test_an_unreadable_choice_is_counted_and_keeps_the_ranking(monkeypatch: pytest.MonkeyPatch) -> None:
    selecting(monkeypatch, "all of them", "[9]")
    now = [diagnosis("x", "explore", 2), diagnosis("y", "misplace", 2)]
    found = run(now, model_selects=True)
    assert found.relevance == run(now).relevance
    assert found.metrics["selection_unparsed"] == 2


def test_selection_without_a_model_is_refused() -> None:
    with pytest.raises(ValueError, match="needs an engine"):
        retrieve(
            MemoryBank(PAST),  # type: ignore[arg-type]
            [diagnosis("x", "explore", 2)],
            config=AgentInWorldConfig(model_selects=True),
            seed=1,
            iteration=2,
        )
