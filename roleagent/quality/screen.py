"""A fast reading of the same suites: which rows break which rule, by one pandas operation a rule.

Great Expectations spends some milliseconds on each expectation, whatever the table's size. The screen reads the very
expectation objects, so no rule is written twice; a property test holds both readings equal. Its result is a column that
the gate suite checks, and the rows that a report shows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

if TYPE_CHECKING:
    from great_expectations.expectations.expectation import Expectation

Mask = npt.NDArray[np.bool_]  #: [rows], true where a row breaks the rule


def rule_name(expectation: Expectation) -> str:
    """Return the name that the suite gave to an expectation."""
    return str((expectation.meta or {})["rule"])


def broken_rows(expectation: Expectation, frame: pd.DataFrame) -> Mask:
    """Return which rows of the frame break an expectation.

    For an expectation on the mean of a column of ones and zeros these are the rows with a one, if the mean is out of
    bounds; for one on the number of rows, all rows.

    Raises:
        KeyError: this kind of expectation is not known here.
    """
    return _READERS[expectation.expectation_type](expectation, frame)


def _not_null(rule: Any, frame: pd.DataFrame) -> Mask:
    return _missing(frame[rule.column])


def _in_set(rule: Any, frame: pd.DataFrame) -> Mask:
    column = frame[rule.column]
    known: Mask = column.isin(rule.value_set).to_numpy()
    return ~(known | _missing(column))


def _between(rule: Any, frame: pd.DataFrame) -> Mask:
    column = frame[rule.column].to_numpy()
    broken = np.zeros(len(column), dtype=np.bool_)
    if rule.min_value is not None:
        broken |= column < rule.min_value
    if rule.max_value is not None:
        broken |= column > rule.max_value
    return broken


def _equal(rule: Any, frame: pd.DataFrame) -> Mask:
    left, right = frame[rule.column_A], frame[rule.column_B]
    differ: Mask = left.to_numpy() != right.to_numpy()
    return differ & ~(_missing(left) & _missing(right))


def _at_least(rule: Any, frame: pd.DataFrame) -> Mask:
    smaller: Mask = frame[rule.column_A].to_numpy() < frame[rule.column_B].to_numpy()
    return smaller


def _unique(rule: Any, frame: pd.DataFrame) -> Mask:
    column = frame[rule.column]
    once: Mask = ~column.duplicated(keep=False).to_numpy()
    repeated: Mask = ~(once | _missing(column))
    return repeated


def _unique_together(rule: Any, frame: pd.DataFrame) -> Mask:
    columns = frame[rule.column_list]
    once: Mask = ~columns.duplicated(keep=False).to_numpy()
    missing: Mask = columns.isna().to_numpy().all(axis=1)
    repeated: Mask = ~(once | missing)
    return repeated


def _mean(rule: Any, frame: pd.DataFrame) -> Mask:
    column = frame[rule.column].to_numpy(dtype=float)
    known = column[~np.isnan(column)]
    exceeded = bool(known.size) and float(known.mean()) > rule.max_value
    return np.equal(column, 1) if exceeded else np.zeros(len(column), dtype=np.bool_)


def _row_count(rule: Any, frame: pd.DataFrame) -> Mask:
    return np.full(len(frame), len(frame) != rule.value)


def _missing(column: pd.Series) -> Mask:
    missing: Mask = column.isna().to_numpy()
    return missing


_READERS: dict[str, Callable[[Any, pd.DataFrame], Mask]] = {
    "expect_column_values_to_not_be_null": _not_null,
    "expect_column_values_to_be_in_set": _in_set,
    "expect_column_values_to_be_between": _between,
    "expect_column_pair_values_to_be_equal": _equal,
    "expect_column_pair_values_a_to_be_greater_than_b": _at_least,
    "expect_column_values_to_be_unique": _unique,
    "expect_compound_columns_to_be_unique": _unique_together,
    "expect_column_mean_to_be_between": _mean,
    "expect_table_row_count_to_equal": _row_count,
}
