"""Figures of a run, drawn from the metrics of its iterations.

`history` is what the loop commits: one flat mapping an iteration (`iteration`, `success/train`, ...), with
`failure_types` and `phase_seconds` as mappings. A number that is missing or NaN leaves a gap; a figure without any
numbers is not drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from roleagent.tracking import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

History = Sequence[Mapping[str, Any]]
_TOP_TYPES = 7
_TOP_PHASES = 8


def draw_figures(history: History) -> dict[str, Figure]:
    """Draw every figure that the history has numbers for: name -> figure, in the order of a report."""
    rows = sorted(history, key=lambda row: int(row["iteration"]))
    drawn = {name: draw(rows) for name, draw in _FIGURES.items()}
    return {name: figure for name, figure in drawn.items() if figure is not None}


def draw_success(history: History) -> Figure | None:
    """Success rate on the training batches (each and smoothed) and on held-out tasks with its 95 % interval."""
    x, train = column(history, "success/train")
    hx, held = column(history, "success/heldout")
    if not x and not hx:
        return None
    figure, (axes,) = style.new_figure()
    ends: list[tuple[float, float, str, str]] = []
    if x:
        axes.plot(x, train, color=style.ORANGE, linewidth=1, alpha=0.35)
        averaged = style.smooth(train)
        axes.plot(x, averaged, color=style.ORANGE, linewidth=2.2)
        ends.append((x[-1], averaged[-1], f"training {averaged[-1]:.0%}", style.ORANGE))
    if hx:
        band = [row for row in history if number(row, "heldout/low") is not None and number(row, "heldout/high") is not None]
        if band:
            axes.fill_between(
                [float(row["iteration"]) for row in band],
                [float(row["heldout/low"]) for row in band],
                [float(row["heldout/high"]) for row in band],
                color=style.BLUE,
                alpha=0.13,
                linewidth=0,
            )
        axes.plot(hx, held, color=style.BLUE, linewidth=2.4, marker="o", markersize=5, markeredgecolor="white")
        ends.append((hx[-1], held[-1], f"held-out {held[-1]:.0%}", style.BLUE))
    style.dress(
        axes,
        "Success rate",
        "held-out tasks with 95 % interval; training batches as sampled and smoothed",
        ylabel="episodes that succeed",
    )
    style.percent(axes)
    style.end_labels(axes, *zip(*ends, strict=True))  # type: ignore[arg-type]
    return figure


def draw_match(history: History) -> Figure | None:
    """Match of predicted with real next states: the mean, and each horizon where it is recorded."""
    x, mean = column(history, "match/mean")
    if not x:
        return None
    figure, (axes,) = style.new_figure()
    ends: list[tuple[float, float, str, str]] = []
    keys = sorted({key for row in history for key in row if key.startswith("match/h")}, key=lambda key: (len(key), key))
    if len(keys) > 1:
        for n, key in enumerate(keys[:5]):
            hx, hy = column(history, key)
            if hx:
                colour = style.SERIES[(n + 1) % len(style.SERIES)]
                averaged = style.smooth(hy)
                axes.plot(hx, averaged, color=colour, linewidth=1.5)
                ends.append((hx[-1], averaged[-1], f"{key.removeprefix('match/h')} ahead {averaged[-1]:.2f}", colour))
    axes.plot(x, mean, color=style.BLUE, linewidth=1, alpha=0.3)
    averaged = style.smooth(mean)
    axes.plot(x, averaged, color=style.BLUE, linewidth=2.4)
    ends.append((x[-1], averaged[-1], f"mean {averaged[-1]:.2f}", style.BLUE))
    style.dress(axes, "Prediction match", "how well the model foretells its environment; 1 is word for word", ylabel="match")
    axes.set_ylim(0, 1)
    style.end_labels(axes, *zip(*ends, strict=True))  # type: ignore[arg-type]
    return figure


def draw_bank(history: History) -> Figure | None:
    """Records in the failure bank, and how many each iteration added."""
    x, size = column(history, "bank/size")
    if not x or not any(size):
        return None
    figure, (axes,) = style.new_figure()
    added = [max(0.0, after - before) for before, after in zip([0.0, *size], size, strict=False)]
    axes.fill_between(x, size, color=style.PURPLE, alpha=0.14, linewidth=0)
    axes.plot(x, size, color=style.PURPLE, linewidth=2.4)
    axes.bar(x, added, width=0.7, color=style.PURPLE, alpha=0.55)
    style.dress(axes, "Failure bank", "records in all (line) and new in each iteration (bars)", ylabel="records")
    axes.set_ylim(0, max(size) * 1.08)
    style.end_labels(axes, [x[-1]], [size[-1]], [f"{size[-1]:,.0f}"], [style.PURPLE])
    return figure


def draw_failure_types(history: History) -> Figure | None:
    """Counts of diagnosed failure types over the iterations, stacked; rare types are put together."""
    rows = [row for row in history if isinstance(row.get("failure_types"), Mapping)]
    totals: dict[str, float] = {}
    for row in rows:
        for kind, count in row["failure_types"].items():
            totals[str(kind)] = totals.get(str(kind), 0.0) + float(count)
    if not any(totals.values()):
        return None
    kept = sorted(totals, key=lambda kind: (-totals[kind], kind))[:_TOP_TYPES]
    x = [float(row["iteration"]) for row in rows]
    layers = [[float(row["failure_types"].get(kind, 0)) for row in rows] for kind in kept]
    names = [shorten(kind) for kind in kept]
    colours = [*style.SERIES[: len(kept)]]
    if len(totals) > len(kept):
        layers.append([float(sum(row["failure_types"].values())) - sum(layer[i] for layer in layers) for i, row in enumerate(rows)])
        names.append(f"{len(totals) - len(kept)} more")
        colours.append(style.REST)
    figure, (axes,) = style.new_figure()
    if len(x) == 1:
        x, layers = [x[0] - 0.4, x[0] + 0.4], [layer * 2 for layer in layers]
    axes.stackplot(x, layers, colors=colours, edgecolor="white", linewidth=0.8)
    style.dress(axes, "Failure types", "diagnosed failures in each iteration, by the model's own label", ylabel="failures")
    axes.set_xlim(x[0], x[-1])
    axes.set_ylim(bottom=0)
    _legend(axes, names[::-1], colours[::-1], [f"{sum(layer):,.0f}" for layer in layers][::-1] if len(rows) > 1 else None)
    return figure


def draw_phases(history: History) -> Figure | None:
    """Seconds of each phase an iteration as stacked bars; the legend gives shares of the whole."""
    rows = [row for row in history if isinstance(row.get("phase_seconds"), Mapping) and row["phase_seconds"]]
    totals: dict[str, float] = {}
    for row in rows:
        for phase, seconds in row["phase_seconds"].items():
            totals[str(phase)] = totals.get(str(phase), 0.0) + float(seconds)
    whole = sum(totals.values())
    if not whole > 0:
        return None
    order = sorted(totals, key=lambda phase: (-totals[phase], phase))
    kept, rest = order[:_TOP_PHASES], order[_TOP_PHASES:]
    figure, (axes,) = style.new_figure()
    x = [float(row["iteration"]) for row in rows]
    bottom = [0.0] * len(rows)
    names, colours, notes = [], [], []
    groups = [(shorten(phase.replace("_", " ")), [phase]) for phase in kept] + ([(f"{len(rest)} more", rest)] if rest else [])
    for n, (name, phases) in enumerate(groups):
        colour = style.REST if rest and n == len(groups) - 1 else style.SERIES[n % len(style.SERIES)]
        heights = [sum(float(row["phase_seconds"].get(phase, 0.0)) for phase in phases) for row in rows]
        axes.bar(x, heights, width=0.86, bottom=bottom, color=colour, linewidth=0)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
        names.append(name)
        colours.append(colour)
        notes.append(f"{sum(heights) / whole:.1%}")
    style.dress(axes, "Where the time goes", f"seconds of each phase; mean {whole / len(rows):.1f} s an iteration", ylabel="seconds")
    axes.margins(x=0.01)
    _legend(axes, names[::-1], colours[::-1], notes[::-1])
    return figure


def draw_curriculum(history: History) -> Figure | None:
    """The task distribution: share drawn for relevance, normalised entropy, largest probability."""
    panels = [
        ("curriculum/relevance_share", "Drawn for relevance", "share of the tasks played", style.GREEN, True),
        ("curriculum/entropy", "Entropy", "of the task distribution, in nats", style.BLUE, False),
        ("curriculum/largest_p", "Largest probability", "of one task", style.ORANGE, False),
    ]
    found = [(column(history, key), *rest) for key, *rest in panels if column(history, key)[0]]
    if not found:
        return None
    figure, axes_list = style.new_figure(len(found), height=3.4, width=max(5.0, 3.4 * len(found)))
    for axes, ((x, y), title, subtitle, colour, share) in zip(axes_list, found, strict=True):
        axes.plot(x, y, color=colour, linewidth=2.2, marker="o" if len(x) == 1 else None)
        style.dress(axes, str(title), str(subtitle))
        if share:
            style.percent(axes)
        else:
            low, high = min(y), max(y)
            pad = max((high - low) * 0.15, abs(high) * 0.05, 1e-6)
            axes.set_ylim(max(0.0, low - pad), high + pad)
        axes.fill_between(x, y, axes.get_ylim()[0], color=colour, alpha=0.1, linewidth=0)
    return figure


def column(history: History, key: str) -> tuple[list[float], list[float]]:
    """Iterations and values of a metric where it is a finite number."""
    pairs = [(float(row["iteration"]), value) for row in history if (value := number(row, key)) is not None]
    return [x for x, _ in pairs], [y for _, y in pairs]


def number(row: Mapping[str, Any], key: str) -> float | None:
    """A finite number of a row, or None."""
    value = row.get(key)
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def shorten(text: str, limit: int = 26) -> str:
    """One line of printable characters; `$` would start matplotlib's formulas."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).replace("$", "").split()) or "unnamed"
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _legend(axes: Any, names: Sequence[str], colours: Sequence[str], notes: Sequence[str] | None) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=colour, linewidth=0) for colour in colours]
    labels = [f"{name}  {note}" for name, note in zip(names, notes, strict=True)] if notes else list(names)
    axes.legend(
        handles,
        labels,
        loc="upper left",
        bbox_to_anchor=(1.01, 1.02),
        frameon=False,
        fontsize=9.5,
        labelcolor=style.INK,
        handlelength=1.0,
        handleheight=1.0,
        labelspacing=0.55,
    )


_FIGURES: dict[str, Callable[[History], Figure | None]] = {
    "success": draw_success,
    "match": draw_match,
    "failure_types": draw_failure_types,
    "bank": draw_bank,
    "curriculum": draw_curriculum,
    "phases": draw_phases,
}
