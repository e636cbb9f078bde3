"""The screen and Great Expectations read a suite alike, on any table; and the price of a validation."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quality_cases import GROUP_SIZE, make_batch, make_trajectory, with_step

from roleagent.config.models import QualityConfig
from roleagent.quality import validate_trajectories, warm_up
from roleagent.quality.report import QualityReport
from roleagent.quality.screen import broken_rows
from roleagent.quality.validate import _run

VALUES = st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0, math.inf, math.nan])
WORDS = st.sampled_from(["a", "b", "other", None])


def _expectations() -> list[Any]:
    from great_expectations import expectations

    gxe: Any = expectations
    rules = [
        gxe.ExpectColumnValuesToNotBeNull(column="x"),
        gxe.ExpectColumnValuesToNotBeNull(column="w"),
        gxe.ExpectColumnValuesToBeInSet(column="w", value_set=["a", "b"]),
        gxe.ExpectColumnValuesToBeBetween(column="x", min_value=0),
        gxe.ExpectColumnValuesToBeBetween(column="x", max_value=1),
        gxe.ExpectColumnValuesToBeBetween(column="x", min_value=0, max_value=1),
        gxe.ExpectColumnValuesToBeUnique(column="w"),
        gxe.ExpectCompoundColumnsToBeUnique(column_list=["w", "x"]),
        gxe.ExpectColumnPairValuesToBeEqual(column_A="x", column_B="y"),
        gxe.ExpectColumnPairValuesAToBeGreaterThanB(
            column_A="x", column_B="y", or_equal=True, ignore_row_if="either_value_is_missing"
        ),
        gxe.ExpectColumnMeanToBeBetween(column="share", max_value=0.5),
        gxe.ExpectTableRowCountToEqual(value=4),
    ]
    for number, rule in enumerate(rules):
        rule.meta = {"rule": str(number)}
    return rules


@settings(max_examples=15, deadline=None)
@given(
    rows=st.lists(st.tuples(VALUES, VALUES, WORDS, st.sampled_from([0.0, 1.0, math.nan])), min_size=1, max_size=8),
)
def test_screen_and_great_expectations_agree(rows: list[tuple[float, float, str | None, float]]) -> None:
    import great_expectations as gx

    warm_up()
    x, y, words, share = (list(column) for column in zip(*rows, strict=True))
    share[0] = 0.0 if math.isnan(share[0]) else share[0]
    frame = pd.DataFrame({"x": x, "y": y, "w": words, "share": share})
    suite = gx.ExpectationSuite(name="kinds", expectations=_expectations())
    result = _run(frame, suite, {"result_format": "COMPLETE", "include_unexpected_rows": False})
    assert len(result.results) == len(suite.expectations)
    by_rule = {item.expectation_config.meta["rule"]: item for item in result.results}
    for rule in suite.expectations:
        mask = broken_rows(rule, frame)
        found = by_rule[rule.meta["rule"]]
        listed = found.result.get("unexpected_index_list")
        if listed is None:
            assert found.success == (not mask.any()) or not (frame["share"] == 1).any(), rule
        else:
            assert sorted(listed) == np.flatnonzero(mask).tolist(), rule


def test_an_unknown_kind_is_refused() -> None:
    from great_expectations import expectations

    rule: Any = expectations.ExpectColumnValuesToBeNull(column="x")
    with pytest.raises(KeyError, match="expect_column_values_to_be_null"):
        broken_rows(rule, pd.DataFrame({"x": [1]}))


def _validate(batch: list[Any]) -> QualityReport:
    return validate_trajectories(
        batch, config=QualityConfig(), reward_range=(0.0, 1.0), group_size=GROUP_SIZE, max_steps=12, horizon=1
    )


def test_a_validation_costs_little() -> None:
    """64 episodes of 12 steps: some 25 ms of CPU; the bound leaves room for a slow machine."""
    batch = [make_trajectory(task, sample, steps=12) for task in range(16) for sample in range(GROUP_SIZE)]
    _validate(batch)
    times = []
    for _ in range(5):
        start = time.process_time()
        assert _validate(batch).ok
        times.append(time.process_time() - start)
    assert min(times) < 0.1


def test_repeats_keep_no_memory() -> None:
    """The context lives as long as the process, so it must not keep the tables that it was shown."""
    import gc

    batch = make_batch(40)
    for _ in range(3):
        _validate(batch)

    def frames() -> int:
        gc.collect()
        return sum(isinstance(item, pd.DataFrame) for item in gc.get_objects())

    before = frames()
    for _ in range(10):
        _validate(batch)
    assert frames() <= before + 2


def test_threads_may_validate_side_by_side() -> None:
    good, bad = make_batch(), make_batch()
    bad[0] = with_step(bad[0], 1, reward=2.0)
    results: dict[int, bool] = {}

    def check(number: int) -> None:
        results[number] = _validate(bad if number % 2 else good).ok

    threads = [threading.Thread(target=check, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: number % 2 == 0 for number in range(6)}


def test_records_are_not_changed() -> None:
    batch = make_batch()
    before = [dataclasses.replace(item) for item in batch]
    _validate(batch)
    assert batch == before


def test_the_package_is_light_and_silent() -> None:
    program = (
        "import os, sys, roleagent.quality, roleagent.storage;"
        "heavy = {'great_expectations', 'pandas', 'boto3', 'pyarrow', 'torch'} & set(sys.modules);"
        "assert not heavy, heavy; assert os.environ['GX_ANALYTICS_ENABLED'] == 'false'"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
