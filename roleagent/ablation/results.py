"""What an ablation found: one table for each budget, from the curves of its finished runs."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from roleagent.ablation.curves import Axis, Curve, budget, make_curve, read_off
from roleagent.ablation.plan import Member, Plan
from roleagent.ablation.statistics import Estimate, holm, mean_interval, paired_p_value
from roleagent.errors import StorageError
from roleagent.learning.gradient_noise import SIGNAL, TRACE
from roleagent.loop import publishing, runs
from roleagent.loop.home import store_uri
from roleagent.loop.timing import timings
from roleagent.loop.worker import Worker
from roleagent.storage import open_store
from roleagent.storage.manifest import run_key
from roleagent.tracking.history import MEASURES, column

AXES: tuple[Axis, ...] = ("episodes", "seconds")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one run ended, and its curve."""

    run_id: str
    variant: str
    seed: int
    status: str  #: finished, failed, interrupted, new
    reason: str
    curve: tuple[Any, ...] = ()  #: of `Point`; empty unless finished
    mlflow_run: str = ""
    series: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)  #: metric -> (iteration, value)

    @property
    def finished(self) -> bool:
        """Whether the run counts."""
        return self.status == "finished" and bool(self.curve)


@dataclass(frozen=True, slots=True)
class Line:
    """One variant at one budget."""

    variant: str
    label: str
    success: Estimate
    values: Mapping[int, float]  #: held-out success by seed
    difference: Estimate  #: variant minus reference over the seeds that both finished; n = 0 for the reference itself
    p: float | None
    p_holm: float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """All variants at one budget, in the order of the plan."""

    axis: Axis
    budget: float  #: episodes, or seconds of training
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Results:
    """Everything that report, figure, table and panel show."""

    ablation_id: str
    reference: str
    labels: Mapping[str, str]
    outcomes: tuple[Outcome, ...]
    comparisons: tuple[Comparison, ...]

    @property
    def failed(self) -> list[Outcome]:
        """The runs that do not count."""
        return [outcome for outcome in self.outcomes if not outcome.finished]

    def curves(self, variant: str) -> list[Curve]:
        """Return the curves of a variant's finished runs, by seed."""
        return [outcome.curve for outcome in self.outcomes if outcome.finished and outcome.variant == variant]

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-able mapping; `docs/ablations.md` explains its keys."""
        return {
            "ablation": self.ablation_id,
            "against": self.reference,
            "comparisons": {
                f"equal_{item.axis}": {
                    "budget": item.budget,
                    "variants": {line.variant: _line_dict(line) for line in item.lines},
                }
                for item in self.comparisons
            },
            "runs": [
                {
                    "run_id": outcome.run_id,
                    "variant": outcome.variant,
                    "seed": outcome.seed,
                    "status": outcome.status,
                    "reason": outcome.reason,
                    "mlflow_run": outcome.mlflow_run,
                    "curve": [
                        {
                            "iteration": point.iteration,
                            "episodes": point.episodes,
                            "seconds": round(point.seconds, 3),
                            "success": point.success,
                            "tasks": point.tasks,
                        }
                        for point in outcome.curve
                    ],
                }
                for outcome in self.outcomes
            ],
        }


def collect(plan: Plan, reasons: Mapping[str, str]) -> Results:
    """Read every run of a plan from its commits and compare the variants.

    Args:
        plan: the ablation.
        reasons: why runs ended that did not finish, by run id, as far as this sitting knows.
    """
    outcomes = tuple(read_outcome(plan, member, reasons.get(member.run_id, "")) for member in plan.members)
    labels = {variant.name: variant.label for variant in plan.variants}
    return make_results(plan.ablation_id, plan.reference, labels, outcomes)


def make_results(ablation_id: str, reference: str, labels: Mapping[str, str], outcomes: Sequence[Outcome]) -> Results:
    """Compare the variants of finished runs."""
    comparisons = tuple(_compare(axis, reference, labels, outcomes) for axis in AXES)
    return Results(ablation_id, reference, labels, tuple(outcomes), comparisons)


def member_worker(plan: Plan, member: Member) -> Worker | None:
    """Return a worker for reading a run, None if the run was not begun. It loads no model."""
    uri, endpoint = store_uri(plan.base.storage), plan.base.storage.endpoint_url
    begun = open_store(uri, endpoint).exists(run_key(member.run_id, "config.json"))
    return Worker(member.run_id, uri, endpoint) if begun else None


def is_finished(worker: Worker | None) -> bool:
    """Whether a run has ended well, with every iteration committed: without one its curve would be another."""
    if worker is None or runs.read_status(worker)["status"] != "finished":
        return False
    wanted = range(worker.config.iterations + 1)
    return set(wanted) <= set(worker.store.committed(worker.run_id))


def read_outcome(plan: Plan, member: Member, reason: str = "") -> Outcome:
    """Return how a run stands, from its commits. One whose commits are damaged does not count, and says why."""
    worker = member_worker(plan, member)
    if worker is None:
        return Outcome(member.run_id, member.variant, member.seed, "failed" if reason else "new", reason)
    found = runs.read_status(worker)
    place = runs.mlflow_place(worker)["mlflow_run"]
    if is_finished(worker):
        try:
            rows = publishing.history(worker)
        except StorageError as error:
            if error.transient:
                raise
            return Outcome(member.run_id, member.variant, member.seed, "failed", str(error), (), place)
        curve = make_curve(rows, timings(worker))
        series = {
            name: [(int(x), y) for x, y in zip(*column(rows, name), strict=True)] for name in (*MEASURES, SIGNAL, TRACE)
        }
        return Outcome(member.run_id, member.variant, member.seed, "finished", "", tuple(curve), place, series)
    status = found["status"] if found["status"] not in {"finished", "running"} else "interrupted"
    return Outcome(member.run_id, member.variant, member.seed, status, reason or found["reason"], (), place)


def _compare(axis: Axis, reference: str, labels: Mapping[str, str], outcomes: Sequence[Outcome]) -> Comparison:
    counted = [outcome for outcome in outcomes if outcome.finished]
    place = budget([outcome.curve for outcome in counted], axis)
    values: dict[str, dict[int, float]] = {name: {} for name in labels}
    for outcome in counted:
        value = read_off(outcome.curve, axis, place)
        if value is not None:
            values[outcome.variant][outcome.seed] = value
    gaps = {name: _differences(values[name], values[reference]) if name != reference else [] for name in labels}
    tested = [paired_p_value(gaps[name]) for name in labels]
    corrected = holm(tested)
    lines = tuple(
        Line(
            name,
            label,
            mean_interval(list(values[name].values()), bounds=(0.0, 1.0)),
            values[name],
            mean_interval(gaps[name], bounds=(-1.0, 1.0)),
            p,
            p_holm,
        )
        for (name, label), p, p_holm in zip(labels.items(), tested, corrected, strict=True)
    )
    return Comparison(axis, place, lines)


def _differences(values: Mapping[int, float], others: Mapping[int, float]) -> list[float]:
    return [values[seed] - others[seed] for seed in sorted(values) if seed in others]


def _line_dict(line: Line) -> dict[str, Any]:
    return {
        **line.success.as_dict(),
        "by_seed": {str(seed): value for seed, value in sorted(line.values.items())},
        "difference": line.difference.as_dict(),
        "p": line.p,
        "p_holm": line.p_holm,
    }


_COLUMNS = (
    *("equal", "budget", "variant", "n", "mean", "low", "high"),
    *("pairs", "difference", "difference_low", "difference_high", "p", "p_holm"),
)


def table_rows(results: Results) -> list[dict[str, str | int]]:
    """Return both comparisons as one table, a row a variant and budget; what is unknown is empty."""
    rows: list[dict[str, str | int]] = []
    for item in results.comparisons:
        for line in item.lines:
            mean, gap = line.success, line.difference
            numbers = [_number(value) for value in (mean.mean, mean.low, mean.high)]
            gaps = [_number(value) for value in (gap.mean, gap.low, gap.high, line.p, line.p_holm)]
            cells: tuple[str | int, ...] = (
                item.axis,
                f"{item.budget:.6g}",
                line.variant,
                mean.n,
                *numbers,
                gap.n,
                *gaps,
            )
            rows.append(dict(zip(_COLUMNS, cells, strict=True)))
    return rows


def table_csv(results: Results) -> str:
    """Return the table as comma-separated values."""
    out = io.StringIO()
    writer = csv.DictWriter(out, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(table_rows(results))
    return out.getvalue()


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
