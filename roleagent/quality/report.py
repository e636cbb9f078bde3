"""What a validation found."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from roleagent.errors import DataQualityError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Violation:
    """One expectation that was not met."""

    rule: str
    severity: Literal["critical", "warning"]
    expectation: str  #: its type in Great Expectations
    says: str  #: what should hold
    rows: int  #: rows that break it; 0 when it speaks of the whole table
    observed: str = ""  #: the value found, for one that speaks of the whole table

    def line(self) -> str:
        """Return one line for a person."""
        found = f"{self.rows} rows break it" if not self.observed else f"found {self.observed}"
        return f"{self.rule}: {self.says} ({self.expectation}): {found}"


@dataclass(frozen=True, slots=True)
class QualityReport:
    """Result of one validation. `ok` means: no critical expectation was broken."""

    table: str  #: tasks, trajectories or diagnoses
    rows: int  #: rows that were checked
    expectations: int  #: expectations in the suite
    critical: tuple[Violation, ...]
    warnings: tuple[Violation, ...]
    seconds: float  #: of the validation, the import of Great Expectations left out
    offending: pd.DataFrame | None = field(default=None, repr=False)  #: rows that break a rule, and which (`broken`)

    @property
    def ok(self) -> bool:
        """Whether the data may go on to the next phase."""
        return not self.critical

    def offending_parquet(self) -> bytes:
        """Return the offending rows as Parquet; the column `broken` names their rules."""
        import pandas as pd

        buffer = io.BytesIO()
        (self.offending if self.offending is not None else pd.DataFrame({"broken": []})).to_parquet(buffer, index=False)
        return buffer.getvalue()

    def metrics(self) -> dict[str, float]:
        """Return what is logged each iteration, under `quality/<table>/`."""
        name = f"quality/{self.table}"
        return {
            f"{name}/critical": float(len(self.critical)),
            f"{name}/warnings": float(len(self.warnings)),
            f"{name}/offending_rows": float(0 if self.offending is None else len(self.offending)),
            f"{name}/seconds": self.seconds,
        }

    def summary(self) -> dict[str, Any]:
        """Return the result as plain values for an artifact or a JSON file."""
        return {
            "table": self.table,
            "ok": self.ok,
            "rows": self.rows,
            "expectations": self.expectations,
            "critical": [violation.line() for violation in self.critical],
            "warnings": [violation.line() for violation in self.warnings],
            "seconds": round(self.seconds, 4),
        }

    def raise_if_critical(self, saved_at: str) -> None:
        """Raise `DataQualityError` with one line if a critical expectation was broken.

        Args:
            saved_at: address where `offending_parquet` was put.
        """
        if self.critical:
            more = f" (and {len(self.critical) - 1} more)" if len(self.critical) > 1 else ""
            raise DataQualityError(
                f"{self.table}: {self.critical[0].line()}{more}, of {self.rows} rows; they were saved in {saved_at}"
            )
