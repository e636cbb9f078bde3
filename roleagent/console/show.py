"""Tables of the command line. All text of models and environments is escaped before it is shown."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from roleagent.console.run_panel import STATUS_STYLES, Bar, facts
from roleagent.console.screen import escape, printable
from roleagent.errors import ConfigError, RoleAgentError
from roleagent.loop import runs
from roleagent.loop.publishing import overview

if TYPE_CHECKING:
    from rich.console import RenderableType

    from roleagent.agent_in_world.records import Neighbour
    from roleagent.loop.evaluating import Evaluation
    from roleagent.loop.worker import Worker

_PATIENCE_SECONDS = 2.0  # a store that took longer to fail is not asked again for the next run
_NAMED = 8  # characters of a record id that are shown


def print_json(value: object) -> None:
    """Write a value as JSON to standard output."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def new_table(*columns: str, numbers: Sequence[str] = ()) -> Table:
    """Return an empty table with a line under its head; columns of numbers are aligned to the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in numbers else "left")
    return table


def runs_table() -> RenderableType:
    """Return all runs that this machine knows, oldest first; below them, why one cannot be read."""
    handles = runs.list_handles()
    if not handles:
        return Text("No run yet. Start one with: make train")
    table = new_table(
        "run", "status", "iterations", "before", "after", "bank", numbers=("iterations", "before", "after", "bank")
    )
    table.columns[0].no_wrap = True
    table.caption, table.caption_justify = "before, after: held-out success", "left"
    problems: list[Text] = []
    unreachable: dict[str, str] = {}
    for handle in handles:
        began = time.monotonic()
        try:
            if handle.store_uri in unreachable:
                raise RoleAgentError(unreachable[handle.store_uri])
            found = overview(handle.worker())
        except RoleAgentError as error:  # one unreadable run must not hide the others
            if time.monotonic() - began > _PATIENCE_SECONDS:
                unreachable[handle.store_uri] = str(error)
            table.add_row(escape(handle.run_id), "[red]unreadable[/]")
            named = str(error).startswith(f"run {handle.run_id} ")
            told = str(error) if named else f"{handle.run_id}: {error}"
            problem = printable(told)
            problems.append(Text(problem, style="red", no_wrap=True, overflow="ignore"))
            continue
        status = str(found["status"])
        before, after = found["heldout_before"], found["heldout_after"]
        table.add_row(
            escape(handle.run_id),
            f"[{STATUS_STYLES.get(status, 'white')}]{escape(status)}[/]",
            f"{found['iterations']}/{found['iterations_planned']}",
            f"{before.success:.1%}" if before else "",
            f"{after.success:.1%}" if after else "",
            f"{found['bank_size']:,.0f}",
        )
    return Group(table, *problems)


def evaluation_table(result: Evaluation) -> RenderableType:
    """Return an evaluation by task type."""
    table = new_table("task type", "success", "95 % interval", "tasks", numbers=("success", "95 % interval", "tasks"))
    table.add_column("")
    for column in table.columns[:-1]:
        column.no_wrap = True
    for name, rate in result.by_type.items():
        interval = f"{rate.low:.0%} to {rate.high:.0%}"
        table.add_row(escape(name), f"{rate.success:.1%}", interval, str(rate.n), Bar(rate.success))
    table.add_section()
    rate = result.rate
    cells = ("all", f"{rate.success:.1%}", f"{rate.low:.0%} to {rate.high:.0%}", str(rate.n))
    table.add_row(*(f"[bold]{cell}[/]" for cell in cells), Bar(rate.success))
    head = Text.assemble(
        (result.run_id, "bold"),
        f"  policy version {result.iteration}, temperature {result.temperature:g}, seed {result.seed}\n",
    )
    steps = result.steps_to_success
    return Group(head, table, Text("" if steps is None else f"Steps to success: {steps:.1f} on average"))


def bank_table(run_id: str, stats: Mapping[str, Any]) -> RenderableType:
    """Return the bank's counts by failure type."""
    types = sorted(stats["by_failure_type"].items(), key=lambda pair: (-pair[1], pair[0]))
    head = Text.assemble(
        (run_id, "bold"),
        f"  {stats['records']:,} failures ({stats['resolved']:,} since resolved) of {stats['tasks']:,} tasks",
    )
    if not types:
        return head
    table = new_table("failure type", "failures", "share", numbers=("failures", "share"))
    table.add_column("")
    total = sum(count for _, count in types)
    for name, count in types:
        table.add_row(escape(str(name)), f"{count:,}", f"{count / total:.0%}", Bar(count / types[0][1]))
    return Group(head, Text(), table)


def neighbours_table(run_id: str, found: Sequence[Neighbour]) -> RenderableType:
    """Return similar failures of a run, most similar first."""
    if not found:
        return Text(f"Nothing is in the bank of {run_id}.")
    table = Table.grid(padding=(0, 2))
    for item in found:
        where = f"{item.record.record_id[:_NAMED]}  iteration {item.record.iteration}  {printable(item.task_id)}"
        text = Text.assemble(
            (f"{printable(item.record.failure_type)}\n", "bold"),
            f"{printable(item.record.retrieval_query)}\n",
            (f"{where}\n", "dim"),
        )
        similarity = f"{item.similarity:.2f}".replace("-0.00", "0.00")
        table.add_row(Text(similarity, style="cyan"), text)
    first = found[0].record.record_id[:_NAMED]
    return Group(table, Text(f"More of one: roleagent bank show {first} --run {run_id}", style="dim"))


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
        count = str(len(matches)) if matches else "no"
        raise ConfigError(f"{count} records of {worker.run_id} begin with '{record}'; see `roleagent bank search`")
    n, diagnosis = matches[0]
    episode = next(t for t in worker.trajectories(n) if t.trajectory_id == diagnosis.trajectory_id)
    table = new_table("step", "action", "what happened", numbers=("step",))
    for step, after in zip(episode.steps, episode.states[1:], strict=True):
        critical = step.index == diagnosis.critical_step
        table.add_row(
            f"> {step.index}" if critical else str(step.index),
            escape(step.action or "(unreadable turn)"),
            escape(after),
            style="red" if critical else "",
        )
    rows: list[tuple[str, RenderableType]] = [
        ("failure type", f"[bold]{escape(diagnosis.failure_type or diagnosis.error)}[/]"),
        ("root cause", escape(diagnosis.root_cause)),
        ("critical step", str(diagnosis.critical_step or "")),
        ("lesson", escape(diagnosis.lesson)),
        ("query", escape(diagnosis.retrieval_query)),
        ("task", f"{escape(diagnosis.task_id)}, iteration {n}"),
        ("status", diagnosis.status.value),
    ]
    return Group(Text(printable(episode.goal), style="bold"), table, Text(), facts(rows))
