"""Each expectation catches a record that breaks it, and only it, and its rows are handed out."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
from quality_cases import (
    GROUP_SIZE,
    ITERATION,
    MAX_STEPS,
    POLICY,
    make_batch,
    make_diagnosis,
    make_drawn,
    make_step,
    make_task,
    make_trajectory,
    with_step,
)

from roleagent.config.models import QualityConfig
from roleagent.errors import DataQualityError
from roleagent.quality import QualityReport, validate_diagnoses, validate_tasks, validate_trajectories
from roleagent.quality.screen import rule_name
from roleagent.types import Diagnosis, DiagnosisStatus, DrawnTask, StopReason, Trajectory

CONFIG = QualityConfig()
Tasks = list[DrawnTask]
Batch = list[Trajectory]
Diagnoses = list[Diagnosis]


def check_tasks(drawn: Tasks, **options: Any) -> QualityReport:
    return validate_tasks(drawn, count=3, environment="household", **options)


def check_batch(batch: Batch, **options: Any) -> QualityReport:
    return validate_trajectories(
        batch,
        config=CONFIG,
        reward_range=(0.0, 1.0),
        group_size=GROUP_SIZE,
        max_steps=MAX_STEPS,
        horizon=1,
        iteration=ITERATION,
        policy_version=POLICY,
        **options,
    )


def check_diagnoses(diagnoses: Diagnoses, **options: Any) -> QualityReport:
    batch = [*make_batch(), make_trajectory(9, 0, success=True, stop_reason=StopReason.SUCCESS)]
    return validate_diagnoses(diagnoses, batch, config=CONFIG, iteration=ITERATION, **options)


def rules(report: QualityReport) -> set[str]:
    return {violation.rule for violation in (*report.critical, *report.warnings)}


def offenders(report: QualityReport, column: str) -> list[Any]:
    assert report.offending is not None
    return report.offending[column].tolist()


# --- tasks: rule -> (bad records, offending task ids)
def _task(position: int, **changes: Any) -> Tasks:
    drawn = make_drawn()
    drawn[position] = replace(drawn[position], **changes)
    return drawn


TASKS: dict[str, tuple[Tasks, list[str]]] = {
    "task_id_present": (_task(1, task=replace(make_task(1), task_id="")), ["missing"]),
    "task_unique": (_task(1, task=make_task(0)), ["task-0", "task-0"]),
    "source_known": (_task(1, source="guess"), ["task-1"]),
    "probability_finite": (_task(1, probability=math.nan), ["task-1"]),
    "probability_range": (_task(2, probability=1.5), ["task-2"]),
    "task_type_present": (_task(2, task=replace(make_task(2), task_type="")), ["task-2"]),
    "task_count": (make_drawn(2), ["task-0", "task-1"]),
    "environment_known": (_task(0, task=replace(make_task(0), environment="shop")), ["task-0"]),
    "split_known": (_task(0, task=replace(make_task(0), split="heldout")), ["task-0"]),
}


@pytest.mark.parametrize("rule", TASKS)
def test_task_rules(rule: str) -> None:
    drawn, ids = TASKS[rule]
    report = check_tasks(drawn)
    assert rules(report) == {rule}
    assert report.offending is not None
    assert report.offending["task_id"].fillna("missing").tolist() == ids
    assert report.ok == (rule == "task_type_present")


# --- trajectories: rule -> change of a good batch
def _episode(**changes: Any) -> Callable[[Batch], Batch]:
    return lambda batch: [batch[0], replace(batch[1], **changes), *batch[2:]]


def _step(index: int, **changes: Any) -> Callable[[Batch], Batch]:
    return lambda batch: [batch[0], with_step(batch[1], index, **changes), *batch[2:]]


def _without_step_three(batch: Batch) -> Batch:
    return _episode(steps=batch[1].steps[:2] + batch[1].steps[3:])(batch)


def _all_malformed(batch: Batch) -> Batch:
    steps = tuple(make_step(index, malformed=True, action="", valid_action=False) for index in range(1, 6))
    return [replace(trajectory, steps=steps) for trajectory in batch]


def _most_with_faults(batch: Batch) -> Batch:
    faults = (StopReason.ENVIRONMENT_ERROR, StopReason.ENVIRONMENT_TIMEOUT)
    bad = [replace(trajectory, stop_reason=faults[n % 2]) for n, trajectory in enumerate(batch[:7])]
    return [*bad, *batch[7:]]


EPISODES: dict[str, Callable[[Batch], Batch]] = {
    "trajectory_id_present": _episode(trajectory_id=""),
    "task_id_present": lambda batch: [
        *batch,
        *(replace(make_trajectory(7, sample), task=replace(make_task(7), task_id="")) for sample in range(GROUP_SIZE)),
    ],
    "step_unique": lambda batch: [batch[0], replace(batch[1], trajectory_id=batch[0].trajectory_id), *batch[2:]],
    "steps_contiguous": _without_step_three,
    "episode_length": _episode(steps=tuple(make_step(index) for index in range(1, MAX_STEPS + 2))),
    "stop_reason_known": _episode(stop_reason="boredom"),
    "success_stops": _episode(success=True),
    "reward_finite": _step(2, reward=math.nan),
    "reward_range": _step(2, reward=1.01),
    "score_finite": _episode(score=math.nan),
    "score_bounded": _episode(score=math.inf),
    "turn_not_empty": _step(4, generated_ids=(), logprobs=()),
    "logprob_for_each_token": _step(4, logprobs=(-1.0,)),
    "logprob_finite": _step(4, logprobs=(-1.0, -math.inf, -2.0)),
    "logprob_not_positive": _step(4, logprobs=(-1.0, 0.1, -2.0)),
    "malformed_without_action": _step(3, action=""),
    "state_not_empty": _step(3, state=""),
    "malformed_share": _all_malformed,
    "environment_fault_share": _most_with_faults,
    "group_size": lambda batch: batch[:-1],
    "sample_index_range": _episode(sample_index=GROUP_SIZE),
    "prediction_count": _step(3, predictions=()),
    "iteration_same": _episode(iteration=ITERATION + 1),
    "policy_version_same": _episode(policy_version=POLICY + 1),
}
WARNINGS = {"malformed_without_action", "state_not_empty"}


@pytest.mark.parametrize("rule", EPISODES)
def test_trajectory_rules(rule: str) -> None:
    report = check_batch(EPISODES[rule](make_batch()))
    assert rules(report) == {rule}
    assert report.ok == (rule in WARNINGS)
    assert report.offending is not None
    assert (report.offending["broken"] == rule).all()


@pytest.mark.parametrize(
    ("rule", "rows"),
    [
        ("reward_range", [("episode-0-1", 2)]),
        ("logprob_not_positive", [("episode-0-1", 4)]),
        ("steps_contiguous", [("episode-0-1", 4), ("episode-0-1", 5)]),
        ("group_size", [(f"episode-2-{sample}", step) for sample in range(3) for step in range(1, 6)]),
    ],
)
def test_the_offending_rows_are_saved(rule: str, rows: list[tuple[str, int]]) -> None:
    report = check_batch(EPISODES[rule](make_batch()))
    saved = pd.read_parquet(io.BytesIO(report.offending_parquet()))
    assert list(zip(saved["trajectory_id"], saved["step"], strict=True)) == rows
    assert report.critical[0].rows == len(rows)


def test_an_episode_without_steps() -> None:
    batch = make_batch()
    for reason in (StopReason.ENVIRONMENT_ERROR, StopReason.ENVIRONMENT_TIMEOUT, StopReason.CONTEXT_FULL):
        assert check_batch([replace(batch[0], steps=(), stop_reason=reason), *batch[1:]], full=True).ok
    report = check_batch([replace(batch[0], steps=()), *batch[1:]])
    assert rules(report) == {"episode_length"}
    assert offenders(report, "trajectory_id") == ["episode-0-0"]
    nothing = [replace(item, steps=(), stop_reason=StopReason.CONTEXT_FULL) for item in batch]
    assert check_batch(nothing, full=True).ok


# --- diagnoses
def _diagnosis(**changes: Any) -> Diagnoses:
    return [make_diagnosis(0), make_diagnosis(1, **changes), make_diagnosis(2)]


_QUARANTINED = {"status": DiagnosisStatus.QUARANTINED, "critical_step": 0, "error": "no JSON", "raw": "hm"}

DIAGNOSES: dict[str, Diagnoses] = {
    "trajectory_id_present": _diagnosis(trajectory_id=""),
    "task_id_present": _diagnosis(task_id=""),
    "record_unique": [make_diagnosis(0), make_diagnosis(1), make_diagnosis(1, failure_type="other")],
    "status_known": _diagnosis(status="maybe"),
    "trajectory_failed": [make_diagnosis(0), make_diagnosis(9)],
    "task_matches": _diagnosis(task_id="task-2"),
    "failure_type_filled": _diagnosis(failure_type=" "),
    "root_cause_filled": _diagnosis(root_cause=""),
    "lesson_filled": _diagnosis(lesson="\n"),
    "retrieval_query_filled": _diagnosis(retrieval_query=""),
    "critical_step_positive": _diagnosis(critical_step=0),
    "critical_step_in_episode": _diagnosis(critical_step=6),
    "attempts_bounded": _diagnosis(attempts=3),
    "failure_type_short": _diagnosis(failure_type="x" * 81),
    "quarantine_explained": _diagnosis(**{**_QUARANTINED, "error": ""}),
    "quarantined_share": [make_diagnosis(0), *(make_diagnosis(n, **_QUARANTINED) for n in (1, 2))],
    "iteration_same": _diagnosis(iteration=ITERATION - 1),
}
DIAGNOSIS_WARNINGS = {"attempts_bounded", "failure_type_short", "quarantine_explained", "quarantined_share"}
#: a record that names nothing breaks more than one rule
ALSO = {"trajectory_id_present": {"trajectory_failed", "task_matches"}, "task_id_present": {"task_matches"}}
ALSO["status_known"] = {"quarantine_explained"}


@pytest.mark.parametrize("rule", DIAGNOSES)
def test_diagnosis_rules(rule: str) -> None:
    report = check_diagnoses(DIAGNOSES[rule])
    assert rules(report) == {rule} | ALSO.get(rule, set())
    assert report.ok == (rule in DIAGNOSIS_WARNINGS)
    assert report.offending is not None
    assert report.offending["broken"].str.contains(rule).all()


def test_a_quarantined_diagnosis_may_be_blank() -> None:
    blank = {"failure_type": "", "root_cause": "", "lesson": "", "retrieval_query": ""}
    report = check_diagnoses([make_diagnosis(0), make_diagnosis(1, **_QUARANTINED, **blank)], full=True)
    assert not rules(report)


def test_every_rule_has_a_case() -> None:
    from roleagent.quality import suites

    task_suite = suites.task_suite(count=3, environment="household", split="train")
    trajectory_suite = suites.trajectory_suite(
        CONFIG,
        reward_range=(0, 1),
        group_size=4,
        max_steps=6,
        horizon=1,
        iteration=3,
        policy_version=2,
    )
    diagnosis_suite = suites.diagnosis_suite(CONFIG, iteration=3)
    for suite, cases in ((task_suite, TASKS), (trajectory_suite, EPISODES), (diagnosis_suite, DIAGNOSES)):
        assert {rule_name(item) for item in suite.expectations} == set(cases)
        assert all(item.description for item in suite.expectations)


def test_good_data_pass_both_suites() -> None:
    for full in (False, True):
        for report in (
            check_tasks(make_drawn(), full=full),
            check_batch(make_batch(), full=full),
            check_diagnoses([make_diagnosis(0), make_diagnosis(1)], full=full),
        ):
            assert report.ok
            assert not report.warnings
            assert report.offending is None
            assert report.rows > 0


def test_no_rows() -> None:
    assert rules(check_batch([])) == {"not_empty"}
    assert rules(check_tasks([])) == {"not_empty"}
    assert check_diagnoses([]).ok
    with pytest.raises(DataQualityError, match="not_empty"):
        check_batch([]).raise_if_critical("here")
    assert len(pd.read_parquet(io.BytesIO(check_batch([]).offending_parquet()))) == 0


def test_what_is_not_given_is_not_checked() -> None:
    batch = [make_trajectory(0, 17, iteration=9, policy_version=4, steps=50)]
    batch[0] = with_step(batch[0], 1, predictions=("a", "b"))
    assert validate_trajectories(batch, config=CONFIG, reward_range=(0.0, 1.0), full=True).ok
    assert validate_tasks(make_drawn(17), split=None, full=True).ok


def test_the_error_is_one_line_with_rule_rows_and_place() -> None:
    report = check_batch(EPISODES["reward_range"](make_batch()))
    with pytest.raises(DataQualityError) as caught:
        report.raise_if_critical("s3://bucket/bad.parquet")
    assert str(caught.value) == (
        "trajectories: reward_range: rewards lie in the environment's range 0..1 "
        "(expect_column_values_to_be_between): 1 rows break it, of 60 rows; "
        "they were saved in s3://bucket/bad.parquet"
    )
    check_batch(EPISODES["state_not_empty"](make_batch())).raise_if_critical("nowhere")


def test_shares_say_what_was_found_and_follow_the_config() -> None:
    report = check_batch(EPISODES["environment_fault_share"](make_batch()))
    assert report.critical[0].observed == "0.5833"
    loose = QualityConfig(max_environment_error_share=0.6, max_malformed_share=1.0)
    for rule in ("environment_fault_share", "malformed_share"):
        batch = EPISODES[rule](make_batch())
        assert validate_trajectories(batch, config=loose, reward_range=(0.0, 1.0)).ok
    assert len(offenders(report, "trajectory_id")) == 7


def test_several_rules_at_once_are_all_named() -> None:
    batch = make_batch()
    batch[1] = with_step(with_step(batch[1], 2, reward=5.0, state=""), 4, logprobs=(-1.0,))
    report = check_batch(batch)
    assert {violation.rule for violation in report.critical} == {"reward_range", "logprob_for_each_token"}
    assert {violation.rule for violation in report.warnings} == {"state_not_empty"}
    assert offenders(report, "broken") == ["reward_range,state_not_empty", "logprob_for_each_token"]
    with pytest.raises(DataQualityError, match=r"and 1 more"):
        report.raise_if_critical("x")
    assert report.metrics() == {
        "quality/trajectories/critical": 2.0,
        "quality/trajectories/warnings": 1.0,
        "quality/trajectories/offending_rows": 2.0,
        "quality/trajectories/seconds": report.seconds,
    }
    assert report.summary()["ok"] is False
