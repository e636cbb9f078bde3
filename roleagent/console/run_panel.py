"""What a run did, on one screen."""

from __future__ import annotations

import math
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.measure import Measurement
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from roleagent.console.progress import clock
from roleagent.console.screen import escape

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

STATUS_STYLES = {"finished": "green", "running": "cyan", "failed": "red", "interrupted": "yellow"}
_TYPES_SHOWN = 6
_BAR = 20
_SPARKS = 24
_BLOCKS = "▁▂▃▄▅▆▇█"


def facts(rows: Sequence[tuple[str, RenderableType]]) -> Table:
    """Return a two-column table of names and values; texts are escaped by the caller."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    return table


def short_path(text: str) -> str:
    """Write a path below the working directory as a relative one."""
    path = Path(text)
    return str(path.relative_to(Path.cwd())) if path.is_absolute() and path.is_relative_to(Path.cwd()) else text


class Curve:
    """Values over iterations as a line of blocks, from the first to the last; empty where only ASCII can be shown."""

    def __init__(self, values: Sequence[float | None], form: str) -> None:
        self._values = [value for value in values if value is not None]
        self._form = form

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._text(options)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self._text(options))

    def _text(self, options: ConsoleOptions) -> Text:
        values = self._values
        if not values:
            return Text("none")
        size = max(1, min(5, len(values) // 4))  # ends are means of a few noisy batches
        first, last = sum(values[:size]) / size, sum(values[-size:]) / size
        line = "" if options.ascii_only else f"{sparks(values)}  "
        return Text.assemble((line, "cyan"), f"{first:{self._form}} to {last:{self._form}}")


def sparks(values: Sequence[float], width: int = _SPARKS) -> str:
    """Draw values as at most `width` blocks of eight heights, each a mean of neighbours."""
    count = min(width, len(values))
    edges = [round(place * len(values) / count) for place in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    span = high - low
    return "".join(_BLOCKS[round((value - low) / span * 7) if span > 0 else 3] for value in means)


def rate_text(rate: Mapping[str, float] | None) -> str:
    """Write a rate with its interval: "52.0% (46% to 58%, 256 tasks)"."""
    if rate is None:
        return "not evaluated"
    return f"{rate['success']:.1%} ({rate['low']:.0%} to {rate['high']:.0%}, {rate['n']:.0f} tasks)"


def run_panel(summary: Mapping[str, Any]) -> RenderableType:
    """Return what a run did, as a panel, with where its results are below it."""
    before, after = summary["heldout_before"], summary["heldout_after"]
    change = ""
    if before and after:
        gain = 100 * (after["success"] - before["success"])
        change = f"  [{'green' if gain > 0 else 'yellow'}]{gain:+.1f} points[/]"
    planned, count = summary["iterations_planned"], summary["iterations"]
    done = (f"{count}" if count == planned else f"{count} of {planned}") + (
        " iteration" if planned == 1 else " iterations"
    )
    phases = sorted(summary["phase_share"].items(), key=lambda pair: -pair[1])
    shares = ", ".join(f"{name.replace('_', ' ')} {share:.0%}" for name, share in phases if share >= 0.005)
    rows: list[tuple[str, RenderableType]] = [
        ("held-out before", rate_text(before)),
        ("held-out after", f"[bold]{rate_text(after)}[/bold]{change}"),
        ("training success", Curve(summary["train_success"], ".0%")),
        *_by_source(summary),
        ("prediction match", Curve(summary["prediction_match"], ".2f")),
        *_heldout_match(summary),
        ("failures", _failures(summary)),
        ("curriculum", f"{summary['curriculum_share']:.0%} of the tasks were drawn because of a diagnosis"),
        ("time", f"{clock(summary['seconds'])} in {done}" + (f": {shares}" if shares else "")),
        ("memory", f"{summary['peak_rss_mb']:,.0f} MiB at most"),
    ]
    status = str(summary["status"])
    style = STATUS_STYLES.get(status, "white")
    title = f"[bold]{escape(summary['run_id'])}[/bold]  [{style}]{escape(status)}[/]  seed {summary['seed']}"
    places = [("checkpoint", summary["checkpoint"]), ("report", summary["report"])]
    places.append(("MLflow run", summary["mlflow_run"]))
    return Group(
        Panel(facts(rows), title=title, title_align="left", border_style=style, expand=False, padding=(0, 1)),
        _lines([(name, short_path(value)) for name, value in places if value]),
    )


def _by_source(summary: Mapping[str, Any]) -> list[tuple[str, RenderableType]]:
    """Success of the uniform draws alone, where a curriculum made others: those are hard by choice."""
    series = summary["train_success_by_source"]
    if not any(value is not None for value in series["relevance"]):
        return []
    return [("  uniform draws", Curve(series["uniform"], ".0%"))]


def _heldout_match(summary: Mapping[str, Any]) -> list[tuple[str, RenderableType]]:
    """Prediction match on the held-out tasks before and after: the same tasks, whatever the curriculum draws."""
    found = {int(n): value for n, value in summary["heldout_match"].items()}
    if len(found) < 2:
        return []
    before, after = found[min(found)], found[max(found)]
    return [("  held-out", f"{before:.2f} before, {after:.2f} after")]


def finished_panel(summary: Mapping[str, Any]) -> RenderableType:
    """Return the summary of a run that has just finished, with what to do next."""
    run_id, uri, page = summary["run_id"], summary["mlflow_uri"], summary["mlflow_url"]
    following = [
        ("watch it play", f"roleagent play --run {run_id}"),
        ("its failures", f"roleagent bank stats {run_id}"),
        ("its numbers", f"roleagent runs show {run_id} --json"),
        ("its MLflow page", page or f"mlflow ui --backend-store-uri {shlex.quote(uri)}"),
    ]
    prefix = "" if shutil.which("roleagent") else short_path(str(Path(sys.executable).parent)) + "/"
    shown = [(name, text if text.startswith("http") else prefix + text) for name, text in following]
    return Group(run_panel(summary), Text("\nWhat to try next", style="bold"), _lines(shown))


def _failures(summary: Mapping[str, Any]) -> RenderableType:
    types = list(summary["failure_types"].items())
    total = sum(count for _, count in types)
    bank = summary["bank_size"]
    head = Text(f"{bank[-1] if bank else 0:,.0f} in the bank, {len(types)} {'type' if len(types) == 1 else 'types'}")
    if not total:
        return head
    table = Table.grid(padding=(0, 1))
    for name, count in types[:_TYPES_SHOWN]:
        table.add_row(Bar(count / types[0][1]), f"{count / total:>4.0%}", escape(name))
    return Group(head, table)


class Bar:
    """A horizontal bar of a share of at most `_BAR` characters; nothing where there is no room for it."""

    def __init__(self, share: float) -> None:
        self._share = share

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(_BAR, options.max_width)
        text = ("=" if options.ascii_only else "━") * math.ceil(self._share * width)
        yield Text(text if width > 3 else "", style="cyan", no_wrap=True)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, min(_BAR, options.max_width))


def _lines(rows: Sequence[tuple[str, str]]) -> RenderableType:
    """Return names and values as lines that are never broken, so that what is in them can be copied."""
    width = max((len(name) for name, _ in rows), default=0)
    texts = [Text.assemble((f"  {name:<{width}}", "dim"), f"  {value}") for name, value in rows]
    for text in texts:
        text.no_wrap, text.overflow = True, "ignore"
    return Group(*texts)
