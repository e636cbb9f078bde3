"""The bank's catalogue: patterns, recency, ties, exclusion."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roleagent.agent_in_world.records import BankRecord, Catalogue
from roleagent.types import Diagnosis, DiagnosisStatus


def record(number: int, *, task: str = "", kind: str = "wrong object", iteration: int = 1) -> BankRecord:
    return BankRecord(
        record_id=f"r{number:03d}",
        trajectory_id=f"t{number}",
        task_id=task or f"task-{number}",
        environment="household",
        failure_type=kind,
        root_cause="cause",
        critical_step=2,
        lesson="lesson",
        retrieval_query="query",
        iteration=iteration,
        policy_version=0,
    )


def catalogue(*records: BankRecord) -> Catalogue:
    made = Catalogue()
    made.put(records)
    return made


def test_a_record_is_the_diagnosis_and_survives_as_metadata() -> None:
    diagnosis = Diagnosis(
        trajectory_id="t",
        task_id="x",
        environment="household",
        run_id="r",
        iteration=3,
        policy_version=2,
        status=DiagnosisStatus.VALID,
        failure_type="wrong object",
        root_cause="c",
        critical_step=4,
        lesson="l",
        retrieval_query="q",
    )
    made = BankRecord.of(diagnosis)
    assert made.record_id == diagnosis.record_id
    assert made.text == "wrong object: q"
    assert replace(made, retrieval_query="Wrong object: a pen").text == "Wrong object: a pen"
    assert BankRecord.from_metadata(made.record_id, made.metadata()) == made
    assert set(made.metadata()) == {
        *("environment", "task_id", "failure_type", "iteration", "policy_version", "critical_step", "resolved"),
        "details",
    }
    with pytest.raises(KeyError):
        BankRecord.from_metadata("r", {"task_id": "x"})
    with pytest.raises(ValueError, match="Expecting"):
        BankRecord.from_metadata("r", {**made.metadata(), "details": "{"})


def test_recent_failures_come_first_and_each_task_once() -> None:
    made = catalogue(
        record(1, task="a", iteration=1),
        record(2, task="b", iteration=2),
        record(3, task="a", iteration=3),
        record(4, task="c", iteration=2),
        record(5, task="d", iteration=9, kind="other"),
    )
    hits = [(record(1).pattern_id, 0.9)]
    found = made.tasks(hits, 5, exclude=(), floor=0.0, salt=0)
    assert [(item.task_id, item.record.record_id) for item in found[:1]] == [("a", "r003")]
    assert {item.task_id for item in found[1:]} == {"b", "c"}
    for salt in range(20):
        assert made.tasks(hits, 1, exclude=(), floor=0.0, salt=salt)[0].task_id == "a"
    assert [item.task_id for item in made.tasks(hits, 5, exclude={"a"}, floor=0, salt=0)] in (["b", "c"], ["c", "b"])
    assert made.tasks(hits, 5, exclude=(), floor=0.91, salt=0) == []


def test_ties_are_broken_by_the_salt_and_not_by_name() -> None:
    made = catalogue(*(record(i) for i in range(20)))
    hits = [(record(0).pattern_id, 1.0)]
    firsts = {made.tasks(hits, 1, exclude=(), floor=0, salt=salt)[0].task_id for salt in range(60)}
    assert len(firsts) > 10
    assert made.tasks(hits, 5, exclude=(), floor=0, salt=1) == made.tasks(hits, 5, exclude=(), floor=0, salt=1)


def test_a_task_in_two_patterns_takes_the_more_similar() -> None:
    made = catalogue(record(1, task="a", kind="x"), record(2, task="a", kind="y"), record(3, task="b", kind="x"))
    hits = [(record(1, kind="x").pattern_id, 0.5), (record(2, kind="y").pattern_id, 0.8)]
    found = made.tasks(hits, 5, exclude=(), floor=0, salt=0)
    assert [(item.task_id, item.similarity) for item in found] == [("a", 0.8), ("b", 0.5)]


def test_removing_the_last_record_of_a_pattern_names_it() -> None:
    made = catalogue(record(1), record(2), record(3, kind="other"))
    assert made.remove(["r001"]) == []
    assert made.remove(["r002", "unknown"]) == [record(2).pattern_id]
    assert list(made.patterns) == [record(3, kind="other").pattern_id]
    assert len(made) == 1


def test_resolution_touches_only_failures_up_to_the_mastery() -> None:
    made = catalogue(
        record(1, task="a", iteration=1), record(2, task="a", iteration=5), record(3, task="b", iteration=1)
    )
    changed = made.resolvable({"a": 3, "nobody": 9})
    assert changed == [replace(record(1, task="a", iteration=1), resolved=True)]
    made.put(changed)
    assert made.resolvable({"a": 3}) == []
    assert made.resolvable({"b": 0}) == []
    assert [item.task_id for item in made.resolvable({"b": 1})] == ["b"]  # mastered in the very iteration it failed in
    assert made.stats()["resolved"] == 1


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 3), st.integers(0, 4), st.booleans()), max_size=40))
def test_patterns_always_match_the_records(operations: list[tuple[int, int, int, bool]]) -> None:
    made = Catalogue()
    truth: dict[str, BankRecord] = {}
    for number, kind, iteration, remove in operations:
        item = record(number, kind=f"kind {kind}", iteration=iteration)
        if remove:
            made.remove([item.record_id])
            truth.pop(item.record_id, None)
        else:
            made.put([item])
            truth[item.record_id] = item
        assert set(made.patterns) == {item.pattern_id for item in truth.values()}
        assert {item.record_id: item for item in made} == truth
        stats = made.stats()
        assert stats["records"] == len(truth) == sum(stats["by_failure_type"].values())
        for pattern in made.patterns:
            tasks = {item.task_id for item in truth.values() if item.pattern_id == pattern}
            assert {item.task_id for item in made.latest(pattern, (), 0)} == tasks
