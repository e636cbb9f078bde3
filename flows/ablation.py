"""Variants x seeds as runs side by side, compared in one table, one figure and one report.

The flow plans, starts one process a run, and compares what is finished. It can be killed at any moment and started
again with the same parameters: finished runs are kept, the others go on from their last commit.
"""

from __future__ import annotations

import base64
import datetime
from contextlib import suppress
from pathlib import Path
from typing import Any

from prefect import flow, task
from prefect.artifacts import (
    create_image_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.cache_policies import NO_CACHE
from prefect.futures import as_completed
from prefect.task_runners import ThreadPoolTaskRunner

from flows.keys import artifact_key
from flows.members import MemberFailed, Members, MemberStopped
from roleagent.ablation.events import ablation_listener
from roleagent.ablation.machine import Slots, describe, gpus, share
from roleagent.ablation.plan import Member, Plan, Request, alone, check_plan, make_plan, read_sittings, write_plan
from roleagent.ablation.records import AblationRecord
from roleagent.ablation.report import FIGURE, MEASURES_FIGURE, write_report
from roleagent.ablation.results import Results, collect, is_finished, member_worker, table_rows
from roleagent.errors import RoleAgentError, TrackingError
from tasks.common import may_help


@task(
    name="train run",
    task_run_name="{member.run_id}",
    retries=1,  # a process that was killed from outside goes on from its last commit, once
    retry_delay_seconds=2,
    retry_condition_fn=may_help,
    cache_policy=NO_CACHE,
    persist_result=False,
)
def train_run(members: Members, record: AblationRecord, member: Member) -> None:
    """Train one run in a process of its own."""
    record.begin(member)
    try:
        members.run(member)
    except MemberFailed as error:  # its process may have had no time to say so, or no chance
        record.close(member, "KILLED" if isinstance(error, MemberStopped) else "FAILED")
        raise


@flow(name="ablation runs", persist_result=False, validate_parameters=False)
def train_runs(plan: Plan, members: Members, record: AblationRecord, waiting: list[Member]) -> dict[str, str]:
    """Train the runs that are not finished; return why each that failed did, by run id."""
    reasons: dict[str, str] = {}
    done = len(plan.members) - len(waiting)
    progress = create_progress_artifact(
        100.0 * done / len(plan.members), key=artifact_key("progress", plan.ablation_id)
    )
    futures = {train_run.submit(members, record, member): member for member in waiting}
    try:
        for future in as_completed(list(futures)):
            member = futures[future]
            error = future.result(raise_on_failure=False)
            if isinstance(error, Exception):
                reasons[member.run_id] = str(error) if isinstance(error, RoleAgentError) else type(error).__name__
            done += 1
            ablation_listener().member_ended(member, reasons.get(member.run_id, ""))
            update_progress_artifact(progress, 100.0 * done / len(plan.members))  # type: ignore[arg-type]
    except BaseException:  # Ctrl-C, or the signal of an orchestrator that cancels
        members.stop()
        raise
    return reasons


@flow(name="ablation", flow_run_name="ablation {preset}", persist_result=False)
def ablation(
    preset: str = "quickstart",
    variants: list[str] | None = None,
    seeds: int = 3,
    overrides: list[str] | None = None,
    parallel: int = 0,
    threads: int = 0,
    against: str = "",
    name: str = "",
) -> dict[str, Any]:
    """Train variants of one configuration with several seeds, and compare them.

    Args:
        preset: a preset's name, or a path to a YAML file.
        variants: lists of variants, such as `full,no-aiw,grpo`, `mine:advantage.alpha=0.5` or `alpha=0,0.5,2`; empty
            for the method's ablations and baselines.
        seeds: runs of each variant; the first has the preset's seed.
        overrides: `section.key=value` for all runs.
        parallel: runs side by side; 0 lets the machine decide.
        threads: threads of each run; 0 lets the machine decide.
        against: the variant that the others are compared with; empty for `full`, or the first.
        name: the ablation's id; empty names it after the base configuration.

    Returns:
        The results, with the number of runs that failed and where report and MLflow run are.
    """
    default = Request()
    request = Request(preset, tuple(variants or default.variants), seeds, tuple(overrides or ()), against, name)
    plan = make_plan(request)
    check_plan(plan)
    with alone(plan):
        devices = gpus() if plan.base.policy.device != "cpu" else ()
        slots = share(len(plan.members), parallel=parallel, threads=threads, devices=devices)
        write_plan(plan, _sitting(plan, slots))
        return _run(plan, slots)


def _run(plan: Plan, slots: Slots) -> dict[str, Any]:
    record = AblationRecord(plan)
    try:
        waiting = [member for member in plan.members if not is_finished(member_worker(plan, member))]
        ablation_listener().ablation_started(plan, slots, len(plan.members) - len(waiting))
        reasons: dict[str, str] = {}
        if waiting:
            runner: Any = ThreadPoolTaskRunner(max_workers=slots.parallel)
            side_by_side = train_runs.with_options(
                task_runner=runner, flow_run_name=f"{plan.ablation_id}: {len(waiting)} runs"
            )
            reasons = side_by_side(plan, Members(plan, slots), record, waiting)
        results = collect(plan, reasons)
        folder = write_report(plan, results, read_sittings(plan.folder))
        record.finish(results, folder)
    except BaseException as error:
        with suppress(TrackingError):  # what stopped the ablation matters more than telling of it
            record.end(killed=not isinstance(error, Exception))
        raise
    _show(plan, results, folder)
    return {
        **results.as_dict(),
        "failed": len(results.failed),
        "folder": str(plan.folder),
        "report": str(folder / "report.md"),
        "figure": str(folder / FIGURE) if (folder / FIGURE).is_file() else "",
        "mlflow_run": record.parent_id,
        "mlflow_uri": record.uri,
        "mlflow_url": record.url,
        "repeat": plan.request.command(),
    }


def _show(plan: Plan, results: Results, folder: Path) -> None:
    """Make Prefect's artifacts."""
    rows = [{name: str(value) for name, value in row.items()} for row in table_rows(results)]
    create_table_artifact(rows, key=artifact_key("table", plan.ablation_id), description="Held-out success by variant")
    if (folder / FIGURE).is_file():
        picture = base64.b64encode((folder / FIGURE).read_bytes()).decode()
        create_image_artifact(
            f"data:image/png;base64,{picture}", key=artifact_key("figure", plan.ablation_id), description="Curves"
        )
    text = (folder / "report.md").read_text(encoding="utf-8")
    text = text.replace(f"]({FIGURE})", "](#)").replace(f"]({MEASURES_FIGURE})", "](#)")
    create_markdown_artifact(text, key=artifact_key("report", plan.ablation_id), description="Ablation")


def _sitting(plan: Plan, slots: Slots) -> dict[str, Any]:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    shared = {"parallel": slots.parallel, "threads": slots.threads}
    return {"at": now, "command": plan.request.command(), **shared, "machine": describe()}
