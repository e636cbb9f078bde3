"""Diagnoses as Parquet: one row a diagnosis, quarantined ones included. The round trip is exact."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from roleagent.errors import StorageError
from roleagent.rollout.tables import from_parquet, to_parquet
from roleagent.types import Diagnosis, DiagnosisStatus

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA_NAME = "diagnoses"
SCHEMA_VERSION = 1

_NUMBERS = frozenset({"iteration", "policy_version", "critical_step", "attempts"})


@functools.cache
def diagnosis_schema() -> pa.Schema:
    """Return the Arrow schema: the fields of `Diagnosis`, in their order."""
    import pyarrow as pa

    return pa.schema([(item.name, pa.int64() if item.name in _NUMBERS else pa.string()) for item in fields(Diagnosis)])


def write_diagnoses(diagnoses: Sequence[Diagnosis]) -> bytes:
    """Return the diagnoses as Parquet bytes, in their order. Lone surrogates in a text become "?".

    Raises:
        StorageError: a value cannot be stored.
    """
    import pyarrow as pa

    schema = diagnosis_schema()
    try:
        arrays = [
            pa.array([_plain(getattr(diagnosis, item.name)) for diagnosis in diagnoses], item.type) for item in schema
        ]
    except (pa.ArrowException, OverflowError, TypeError) as error:
        raise StorageError(f"diagnoses cannot be stored as Parquet: {error}") from error
    return to_parquet(pa.Table.from_arrays(arrays, schema=schema), SCHEMA_NAME, SCHEMA_VERSION)


def read_diagnoses(data: bytes) -> list[Diagnosis]:
    """Return the diagnoses of `write_diagnoses`.

    Raises:
        StorageError: the bytes are damaged or hold something else.
    """
    table = from_parquet(data, diagnosis_schema(), SCHEMA_NAME, SCHEMA_VERSION)
    try:
        return [Diagnosis(**{**row, "status": DiagnosisStatus(row["status"])}) for row in table.to_pylist()]
    except ValueError as error:
        raise StorageError(f"{SCHEMA_NAME}: a row has an impossible value ({error}); the file is damaged") from error


def _plain(value: int | str) -> int | str:
    """Return what Arrow can hold: a plain string that can be encoded, or the number."""
    return str(value).encode("utf-8", "replace").decode("utf-8") if isinstance(value, str) else value
