"""One figure: success over episodes and over training time, and the paired differences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from roleagent.ablation.curves import Axis, Curve, common_places, read_off
from roleagent.ablation.results import Comparison, Results
from roleagent.ablation.statistics import standard_error
from roleagent.tracking import style
from roleagent.tracking.figures import shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROOM = 0.04  # of the y axis above and below what is drawn
_MINUTES_FROM = 300  # seconds; shorter trainings are shown in seconds


def draw_ablation(results: Results) -> Figure | None:
    """Draw an ablation; None without a finished run.

    Lines are means over seeds, bands one standard error to each side, thin lines the seeds themselves. The last panel
    has the paired differences at equal episodes with their 95 % intervals, where there are pairs.
    """
    drawn = [name for name in results.labels if results.curves(name)]
    if not drawn:
        return None
    by_episodes = results.comparisons[0]
    compared = [line for line in by_episodes.lines if line.difference.n]
    names = list(results.labels)
    colours = {
        name: style.INK if name == results.reference else style.SERIES[place % len(style.SERIES)]
        for place, name in enumerate([name for name in names if name != results.reference] + [results.reference])
    }
    panels = 3 if compared else 2
    height = max(4.4, 2.4 + 0.34 * len(drawn))
    figure, axes = style.new_figure(panels, height=height, width=5.0 * panels)
    reach = _reach([curve for name in drawn for curve in results.curves(name)])
    for panel, axis in zip(axes, ("episodes", "seconds"), strict=False):
        _curves(panel, axis, results, drawn, colours)  # type: ignore[arg-type]
        style.percent(panel, *reach)
        panel.axvline(_scaled(_budget(results, axis), results), color=style.REST, linewidth=1, linestyle=(0, (4, 3)))
    style.dress(axes[0], "At equal episodes", "held-out success over training episodes", xlabel="episodes")
    # One run that was held up would squeeze all others: lines are cut where no variant has all its seeds any more.
    end = _scaled(("seconds", _last_common(results, drawn)), results)
    axes[1].set_xlim(-0.02 * end, 1.03 * end)
    unit = "minutes" if _minutes(results) else "seconds"
    style.dress(axes[1], "At equal time", "the same over training time, evaluations left out", xlabel=unit)
    if compared:
        _differences(axes[2], results, by_episodes, colours)
    style.figure_legend(
        figure,
        [(shorten(results.labels[name]), colours[name]) for name in drawn],
        "mean over seeds; bands: one standard error; thin lines: single seeds; dashed: where it is read off",
    )
    return figure


def _curves(axes: Axes, axis: Axis, results: Results, drawn: Sequence[str], colours: dict[str, str]) -> None:
    for name in sorted(drawn, key=lambda name: name == results.reference):  # the reference lies on top
        curves, colour = results.curves(name), colours[name]
        scale = 60.0 if axis == "seconds" and _minutes(results) else 1.0
        for curve in curves if len(curves) > 1 else []:
            xs = [point.at(axis) / scale for point in curve]
            axes.plot(xs, [point.success for point in curve], color=colour, linewidth=0.8, alpha=0.22)
        places = common_places(curves, axis)
        columns = [[value for curve in curves if (value := read_off(curve, axis, x)) is not None] for x in places]
        means = [sum(values) / len(values) for values in columns]
        errors = [standard_error(values) for values in columns]
        xs = [x / scale for x in places]
        if len(curves) > 1:
            low = [mean - error for mean, error in zip(means, errors, strict=True)]
            high = [mean + error for mean, error in zip(means, errors, strict=True)]
            axes.fill_between(xs, low, high, color=colour, alpha=0.12, linewidth=0)
        marks: dict[str, Any] = {"marker": "o", "markersize": 4.5, "markeredgecolor": "white"}
        axes.plot(xs, means, color=colour, linewidth=2.3, **(marks if axis == "episodes" and len(xs) < 20 else {}))


def _differences(axes: Axes, results: Results, comparison: Comparison, colours: dict[str, str]) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    lines = [line for line in comparison.lines if line.difference.n][::-1]
    axes.axvline(0.0, color=style.INK, linewidth=1.2)
    ends = [0.0]
    for place, line in enumerate(lines):
        gap, colour = line.difference, colours[line.variant]
        low, high = gap.low, gap.high
        if gap.mean is None:
            continue
        if low is not None and high is not None:
            axes.plot([low, high], [place, place], color=colour, linewidth=2.2, solid_capstyle="round")
            ends += [low, high]
        axes.plot([gap.mean], [place], color=colour, marker="o", markersize=7, markeredgecolor="white")
        ends.append(gap.mean)
    label = shorten(results.labels[results.reference])
    style.dress(axes, "Difference", f"from {label}, paired by seed, 95 % interval", xlabel="points")
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color=style.GRID, linewidth=0.9)
    room = max(0.01, (max(ends) - min(ends)) * 0.08)
    axes.set_xlim(min(ends) - room, max(ends) + room)
    axes.set_ylim(-0.6, len(lines) - 0.4)
    axes.set_yticks(range(len(lines)), [shorten(line.label) for line in lines])
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _place: f"{100 * x:+.3g}" if abs(x) > 1e-9 else "0"))


def _reach(curves: Sequence[Curve]) -> tuple[float, float]:
    values = [point.success for curve in curves for point in curve]
    room = max(_ROOM, (max(values) - min(values)) * 0.1)
    return max(0.0, min(values) - room), min(1.0, max(values) + room)


def _last_common(results: Results, drawn: Sequence[str]) -> float:
    """Seconds up to which the variant that goes on longest has all its seeds; the budget at least."""
    ends = [places[-1] for name in drawn if (places := common_places(results.curves(name), "seconds"))]
    return max([*ends, _budget(results, "seconds")[1]])


def _budget(results: Results, axis: str) -> tuple[str, float]:
    return axis, next(item.budget for item in results.comparisons if item.axis == axis)


def _scaled(budget: tuple[str, float], results: Results) -> float:
    axis, value = budget
    return value / 60.0 if axis == "seconds" and _minutes(results) else value


def _minutes(results: Results) -> bool:
    ends = [outcome.curve[-1].seconds for outcome in results.outcomes if outcome.finished]
    return max(ends, default=0.0) >= _MINUTES_FROM
