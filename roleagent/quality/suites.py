"""The expectation suites, as code. A critical expectation stops the iteration; a warning is reported.

Every expectation carries the name of its rule in `meta["rule"]` and what it says in `description`. Only kinds that
`roleagent.quality.screen` knows may be used. Importing this module imports Great Expectations (about 7 seconds).
Expectations: https://greatexpectations.io/expectations, version 1.24.
"""

from __future__ import annotations

from typing import Any

import great_expectations as gx
from great_expectations import expectations
from great_expectations.expectations.expectation import Expectation
from great_expectations.expectations.metadata_types import FailureSeverity

from roleagent.config.models import QualityConfig
from roleagent.types import DiagnosisStatus, StopReason

gxe: Any = expectations  # its classes are not exported in a way that type checkers follow
CRITICAL = FailureSeverity.CRITICAL
WARNING = FailureSeverity.WARNING
LONGEST_LABEL = 80  #: characters of a failure type that is still a short label
_ROUNDING = 1e-6  # a log-probability of a certain token may come out as +1e-7 in float32


def task_suite(*, count: int | None, environment: str | None, split: str | None) -> gx.ExpectationSuite:
    """Return the suite for the tasks drawn for an iteration.

    Args:
        count: K, tasks of an iteration; None if not known.
        environment: name that all tasks must have; None for any.
        split: split that all tasks must have; None for either.
    """
    rules = [
        _not_null("task_id_present", "task_id", "every task has an id"),
        _unique("task_unique", "task_id", "a task is drawn once an iteration, so that its group has N episodes"),
        _in_set("source_known", "source", ["relevance", "uniform"], "a task comes from a part of the mixture"),
        _not_null("probability_finite", "probability", "the probability of every task is a number"),
        _between("probability_range", "probability", 0.0, 1.0, "probabilities lie in 0..1"),
        _not_null("task_type_present", "task_type", "every task has a type, for the tables", severity=WARNING),
    ]
    if count is not None:
        rules.append(_rule("task_count", gxe.ExpectTableRowCountToEqual, f"{count} tasks are drawn (K)", value=count))
    if environment is not None:
        rules.append(_in_set("environment_known", "environment", [environment], "tasks are of this environment"))
    splits = ["heldout", "train"] if split is None else [split]
    rules.append(_in_set("split_known", "split", splits, "tasks are of the right split: held-out ones never train"))
    return _suite("tasks", rules)


def trajectory_suite(
    config: QualityConfig,
    *,
    reward_range: tuple[float, float],
    group_size: int | None,
    max_steps: int | None,
    horizon: int | None,
    iteration: int | None,
    policy_version: int | None,
) -> gx.ExpectationSuite:
    """Return the suite for rolled-out trajectories, one row a step.

    Args:
        config: thresholds.
        reward_range: least and greatest reward of one step, as the environment declares.
        group_size: N; None if groups need not be whole (evaluation).
        max_steps: T's bound; None for none.
        horizon: H; None if not known.
        iteration: of all of them; None if not known.
        policy_version: that sampled all of them; None if not known.
    """
    low, high = reward_range
    rules = [
        _not_null("trajectory_id_present", "trajectory_id", "every episode has an id"),
        _not_null("task_id_present", "task_id", "every episode has a task id"),
        _rule(
            "step_unique",
            gxe.ExpectCompoundColumnsToBeUnique,
            "an episode has each step once",
            column_list=["trajectory_id", "step"],
        ),
        _equal("steps_contiguous", "step", "position", "steps are numbered 1..T without a gap"),
        _between("episode_length", "steps", 1, max_steps, f"episodes have 1..{max_steps or 'T'} steps"),
        _in_set("stop_reason_known", "stop_reason", [str(x) for x in StopReason], "the stop reason is a known one"),
        _equal("success_stops", "success", "stopped_in_success", "success and the stop reason `success` go together"),
        _not_null("reward_finite", "reward", "rewards are numbers"),
        _between("reward_range", "reward", low, high, f"rewards lie in the environment's range {low:g}..{high:g}"),
        _not_null("score_finite", "score", "scores are numbers"),
        _between("score_bounded", "score", -1e9, 1e9, "scores are finite"),
        _between("turn_not_empty", "generated_tokens", 1, None, "the model generated at least one token a step"),
        _equal("logprob_for_each_token", "generated_tokens", "logprobs", "each generated id has one log-probability"),
        _not_null("logprob_finite", "logprob_sum", "log-probabilities are finite"),
        _between("logprob_not_positive", "logprob_max", None, _ROUNDING, "log-probabilities are at most 0"),
        _equal(
            "malformed_without_action", "malformed", "without_action", "a turn has an action or is malformed", WARNING
        ),
        _between("state_not_empty", "state_length", 1, None, "observations are not empty", severity=WARNING),
        _share(
            "malformed_share",
            "malformed",
            config.max_malformed_share,
            "turns without a readable action: the model does not speak the turn format",
        ),
        _share(
            "environment_fault_share",
            "environment_fault",
            config.max_environment_error_share,
            "episodes ended by an error or time-out of the environment",
        ),
    ]
    if group_size is not None:
        says = f"every task was played {group_size} times (N)"
        rules.append(_between("group_size", "group_size", group_size, group_size, says))
        rules.append(
            _between("sample_index_range", "sample_index", 0, group_size - 1, "episodes of a group are 0..N-1")
        )
    if horizon is not None:
        says = f"every step has {horizon} predictions (H), empty ones counted"
        rules.append(_between("prediction_count", "predictions", horizon, horizon, says))
    if iteration is not None:
        rules.append(_between("iteration_same", "iteration", iteration, iteration, "all are of this iteration"))
    if policy_version is not None:
        says = "all were sampled by this policy version"
        rules.append(_between("policy_version_same", "policy_version", policy_version, policy_version, says))
    return _suite("trajectories", rules)


def diagnosis_suite(config: QualityConfig, *, iteration: int | None) -> gx.ExpectationSuite:
    """Return the suite for diagnoses, quarantined ones included.

    Args:
        config: thresholds.
        iteration: of all of them; None if not known.
    """
    filled = "a valid diagnosis has a {}"
    rules = [
        _not_null("trajectory_id_present", "trajectory_id", "every diagnosis names its trajectory"),
        _not_null("task_id_present", "task_id", "every diagnosis names its task"),
        _unique("record_unique", "record_id", "a trajectory is diagnosed once"),
        _in_set("status_known", "status", [str(x) for x in DiagnosisStatus], "the status is a known one"),
        _between("trajectory_failed", "failed", 1, 1, "only failed episodes of this iteration are diagnosed"),
        _between("task_matches", "same_task", 1, 1, "the diagnosis and its trajectory are of one task"),
        _between("failure_type_filled", "failure_type_length", 1, None, filled.format("failure type")),
        _between("root_cause_filled", "root_cause_length", 1, None, filled.format("root cause")),
        _between("lesson_filled", "lesson_length", 1, None, filled.format("lesson")),
        _between("retrieval_query_filled", "retrieval_query_length", 1, None, filled.format("retrieval query")),
        _between("critical_step_positive", "critical_step", 1, None, "the critical step is at least 1"),
        _rule(
            "critical_step_in_episode",
            gxe.ExpectColumnPairValuesAToBeGreaterThanB,
            "the critical step is at most T",
            column_A="steps",
            column_B="critical_step",
            or_equal=True,
            ignore_row_if="either_value_is_missing",
        ),
        _between("attempts_bounded", "attempts", 1, 2, "a diagnosis is tried once or twice", severity=WARNING),
        _between(
            "failure_type_short",
            "failure_type_length",
            None,
            LONGEST_LABEL,
            f"a failure type is a label of at most {LONGEST_LABEL} characters",
            severity=WARNING,
        ),
        _between("quarantine_explained", "error_length", 1, None, "a quarantined diagnosis says why", severity=WARNING),
        _share(
            "quarantined_share", "quarantined", config.max_quarantined_share, "quarantined diagnoses", severity=WARNING
        ),
    ]
    if iteration is not None:
        rules.append(_between("iteration_same", "iteration", iteration, iteration, "all are of this iteration"))
    return _suite("diagnoses", rules)


def gate_suite(suite: gx.ExpectationSuite) -> gx.ExpectationSuite:
    """Return the short suite that always runs: no row breaks a rule, and the rules on whole tables as they are.

    Its cost does not grow with the number of rules; the long suite runs when it fails.
    """
    whole = [item.copy(deep=True) for item in suite.expectations if not hasattr(item, "mostly")]
    rows = _in_set("every_row_rule", "violation", [""], "no row breaks a rule")
    return gx.ExpectationSuite(name=f"{suite.name}_gate", expectations=[rows, *whole])


def _suite(name: str, rules: list[Expectation]) -> gx.ExpectationSuite:
    return gx.ExpectationSuite(name=name, expectations=rules)


def _rule(
    name: str, kind: type[Expectation], says: str, severity: FailureSeverity = CRITICAL, **options: Any
) -> Expectation:
    return kind(severity=severity, description=says, meta={"rule": name}, **options)


def _not_null(name: str, column: str, says: str, severity: FailureSeverity = CRITICAL) -> Expectation:
    return _rule(name, gxe.ExpectColumnValuesToNotBeNull, says, severity, column=column)


def _unique(name: str, column: str, says: str) -> Expectation:
    return _rule(name, gxe.ExpectColumnValuesToBeUnique, says, column=column)


def _in_set(name: str, column: str, values: list[str], says: str, severity: FailureSeverity = CRITICAL) -> Expectation:
    return _rule(name, gxe.ExpectColumnValuesToBeInSet, says, severity, column=column, value_set=values)


def _between(
    name: str, column: str, low: float | None, high: float | None, says: str, severity: FailureSeverity = CRITICAL
) -> Expectation:
    options = {key: value for key, value in (("min_value", low), ("max_value", high)) if value is not None}
    return _rule(name, gxe.ExpectColumnValuesToBeBetween, says, severity, column=column, **options)


def _equal(name: str, left: str, right: str, says: str, severity: FailureSeverity = CRITICAL) -> Expectation:
    return _rule(name, gxe.ExpectColumnPairValuesToBeEqual, says, severity, column_A=left, column_B=right)


def _share(name: str, column: str, limit: float, says: str, severity: FailureSeverity = CRITICAL) -> Expectation:
    """At most `limit` of a column of ones and zeros are ones."""
    says = f"at most {limit:.0%} {says}"
    return _rule(name, gxe.ExpectColumnMeanToBeBetween, says, severity, column=column, max_value=limit)
