"""Figures of a run, drawn from the metrics of its iterations.

`history` is what the loop commits, one row an iteration (see `roleagent.tracking.history`). A number that is missing
or NaN leaves a gap; a figure without any numbers is not drawn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from roleagent.tracking import style
from roleagent.tracking.history import History, column, number, to_history, totals
from roleagent.tracking.learning_figures import draw_behaviour, draw_mismatch, draw_signal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TOP_TYPES = 7
_TOP_PHASES = 8
_CURRICULUM = (
    ("curriculum/relevance_share", "Relevance", "its share of the distribution", style.GREEN),
    ("curriculum/entropy", "Entropy", "of the task distribution, in nats", style.BLUE),
    ("curriculum/max_probability", "Largest probability", "of one task", style.ORANGE),
)


def draw_figures(history: History) -> dict[str, Figure]:
    """Draw every figure that the history has numbers for: name -> figure, in the order of a report."""
    rows = to_history(history)
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
    ux, uniform = column(history, "success/uniform")
    if any(number(row, "success/relevance") is not None for row in history):
        averaged = style.smooth(uniform)
        axes.plot(ux, averaged, color=style.GREEN, linewidth=1.6)
        ends.append((ux[-1], averaged[-1], f"uniform draws {averaged[-1]:.0%}", style.GREEN))
    if x:
        axes.plot(x, train, color=style.ORANGE, linewidth=1, alpha=0.35)
        averaged = style.smooth(train)
        axes.plot(x, averaged, color=style.ORANGE, linewidth=2.2)
        ends.append((x[-1], averaged[-1], f"training {averaged[-1]:.0%}", style.ORANGE))
    if hx:
        band = [
            row for row in history if number(row, "heldout/low") is not None and number(row, "heldout/high") is not None
        ]
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
        "held-out tasks with 95 % interval; training batches (thin), their moving mean, and that of uniform draws",
        ylabel="episodes that succeed",
    )
    style.percent(axes)
    style.end_labels(axes, *zip(*ends, strict=True))
    return figure


def draw_match(history: History) -> Figure | None:
    """Match of predicted with real next states: the mean, and each horizon where it is recorded."""
    x, mean = column(history, "match/mean")
    if not x:
        return None
    figure, (axes,) = style.new_figure()
    ends: list[tuple[float, float, str, str]] = []
    keys = sorted(
        {key for row in history for key in row if re.fullmatch(r"match/h\d+", key)}, key=lambda key: (len(key), key)
    )
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
    held_x, held = column(history, "match/heldout")
    if held_x:
        axes.plot(held_x, held, color=style.ORANGE, linewidth=2, marker="o", markersize=5, markeredgecolor="white")
        ends.append((held_x[-1], held[-1], f"held-out {held[-1]:.2f}", style.ORANGE))
    style.dress(
        axes, "Prediction match", "how well the model foretells its environment; 1 is word for word", ylabel="match"
    )
    axes.set_ylim(0, 1)
    style.end_labels(axes, *zip(*ends, strict=True))
    return figure


def draw_bank(history: History) -> Figure | None:
    """Records in the failure bank, and how many each iteration added."""
    x, size = column(history, "bank/size")
    if not any(size):
        return None
    from matplotlib.ticker import MaxNLocator

    figure, (total, fresh) = style.new_figure(2, height=3.6)
    added = [max(0.0, after - before) for before, after in zip([0.0, *size], size, strict=False)]
    total.fill_between(x, size, color=style.PURPLE, alpha=0.13, linewidth=0)
    total.plot(x, size, color=style.PURPLE, linewidth=2.4, marker="o" if len(x) == 1 else None)
    style.dress(total, "Failure bank", f"records in all: {size[-1]:,.0f} after iteration {x[-1]:.0f}")
    total.set_ylim(0, max(size) * 1.1)
    fresh.bar(x, added, width=0.82, color=style.PURPLE, alpha=0.7, linewidth=0)
    style.dress(fresh, "New records", "diagnosed in each iteration")
    fresh.set_ylim(0, max(1.0, max(added) * 1.15))
    fresh.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
    return figure


def draw_failure_types(history: History) -> Figure | None:
    """Counts of diagnosed failure types over the iterations, smoothed and stacked; rare types are put together.

    Where the environment knows why episodes failed, its account of the same episodes stands beside the model's, in
    the same colours and on the same scale.
    """
    said, known = totals(history, "failure_types"), totals(history, "engine_types")
    if not any(said.values()):
        return None
    rows = [row for row in history if row["iteration"] > 0]  # nothing is diagnosed before training
    counts = {kind: said.get(kind, 0.0) + known.get(kind, 0.0) for kind in {**said, **known}}
    order = sorted(counts, key=lambda kind: (-counts[kind], kind))
    kept, rest = order[:_TOP_TYPES], order[_TOP_TYPES:]
    groups = [[kind] for kind in kept] + ([rest] if rest else [])
    names = [shorten(kind) for kind in kept] + ([f"{len(rest)} more"] if rest else [])
    colours = [*style.SERIES[: len(kept)], *([style.REST] if rest else [])]
    mappings = ["failure_types", "engine_types"] if any(known.values()) else ["failure_types"]
    figure, panels = style.new_figure(len(mappings), width=8.4 if len(mappings) == 1 else 11.4)
    heights, notes = [], []
    for axes, mapping in zip(panels, mappings, strict=True):
        layers = [[sum(float(row[mapping].get(kind, 0)) for kind in group) for row in rows] for group in groups]
        notes.append([f"{sum(layer):,.0f}" for layer in layers])
        x = [float(row["iteration"]) for row in rows]
        if len(x) == 1:
            x, layers = [x[0] - 0.4, x[0] + 0.4], [layer * 2 for layer in layers]
        axes.stackplot(x, [style.smooth(layer) for layer in layers], colors=colours, edgecolor="white", linewidth=0.8)
        axes.set_xlim(x[0], x[-1])
        heights.append(axes.get_ylim()[1])
    for axes in panels:
        axes.set_ylim(0, max(heights))
    if len(panels) == 1:
        subtitle = "diagnosed failures in each iteration, smoothed; counts of the whole run"
        style.dress(panels[0], "Failure types", subtitle, ylabel="failures")
    else:
        style.dress(panels[0], "What the model says", "its diagnoses in each iteration, smoothed", ylabel="failures")
        style.dress(panels[1], "What the engine says", f"of the same episodes{_agreement(rows)}")
    texts = [" / ".join(pair) for pair in zip(*notes, strict=True)]
    _legend(panels[-1], names[::-1], colours[::-1], texts[::-1])
    return figure


def _agreement(rows: History) -> str:
    """The share of all compared diagnoses whose type is the engine's, in words."""
    pairs = [(number(row, "diagnosis/checked"), number(row, "diagnosis/type_accuracy")) for row in rows]
    checked = sum(count for count, share in pairs if count and share is not None)
    agreed = sum(count * share for count, share in pairs if count and share is not None)
    return f"; {agreed / checked:.0%} of {checked:,.0f} types agree" if checked else ""


def draw_phases(history: History) -> Figure | None:
    """Seconds of each phase an iteration as stacked bars; the legend gives shares of the whole."""
    rows = [row for row in history if row["phase_seconds"]]
    seconds = totals(rows, "phase_seconds")
    whole = sum(seconds.values())
    if not whole > 0:
        return None
    order = list(seconds)
    kept, rest = order[:_TOP_PHASES], order[_TOP_PHASES:]
    figure, (axes,) = style.new_figure()
    x = [float(row["iteration"]) for row in rows]
    bottom = [0.0] * len(rows)
    names, colours, notes = [], [], []
    groups = [(shorten(phase.replace("_", " ")), [phase]) for phase in kept] + (
        [(f"{len(rest)} more", rest)] if rest else []
    )
    for n, (name, phases) in enumerate(groups):
        colour = style.REST if rest and n == len(groups) - 1 else style.SERIES[n % len(style.SERIES)]
        heights = [sum(float(row["phase_seconds"].get(phase, 0.0)) for phase in phases) for row in rows]
        axes.bar(x, heights, width=0.86, bottom=bottom, color=colour, linewidth=0)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
        names.append(name)
        colours.append(colour)
        notes.append(f"{sum(heights) / whole:.1%}")
    style.dress(
        axes,
        "Where the time goes",
        "seconds of each phase; what runs beside the update is counted whole",
        ylabel="seconds",
    )
    axes.margins(x=0.01)
    _legend(axes, names[::-1], colours[::-1], notes[::-1])
    return figure


def draw_curriculum(history: History) -> Figure | None:
    """The task distribution: share drawn for relevance, normalised entropy, largest probability."""
    panels = [panel for panel in _CURRICULUM if column(history, panel[0])[0]]
    if not panels:
        return None
    figure, axes_list = style.new_figure(len(panels), height=3.4, width=max(5.0, 3.4 * len(panels)))
    for axes, (key, title, subtitle, colour) in zip(axes_list, panels, strict=True):
        x, y = column(history, key)
        axes.plot(x, y, color=colour, linewidth=2.2, marker="o" if len(x) == 1 else None)
        style.dress(axes, title, subtitle)
        if key.endswith("_share"):
            style.percent(axes)
        else:
            low, high = min(y), max(y)
            pad = max((high - low) * 0.15, abs(high) * 0.05, 1e-6)
            axes.set_ylim(max(0.0, low - pad), high + pad)
        axes.fill_between(x, y, axes.get_ylim()[0], color=colour, alpha=0.1, linewidth=0)
    return figure


def shorten(text: str, limit: int = 26) -> str:
    """One line of printable characters; `$` would start matplotlib's formulas."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).replace("$", "").split()) or "unnamed"
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _legend(axes: Any, names: Sequence[str], colours: Sequence[str], notes: Sequence[str]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=colour, linewidth=0) for colour in colours]
    labels = [f"{name}  {note}" for name, note in zip(names, notes, strict=True)]
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
    "signal": draw_signal,
    "mismatch": draw_mismatch,
    "behaviour": draw_behaviour,
    "phases": draw_phases,
}
