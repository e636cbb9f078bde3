"""Running the suites: what the phases call.

A validation first reads all rules with the screen (`roleagent.quality.screen`) and lets Great Expectations check the
short gate suite. Only when that fails is the long suite run, which names each broken expectation and its rows.
One context serves the process; it lives in memory and calls nobody.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from roleagent.config.models import QualityConfig
from roleagent.quality.report import QualityReport, Violation
from roleagent.types import Diagnosis, DrawnTask, Trajectory

if TYPE_CHECKING:
    import great_expectations as gx
    import pandas as pd
    from great_expectations.core import ExpectationSuiteValidationResult

    from roleagent.quality.screen import Mask

_LOCK = threading.Lock()  # the context's stores are not made for threads


def warm_up() -> None:
    """Import Great Expectations and make the context, for example while a model is loaded."""
    with _LOCK:
        _batches()


def validate_tasks(
    drawn: Sequence[DrawnTask],
    *,
    count: int | None = None,
    environment: str | None = None,
    split: str | None = "train",
    full: bool = False,
) -> QualityReport:
    """Check the tasks drawn for an iteration.

    Args:
        drawn: the tasks.
        count: K; None if not known.
        environment: name that all must have; None for any.
        split: split that all must have; None for either.
        full: run the long suite in any case.
    """
    from roleagent.quality.frames import task_frame

    make = functools.partial(_task_suites, count, environment, split)
    return _validate("tasks", lambda: task_frame(drawn), make, may_be_empty=False, full=full)


def validate_trajectories(
    trajectories: Sequence[Trajectory],
    *,
    config: QualityConfig,
    reward_range: tuple[float, float],
    group_size: int | None = None,
    max_steps: int | None = None,
    horizon: int | None = None,
    iteration: int | None = None,
    policy_version: int | None = None,
    full: bool = False,
) -> QualityReport:
    """Check rolled-out trajectories. What is None is not checked.

    Args:
        trajectories: all episodes of an iteration, or of an evaluation.
        config: thresholds.
        reward_range: the environment's range of one step's reward.
        group_size: N, episodes a task.
        max_steps: greatest T.
        horizon: H, predictions a step.
        iteration: that all must have.
        policy_version: that all must have.
        full: run the long suite in any case.
    """
    from roleagent.quality.frames import trajectory_frame

    make = functools.partial(
        _trajectory_suites, config, reward_range, group_size, max_steps, horizon, iteration, policy_version
    )
    return _validate("trajectories", lambda: trajectory_frame(trajectories), make, may_be_empty=False, full=full)


def validate_diagnoses(
    diagnoses: Sequence[Diagnosis],
    trajectories: Iterable[Trajectory],
    *,
    config: QualityConfig,
    iteration: int | None = None,
    full: bool = False,
) -> QualityReport:
    """Check the diagnoses of an iteration, quarantined ones included; none at all are fine.

    Args:
        diagnoses: the records.
        trajectories: the iteration's episodes, failed ones at least.
        config: thresholds.
        iteration: that all must have; None if not known.
        full: run the long suite in any case.
    """
    from roleagent.quality.frames import diagnosis_frame

    by_id = {trajectory.trajectory_id: trajectory for trajectory in trajectories}
    make = functools.partial(_diagnosis_suites, config, iteration)
    return _validate("diagnoses", lambda: diagnosis_frame(diagnoses, by_id), make, may_be_empty=True, full=full)


Suites = tuple["gx.ExpectationSuite", "gx.ExpectationSuite"]  #: the long one and its gate


def _validate(
    table: str,
    build: Callable[[], pd.DataFrame],
    make: Callable[[], Suites],
    *,
    may_be_empty: bool,
    full: bool,
) -> QualityReport:
    with _LOCK:
        _batches()
        start = time.perf_counter()
        suite, gate = make()
        frame = build()
        if frame.empty:
            missing = Violation(
                "not_empty", "critical", "expect_table_row_count_to_be_between", "there are rows", 0, "0"
            )
            critical = () if may_be_empty else (missing,)
            return QualityReport(table, 0, len(suite.expectations), critical, (), time.perf_counter() - start)
        return _check(table, frame, suite, gate, start, full=full)


def _check(
    table: str, frame: pd.DataFrame, suite: gx.ExpectationSuite, gate: gx.ExpectationSuite, start: float, *, full: bool
) -> QualityReport:
    import numpy as np

    from roleagent.quality.screen import broken_rows, rule_name

    masks = {rule_name(item): broken_rows(item, frame) for item in suite.expectations}
    broken = np.full(len(frame), "", dtype=object)
    whole = []
    for item in suite.expectations:
        if hasattr(item, "mostly"):  # an expectation on rows
            broken[masks[rule_name(item)]] = rule_name(item)
        elif hasattr(item, "column"):  # one on a whole column, which the gate checks itself
            whole.append(item.column)
    # Only what the gate reads: Great Expectations makes a fingerprint of every column
    passed = bool(_run(frame[whole].assign(violation=broken), gate, "BOOLEAN_ONLY").success)
    found: list[Violation] = []
    if full or not passed:
        result = _run(frame, suite, {"result_format": "COMPLETE", "include_unexpected_rows": False})
        found = [violation for item in result.results if (violation := _violation(item, masks)) is not None]
    return QualityReport(
        table=table,
        rows=len(frame),
        expectations=len(suite.expectations),
        critical=tuple(violation for violation in found if violation.severity == "critical"),
        warnings=tuple(violation for violation in found if violation.severity == "warning"),
        seconds=time.perf_counter() - start,
        offending=_offending(frame, masks, found) if found else None,
    )


def _violation(item: Any, masks: dict[str, Mask]) -> Violation | None:
    """Read one result of Great Expectations; the rows that the screen found stand in where it names none."""
    rule = str(item.expectation_config.meta["rule"])
    listed = item.result.get("unexpected_index_list")
    rows = int(masks[rule].sum()) if listed is None else len(listed)
    if item.success and not rows:
        return None
    observed = item.result.get("observed_value")
    if item.exception_info.get("raised_exception"):
        observed = f"an error, {item.exception_info.get('exception_message')}"
    return Violation(
        rule=rule,
        severity="warning" if item.expectation_config.severity == "warning" else "critical",
        expectation=item.expectation_config.type,
        says=str(item.expectation_config.description),
        rows=rows,
        observed="" if observed is None else f"{observed:.4g}" if isinstance(observed, float) else str(observed),
    )


def _offending(frame: pd.DataFrame, masks: dict[str, Mask], found: list[Violation]) -> pd.DataFrame:
    import numpy as np

    broken = np.full(len(frame), "", dtype=object)
    for violation in found:
        mask = masks[violation.rule]
        broken[mask] = [f"{names},{violation.rule}".strip(",") for names in broken[mask]]
    rows = frame.assign(broken=broken)
    return rows[rows["broken"] != ""].reset_index(drop=True)


def _run(frame: pd.DataFrame, suite: gx.ExpectationSuite, result_format: Any) -> ExpectationSuiteValidationResult:
    result: ExpectationSuiteValidationResult = (
        _batches().get_batch({"dataframe": frame}).validate(suite, result_format=result_format)
    )
    return result


@functools.cache
def _batches() -> Any:
    """The batch definition through which every frame goes, in an ephemeral context without progress bars."""
    import great_expectations as gx
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    asset = context.data_sources.add_pandas("roleagent").add_dataframe_asset("frame")
    return asset.add_batch_definition_whole_dataframe("whole")


@functools.lru_cache(maxsize=8)
def _task_suites(count: int | None, environment: str | None, split: str | None) -> Suites:
    from roleagent.quality import suites

    suite = suites.task_suite(count=count, environment=environment, split=split)
    return suite, suites.gate_suite(suite)


@functools.lru_cache(maxsize=8)
def _trajectory_suites(
    config: QualityConfig,
    reward_range: tuple[float, float],
    group_size: int | None,
    max_steps: int | None,
    horizon: int | None,
    iteration: int | None,
    policy_version: int | None,
) -> Suites:
    from roleagent.quality import suites

    suite = suites.trajectory_suite(
        config,
        reward_range=reward_range,
        group_size=group_size,
        max_steps=max_steps,
        horizon=horizon,
        iteration=iteration,
        policy_version=policy_version,
    )
    return suite, suites.gate_suite(suite)


@functools.lru_cache(maxsize=8)
def _diagnosis_suites(config: QualityConfig, iteration: int | None) -> Suites:
    from roleagent.quality import suites

    suite = suites.diagnosis_suite(config, iteration=iteration)
    return suite, suites.gate_suite(suite)
