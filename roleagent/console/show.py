"""Tables and panels of the command line. All text of models and environments is escaped before it is shown."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from roleagent.console.progress import clock
from roleagent.errors import ConfigError
from roleagent.loop import runs
from roleagent.loop.publishing import load_summary

if TYPE_CHECKING:
    from rich.console import RenderableType

    from roleagent.agent_in_world.records import Neighbour
    from roleagent.loop.evaluating import Evaluation
    from roleagent.loop.worker import Worker

_TYPES_SHOWN = 6
_STATUS_STYLES = {"finished": "green", "running": "cyan", "failed": "red", "interrupted": "yellow"}


def print_json(value: object) -> None:
    """Write a value as JSON to standard output."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def rate_text(rate: Mapping[str, float] | None) -> str:
    """Write a rate with its interval: "52.0% (46% to 58%, 256 tasks)"."""
    if rate is None:
        return "not evaluated"
    return f"{rate['success']:.1%} (95 % interval {rate['low']:.0%} to {rate['high']:.0%}, {rate['n']:.0f} tasks)"


def facts(rows: Sequence[tuple[str, str]]) -> Table:
    """Return a two-column table of names and values."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, escape(value))
    return table


def run_panel(summary: Mapping[str, Any]) -> RenderableType:
    """Return what a run did, as a panel."""
    status = str(summary["status"])
    types = list(summary["failure_types"].items())
    total = sum(count for _, count in types)
    shown = ", ".join(f"{name} {count / total:.0%}" for name, count in types[:_TYPES_SHOWN]) if total else "none"
    bank = summary["bank_size"]
    phases = sorted(summary["phase_share"].items(), key=lambda pair: -pair[1])
    rows = [
        ("before", f"held-out success {rate_text(summary['heldout_before'])}"),
        ("after", f"held-out success {rate_text(summary['heldout_after'])}"),
        ("failures", f"{bank[-1] if bank else 0:.0f} in the bank: {shown}"),
        ("curriculum", f"{summary['curriculum_share']:.0%} of the tasks were drawn because of a diagnosis"),
        ("time", f"{clock(summary['seconds'])} in {summary['iterations']} iterations"),
        ("shares", ", ".join(f"{name} {share:.1%}" for name, share in phases if share >= 0.0005)),
        ("memory", f"{summary['peak_rss_mb']:.0f} MB at most"),
        ("checkpoint", summary["checkpoint"]),
        ("MLflow run", f"{summary['mlflow_run']} in {summary['mlflow_uri']}"),
        ("report", summary["report"]),
    ]
    style = _STATUS_STYLES.get(status, "white")
    title = f"[bold]{escape(summary['run_id'])}[/bold] [{style}]{escape(status)}[/{style}], seed {summary['seed']}"
    return Panel(facts(rows), title=title, title_align="left", expand=False)


def finished_panel(summary: Mapping[str, Any]) -> RenderableType:
    """Return the summary of a run that has just finished, with what to do next."""
    run_id = summary["run_id"]
    following = facts(
        [
            ("watch it play", f"roleagent play --run {run_id}"),
            ("its failures", f"roleagent bank stats {run_id}"),
            ("its numbers", f"roleagent runs show {run_id} --json"),
            ("all pages", "make up"),
        ]
    )
    return Group(run_panel(summary), Text("What to try next", style="bold"), following)


def runs_table() -> RenderableType:
    """Return all runs that this machine knows, oldest first."""
    handles = runs.list_handles()
    if not handles:
        return Text("No run yet. Start one with: make train")
    table = Table("run", "status", "iterations", "held-out before", "after", "bank", title="Runs", title_justify="left")
    for handle in handles:
        try:
            summary = load_summary(handle.worker())
        except Exception as error:  # one unreadable run must not hide the others
            table.add_row(escape(handle.run_id), "[red]unreadable[/red]", "", "", "", escape(str(error)[:60]))
            continue
        status = str(summary["status"])
        style = _STATUS_STYLES.get(status, "white")
        before, after = summary["heldout_before"], summary["heldout_after"]
        table.add_row(
            escape(handle.run_id),
            f"[{style}]{escape(status)}[/{style}]",
            str(summary["iterations"]),
            f"{before['success']:.1%}" if before else "",
            f"{after['success']:.1%}" if after else "",
            f"{summary['bank_size'][-1]:.0f}" if summary["bank_size"] else "",
        )
    return table


def evaluation_table(result: Evaluation) -> RenderableType:
    """Return an evaluation by task type."""
    table = Table("task type", "success", "95 % interval", "tasks")
    for name, rate in result.by_type.items():
        table.add_row(escape(name), f"{rate.success:.1%}", f"{rate.low:.0%} to {rate.high:.0%}", str(rate.n))
    table.add_section()
    rate = result.rate
    table.add_row(
        "[bold]all[/bold]", f"[bold]{rate.success:.1%}[/bold]", f"{rate.low:.0%} to {rate.high:.0%}", str(rate.n)
    )
    title = (
        f"Policy version {result.iteration} of {result.run_id}, temperature {result.temperature}, seed {result.seed}"
    )
    return Group(Text(title), table)


def bank_table(stats: Mapping[str, Any]) -> RenderableType:
    """Return the bank's counts by failure type."""
    table = Table("failure type", "failures", "share")
    total = max(1, sum(stats["by_failure_type"].values()))
    for name, count in sorted(stats["by_failure_type"].items(), key=lambda pair: (-pair[1], pair[0])):
        table.add_row(escape(str(name)), str(count), f"{count / total:.0%}")
    head = f"{stats['records']} failures of {stats['tasks']} tasks, {stats['resolved']} of them since resolved"
    return Group(Text(head), table)


def neighbours_table(found: Sequence[Neighbour]) -> RenderableType:
    """Return similar failures, most similar first."""
    if not found:
        return Text("Nothing similar is in the bank.")
    table = Table("similarity", "failure type", "task", "iteration", "query", "record")
    for item in found:
        table.add_row(
            f"{item.similarity:.2f}",
            escape(item.record.failure_type),
            escape(item.task_id),
            str(item.record.iteration),
            escape(item.record.retrieval_query),
            item.record.record_id[:8],
        )
    return table


def diagnosis_panel(worker: Worker, record: str) -> RenderableType:
    """Return one diagnosis beside the episode that it is about.

    Raises:
        ConfigError: no record, or more than one, begins with these characters.
    """
    matches = [
        (n, diagnosis)
        for n in worker.store.committed(worker.run_id)
        for diagnosis in worker.committed_diagnoses(n)
        if diagnosis.record_id.startswith(record)
    ]
    if len(matches) != 1:
        raise ConfigError(
            f"{len(matches)} records of {worker.run_id} begin with '{record}'; see `roleagent bank search`"
        )
    n, diagnosis = matches[0]
    episode = next(t for t in worker.trajectories(n) if t.trajectory_id == diagnosis.trajectory_id)
    table = Table("step", "action", "what happened", title=escape(episode.goal), title_justify="left")
    for step, after in zip(episode.steps, episode.states[1:], strict=True):
        marker = "[red]>[/red] " if step.index == diagnosis.critical_step else "  "
        table.add_row(f"{marker}{step.index}", escape(step.action or "(unreadable turn)"), escape(after))
    rows = [
        ("failure type", diagnosis.failure_type or diagnosis.error),
        ("root cause", diagnosis.root_cause),
        ("critical step", str(diagnosis.critical_step)),
        ("lesson", diagnosis.lesson),
        ("query", diagnosis.retrieval_query),
        ("task", diagnosis.task_id),
        ("status", diagnosis.status.value),
    ]
    return Group(table, facts(rows))
