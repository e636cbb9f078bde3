"""Committed records and flat rows become the same history."""

from __future__ import annotations

import math

from roleagent.tracking.history import column, to_history, totals


def test_committed_records_become_rows_in_order() -> None:
    records = [
        {"metrics": {"iteration": 2.0, "rollout/success_rate": 0.5, "seconds/update": 3.0}, "failure_types": {"a": 2}},
        {"metrics": {"iteration": 1.0, "heldout/success": 0.25, "seconds/update": 1.0}, "failure_types": {}},
    ]
    history = to_history(records)
    assert [row["iteration"] for row in history] == [1.0, 2.0]
    assert column(history, "success/train") == ([2.0], [0.5])
    assert column(history, "success/heldout") == ([1.0], [0.25])
    assert totals(history, "phase_seconds") == {"update": 4.0}
    assert totals(history, "failure_types") == {"a": 2.0}


def test_a_repeated_iteration_counts_once_and_nan_leaves_a_gap() -> None:
    history = to_history(
        [
            {"iteration": 1, "x": 1.0},
            {"iteration": 1, "x": 2.0},
            {"iteration": 2, "x": math.nan},
            {"iteration": 3, "x": "no"},
        ]
    )
    assert column(history, "x") == ([1.0], [2.0])


def test_totals_are_ordered_by_size_then_name() -> None:
    rows = to_history(
        [{"iteration": 1, "failure_types": {"b": 1, "a": 1, "c": 5}}, {"iteration": 2, "failure_types": {"b": 1}}]
    )
    assert list(totals(rows, "failure_types")) == ["c", "b", "a"]
