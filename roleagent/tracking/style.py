"""The look of every figure: one palette, one set of axes, so that a report reads as one piece.

Colours are told apart by people with colour-blindness and in grey print (after Okabe and Ito). Figures are made
without pyplot: nothing global changes and threads do not meet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE = "#0b62a4"
ORANGE = "#d95f02"
GREEN = "#1b8a6b"
PURPLE = "#7a5195"
INK = "#1f2933"
MUTED = "#6b7785"
GRID = "#e4e8ec"
SERIES = (BLUE, "#e69f00", GREEN, "#cc5a71", "#56b4e9", PURPLE, "#8f9d3c", "#a0522d", "#4d5d6c")
REST = "#c5ccd3"


def new_figure(panels: int = 1, height: float = 4.2, width: float = 8.4) -> tuple[Figure, list[Axes]]:
    """Return an empty figure (150 dpi, sizes in inches) with its panels side by side."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1, wspace=0.06)  # type: ignore[union-attr,call-arg]
    return figure, list(figure.subplots(1, panels, squeeze=False)[0])


def new_grid(rows: int, columns: int) -> tuple[Figure, list[Axes]]:
    """Return an empty figure with rows x columns panels of the size of a thumbnail, row after row."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * columns, 0.8 + 3.1 * rows), dpi=150, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.14)  # type: ignore[union-attr,call-arg]
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def figure_legend(figure: Figure, entries: Sequence[tuple[str, str]], title: str) -> None:
    """Name the lines of a whole figure below it: labels and their colours."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=colour, linewidth=2.6) for _, colour in entries]
    rows = max(1, math.ceil(len(entries) / 6))
    legend = figure.legend(
        handles,
        [label for label, _ in entries],
        loc="outside lower left",
        ncols=max(1, math.ceil(len(entries) / rows)),
        frameon=False,
        fontsize=9.5,
        labelcolor=INK,
        handlelength=1.5,
        columnspacing=1.8,
        title=title,
        title_fontsize=8.5,
        alignment="left",
    )
    legend.get_title().set_color(MUTED)


def dress(axes: Axes, title: str, subtitle: str = "", *, xlabel: str = "iteration", ylabel: str = "") -> None:
    """Give a panel its title, its quiet subtitle and a light grid."""
    from matplotlib.ticker import MaxNLocator

    axes.set_title(title, loc="left", fontsize=12.5, fontweight="bold", color=INK, pad=24 if subtitle else 10)
    if subtitle:
        axes.annotate(
            subtitle, (0, 1), (0, 8), xycoords="axes fraction", textcoords="offset points", fontsize=9, color=MUTED
        )
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(REST)
    axes.grid(axis="y", color=GRID, linewidth=0.9)
    axes.set_axisbelow(True)
    axes.tick_params(colors=MUTED, labelsize=9, length=0, pad=5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=9, steps=[1, 2, 5, 10], min_n_ticks=1))
    axes.margins(x=0.012)
    axes.set_xlabel(xlabel, fontsize=9.5, color=MUTED)
    if ylabel:
        axes.set_ylabel(ylabel, fontsize=9.5, color=MUTED)


def percent(axes: Axes, low: float = 0.0, high: float = 1.0) -> None:
    """Show the y axis in per cent."""
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(MaxNLocator(steps=[1, 2, 5, 10]))  # whole per cents: 62.5 would be called 62
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def end_labels(
    axes: Axes, xs: Sequence[float], ys: Sequence[float], texts: Sequence[str], colours: Sequence[str]
) -> None:
    """Name lines at their right ends; labels that would touch are moved apart, and lead back to their lines."""
    low, high = axes.get_ylim()
    gap = (high - low) * 0.062
    order = sorted(range(len(ys)), key=lambda i: ys[i])
    heights = [float(ys[i]) for i in order]
    for i in range(1, len(heights)):
        heights[i] = max(heights[i], heights[i - 1] + gap)
    if heights and heights[-1] > high - gap / 2:
        heights[-1] = high - gap / 2
        for i in range(len(heights) - 2, -1, -1):
            heights[i] = min(heights[i], heights[i + 1] - gap)
    moved = [abs(height - ys[i]) > gap / 2 for height, i in zip(heights, order, strict=True)]
    for height, i, far in zip(heights, order, moved, strict=True):
        lead = {
            "arrowstyle": "-",
            "color": colours[i],
            "linewidth": 0.7,
            "shrinkA": 1,
            "shrinkB": 1,
            "relpos": (0, 0.5),
        }
        axes.annotate(
            texts[i],
            (xs[i], ys[i]),
            (1.06 if any(moved) else 1.02, height),
            textcoords=("axes fraction", "data"),
            arrowprops=lead if far else None,
            va="center",
            fontsize=9.5,
            fontweight="bold",
            color=colours[i],
            annotation_clip=False,
        )


def smooth(values: Sequence[float]) -> list[float]:
    """Centred moving average over up to 9 points, fewer in short runs; it does not lag."""
    reach = min(4, len(values) // 8)
    averaged = []
    for n in range(len(values)):
        window = values[max(0, n - reach) : n + reach + 1]
        averaged.append(sum(window) / len(window))
    return averaged
