"""An ablation on the screen: its plan, its progress, and what it found."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from roleagent.ablation.report import duration, p_text, points, rate
from roleagent.console.live import LiveDisplay
from roleagent.console.progress import clock
from roleagent.console.run_panel import facts, short_path
from roleagent.console.screen import escape
from roleagent.console.show import new_table

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

    from roleagent.ablation.machine import Slots
    from roleagent.ablation.plan import Member, Plan

_BAR = 16
_SIGNIFICANT = 0.05


@dataclass
class _Run:
    """A run that is going on."""

    began: float
    done: int = 0
    phase: str = "starting"
    success: float | None = None


class AblationDisplay(LiveDisplay):
    """A listener of an ablation that draws on a console: a live line a run, or a line an event off a terminal."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._total = self._done = self._kept = self._failed = 0
        self._iterations: dict[str, int] = {}
        self._runs: dict[str, _Run] = {}
        self.ablation_id = ""  #: of the ablation that is shown; empty before it has begun

    def ablation_started(self, plan: Plan, slots: Slots, finished: int) -> None:
        """Say what is going to be run."""
        with self._lock:
            self.ablation_id, self._total, self._done, self._kept = (
                plan.ablation_id,
                len(plan.members),
                finished,
                finished,
            )
            self._iterations = {member.run_id: member.config.iterations for member in plan.members}
        count, seeds = len(plan.variants), len(plan.seeds)
        self._console.print(
            f"Ablation [bold]{escape(plan.ablation_id)}[/bold]: {count} {_plural('variant', count)} x {seeds} "
            f"{_plural('seed', seeds)}, {slots.parallel} at a time with {slots.threads} "
            f"{_plural('thread', slots.threads)} each" + (f"; {finished} finished before" if finished else "")
        )

    def member_started(self, member: Member) -> None:
        """Show the run."""
        with self._lock:
            self._runs[member.run_id] = _Run(time.monotonic())
        if not self._live:
            self._console.print(f"  {_name(member)}  begins")

    def member_phase(self, member: Member, iteration: int, phase: str) -> None:
        """Show the phase; off a terminal it is not worth a line."""
        with self._lock:
            if member.run_id in self._runs:
                self._runs[member.run_id].phase = phase

    def member_iteration(self, member: Member, iteration: int, metrics: Mapping[str, float]) -> None:
        """Count the iteration; off a terminal, print it where held-out tasks were played."""
        held = metrics.get("success/heldout")
        with self._lock:
            run = self._runs.get(member.run_id)
            if run is not None:
                run.done, run.success = iteration, run.success if held is None else float(held)
                run.phase = ""  # the next iteration has not begun any
        if not self._live and held is not None:
            self._console.print(f"  {_name(member)}  {iteration}/{member.config.iterations}  held-out {held:.1%}")

    def member_ended(self, member: Member, reason: str) -> None:
        """Print how the run ended."""
        with self._lock:
            run = self._runs.pop(member.run_id, None)
            self._done += 1
            self._failed += bool(reason)
            place = f"{self._done}/{self._total}"
            seconds = time.monotonic() - run.began if run else 0.0
        end = f"[red]failed[/]: {escape(reason)}" if reason else "finished"
        if run and run.success is not None and not reason:
            end += f", held-out {run.success:.1%}"
        self._console.print(f"[bold]{place}[/]  {_name(member)}  {end}  ({clock(seconds)})")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.progress_bar import ProgressBar

        with self._lock:
            rows = [(name, run.done, run.phase, run.success) for name, run in self._runs.items()]
            total, done, failed = self._total, self._done, self._failed
            whole = sum(self._iterations.values()) or 1
            per_run = whole / max(1, total)
            share = (done * per_run + sum(run.done for run in self._runs.values())) / whole
            fresh = share - self._kept / max(1, total)
        seconds = time.monotonic() - self._began
        table = Table.grid(padding=(0, 1))
        for name, count, phase, success in rows:
            held = f"held-out {success:.0%}" if success is not None else ""
            iterations = self._iterations.get(name, 1)
            table.add_row(
                Text(f"  {name.removeprefix(self.ablation_id + '-')}", no_wrap=True, overflow="ellipsis"),
                ProgressBar(total=iterations, completed=count, width=_BAR, complete_style="cyan"),
                Text(f"{count}/{iterations}", justify="right"),
                Text(phase, style="cyan", no_wrap=True, overflow="ellipsis"),
                Text(held, no_wrap=True),
            )
        yield table
        told = f"  {done} of {total} runs" + (f", {failed} failed" if failed else "") if total else "  starting Prefect"
        left = f", about {clock(seconds / fresh * (1 - share))} left" if fresh > 0.05 and share < 1 else ""
        yield Text(f"{told}   {clock(seconds)}{left}", no_wrap=True, overflow="ellipsis")


def plan_panel(plan: Plan, slots: Slots) -> RenderableType:
    """Return what an ablation would run."""
    table = new_table("variant", "name", "overrides")
    for variant in plan.variants:
        mark = " (compared with)" if variant.name == plan.reference else ""
        table.add_row(escape(variant.label) + mark, escape(variant.name), escape("\n".join(variant.overrides)))
    head = Text.assemble(
        (plan.ablation_id, "bold"),
        f"  {len(plan.members)} runs: {len(plan.variants)} variants, seeds {', '.join(map(str, plan.seeds))}; "
        f"{slots.parallel} at a time with {slots.threads} {_plural('thread', slots.threads)} each\n",
    )
    return Group(head, table)


def results_panel(results: Mapping[str, Any], labels: Mapping[str, str]) -> RenderableType:
    """Return what an ablation found, as a panel, with where its results are below it.

    Args:
        results: what the flow returned.
        labels: the variants in words, by name.
    """
    by_episodes, by_time = (results["comparisons"][f"equal_{axis}"] for axis in ("episodes", "seconds"))
    against = labels[results["against"]]
    columns = ("n", "held-out", "difference", "p", "in time")
    table = new_table("variant", *columns, numbers=columns)
    table.columns[0].overflow, table.columns[0].min_width = "fold", 12
    for column in table.columns[1:]:
        column.no_wrap = True
    for name, line in by_episodes["variants"].items():
        gap = line["difference"]
        significant = line["p_holm"] is not None and line["p_holm"] <= _SIGNIFICANT
        colour = ("green" if (gap["mean"] or 0) > 0 else "red") if significant else ""
        table.add_row(
            escape(labels[name]),
            str(line["n"]),
            _estimate(line, rate, "{:.0%}".format),
            Text(_estimate(gap, points, lambda value: f"{100 * value:+.0f}"), style=colour),
            Text(p_text(line["p_holm"]), style=colour),
            rate(by_time["variants"][name]["mean"]),
            style="bold" if name == results["against"] else "",
        )
    failed = [run for run in results["runs"] if run["status"] != "finished"]
    style = "yellow" if failed else "green"
    budget, seconds = by_episodes["budget"], by_time["budget"]
    rows: list[tuple[str, RenderableType]] = [
        ("read off at", f"{budget:,.0f} training episodes; in time: after {duration(seconds)} of training"),
        ("difference", f"from {escape(against)}, in points, paired by seed; 95 % intervals"),
        ("p", "of the paired t-test, after Holm"),
    ]
    count = len(results["runs"])
    title = f"[bold]{escape(results['ablation'])}[/bold]  {count - len(failed)} of {count} runs finished"
    parts: list[RenderableType] = [
        Panel(
            Group(table, Text(), facts(rows)),
            title=title,
            title_align="left",
            border_style=style,
            expand=False,
            padding=(0, 1),
        )
    ]
    parts += [_line(f"[red]{run['status']}[/]  {escape(run['run_id'])}  {escape(run['reason'])}") for run in failed]
    page = results["mlflow_url"] or f"mlflow ui --backend-store-uri {results['mlflow_uri']}"
    places = [("report", results["report"]), ("figure", results["figure"]), ("MLflow run", results["mlflow_run"])]
    places += [("MLflow page", page), ("do it again", results["repeat"])]
    parts += [_line(f"[dim]{name:<11}[/]  {escape(short_path(str(value)))}") for name, value in places if value]
    return Group(*parts)


def _line(markup: str) -> Text:
    text = Text.from_markup(f"  {markup}")
    text.no_wrap, text.overflow = True, "ignore"
    return text


def _estimate(line: Mapping[str, Any], form: Callable[[float], str], bound: Callable[[float], str]) -> str:
    """Write a mean with its interval: "77.2% (75% to 80%)"; "" where there is none."""
    if line["mean"] is None:
        return ""
    interval = "" if line["low"] is None else f" ({bound(line['low'])} to {bound(line['high'])})"
    return form(line["mean"]) + interval


def _name(member: Member) -> str:
    return f"{escape(member.variant)} seed {member.seed}"


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"
