"""An ablation in MLflow: one parent run, the runs as its children, and the same numbers as in the table.

A child's MLflow run is made before its process starts, which then finds it by its run id and only adds to it. When all
is done, every finished child gets the iterations that it lacks and what the table reads off of it, so that MLflow's
compare page, opened on the children, shows the same numbers.
"""

from __future__ import annotations

import threading
from pathlib import Path

from roleagent.ablation.plan import Member, Plan
from roleagent.ablation.results import Results, member_worker
from roleagent.loop.home import home, reports_folder
from roleagent.loop.publishing import history
from roleagent.tracking.tracker import RunStatus, Tracker


class AblationRecord:
    """Writes an ablation to MLflow. Every call can be repeated; calls may come from several threads."""

    def __init__(self, plan: Plan) -> None:
        """Take up the parent run, or make it.

        Raises:
            TrackingError: the store does not answer.
        """
        self._plan = plan
        self._lock = threading.Lock()
        self._parent = Tracker(plan.base.tracking, home())
        self._child = Tracker(plan.base.tracking, home())
        params = {
            "preset": plan.request.preset,
            "overrides": list(plan.request.overrides),
            "variants": [variant.name for variant in plan.variants],
            "seeds": plan.seeds,
            "against": plan.reference,
        }
        tags = {"roleagent.kind": "ablation", "roleagent.command": plan.request.command()}
        self.parent_id = self._parent.start_run(plan.ablation_id, plan.ablation_id, params, tags)
        self.uri = self._parent.uri  #: the tracking store, without credentials
        self.url = self._parent.run_url  #: the parent's page on a server, empty for a local database

    def begin(self, member: Member) -> None:
        """Make a run's MLflow run as a child, or take it up."""
        with self._lock:
            self._start(member)

    def close(self, member: Member, status: RunStatus) -> None:
        """Note how a run ended that did not finish."""
        with self._lock:
            self._start(member)
            self._child.end(status)

    def finish(self, results: Results, folder: Path) -> None:
        """Write the numbers of the table to parent and children, the report to the parent, and end it."""
        members = {member.run_id: member for member in self._plan.members}
        with self._lock:
            for outcome in results.outcomes:
                if not outcome.finished:
                    continue
                read = {
                    f"ablation/heldout_equal_{item.axis}": line.values[outcome.seed]
                    for item in results.comparisons
                    for line in item.lines
                    if line.variant == outcome.variant and outcome.seed in line.values
                }
                last = outcome.curve[-1]
                totals = {"ablation/episodes": last.episodes, "ablation/training_seconds": last.seconds}
                self._start(members[outcome.run_id])
                self._complete(members[outcome.run_id])
                self._child.log_summary({**read, **totals}, last.iteration)
                self._child.end("FINISHED")
            self._parent.log_summary(parent_metrics(results), 0)
            self._parent.log_report(folder)
            self._parent.end("FAILED" if results.failed else "FINISHED")

    def end(self, *, killed: bool) -> None:
        """End the parent run of an ablation that was stopped."""
        with self._lock:
            self._parent.end("KILLED" if killed else "FAILED")

    def _complete(self, member: Member) -> None:
        """Write what MLflow lacks of a finished run: its database may be another one than that of its training."""
        worker = member_worker(self._plan, member)
        if worker is None or not self._child.sync(history(worker)):
            return
        report = reports_folder(member.run_id)
        if report.is_dir():
            self._child.log_report(report)

    def _start(self, member: Member) -> None:
        self._child.start_run(
            member.run_id,
            f"{member.variant} seed {member.seed}",
            {"variant": member.variant, **member.config.model_dump(mode="json")},
            {"roleagent.ablation": self._plan.ablation_id, "roleagent.variant": member.variant},
            parent=self.parent_id,
        )


def parent_metrics(results: Results) -> dict[str, float]:
    """Return the table as metrics: `equal_episodes/<variant>/mean`, `.../difference`, `.../p_holm` and so on."""
    metrics: dict[str, float] = {}
    for item in results.comparisons:
        metrics[f"equal_{item.axis}/budget"] = item.budget
        for line in item.lines:
            gap = line.difference
            numbers = {"mean": line.success.mean, "low": line.success.low, "high": line.success.high}
            numbers |= {"difference": gap.mean, "difference_low": gap.low, "difference_high": gap.high}
            numbers |= {"p": line.p, "p_holm": line.p_holm, "n": float(line.success.n)}
            metrics |= {f"equal_{item.axis}/{line.variant}/{key}": x for key, x in numbers.items() if x is not None}
    return metrics
