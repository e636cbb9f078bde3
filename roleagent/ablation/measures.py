"""What the variants did beside succeeding: measures over the iterations, compared seed by seed.

    value[v, s]       = mean of the measure over the last quarter of the iterations (one at least), variant v, seed s
    before[v, s]      = the same over the first quarter
    change            = value - before;  its mean over seeds with the 95 % t interval
    difference[v, s]  = value[v, s] - value[reference, s], over the seeds that both have, with the same interval

Measures are those of `roleagent.tracking.history.MEASURES`. A variant without one (no predictions, no match) has no
line. There is no test and no correction: these are many measures, to be looked at, and few seeds.

The gradient noise scale is a ratio of means over optimizer steps: it is taken over all iterations of all seeds at once.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from roleagent.ablation.results import Outcome, Results
from roleagent.ablation.statistics import Estimate, mean_interval, standard_error
from roleagent.learning.gradient_noise import SIGNAL, TRACE, noise_interval, noise_scale
from roleagent.tracking import style
from roleagent.tracking.history import MEASURES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS = 3


class MeasureLine(NamedTuple):
    """A measure of a variant."""

    measure: str
    variant: str
    before: Estimate  #: over the first quarter of the iterations
    after: Estimate  #: over the last quarter
    change: Estimate
    difference: Estimate  #: of `after` from the reference; n = 0 for the reference itself


def measure_lines(results: Results) -> list[MeasureLine]:
    """Compare the variants' finished runs, measure by measure, variants in the order of the plan."""
    lines = []
    for measure in MEASURES:
        ends = {name: _ends(results.outcomes, name, measure) for name in results.labels}
        against = ends[results.reference]
        for name, found in ends.items():
            if not found:
                continue
            pairs = [seed for seed in sorted(found) if seed in against] if name != results.reference else []
            lines.append(
                MeasureLine(
                    measure,
                    name,
                    mean_interval([before for before, _ in found.values()]),
                    mean_interval([after for _, after in found.values()]),
                    mean_interval([after - before for before, after in found.values()]),
                    mean_interval([found[seed][1] - against[seed][1] for seed in pairs]),
                )
            )
    return lines


class NoiseLine(NamedTuple):
    """The gradient noise of a variant, in tasks."""

    variant: str
    iterations: int  #: that were measured, all seeds together
    scale: float | None  #: None where no signal was found
    low: float  #: 95 % interval; infinity where there is no end
    high: float


def noise_lines(results: Results) -> list[NoiseLine]:
    """Gradient noise of the variants that have enough iterations for an interval, in the order of the plan."""
    lines = []
    for name in results.labels:
        rows: list[dict[str, float]] = []
        for outcome in _finished(results.outcomes):
            if outcome.variant == name:
                signals, traces = (dict(outcome.series.get(metric, ())) for metric in (SIGNAL, TRACE))
                rows += [{SIGNAL: signals[n], TRACE: traces[n]} for n in sorted(signals.keys() & traces.keys())]
        ends = noise_interval(rows)
        if ends is not None:
            lines.append(NoiseLine(name, len(rows), noise_scale(rows), *ends))
    return lines


def measures_csv(results: Results) -> str:
    """Return every value: variant, seed, iteration, measure, value."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("variant", "seed", "iteration", "measure", "value"))
    for outcome in _finished(results.outcomes):
        for measure in MEASURES:
            for iteration, value in outcome.series.get(measure, ()):
                writer.writerow((outcome.variant, outcome.seed, iteration, measure, f"{value:.6g}"))
    return out.getvalue()


def draw_measures(results: Results) -> Figure | None:
    """One panel a measure: means over seeds with bands of one standard error; None where no run has any."""
    from matplotlib.ticker import FuncFormatter

    shown = [name for name in MEASURES if any(outcome.series.get(name) for outcome in _finished(results.outcomes))]
    if not shown:
        return None
    rows = math.ceil(len(shown) / _COLUMNS)
    figure, panels = style.new_grid(rows, min(_COLUMNS, len(shown)))
    others = [name for name in results.labels if name != results.reference]
    colours = {name: style.SERIES[place % len(style.SERIES)] for place, name in enumerate(others)}
    colours[results.reference] = style.INK
    drawn: dict[str, tuple[str, str]] = {}
    for measure, axes in zip(shown, panels, strict=False):
        for name in results.labels:
            runs = [dict(item.series.get(measure, ())) for item in _finished(results.outcomes) if item.variant == name]
            places = sorted({place for run in runs for place in run})
            if not places:
                continue
            columns = [[run[place] for run in runs if place in run] for place in places]
            means = style.smooth([sum(values) / len(values) for values in columns])
            errors = style.smooth([standard_error(values) for values in columns])
            low, high = zip(*[(mean - e, mean + e) for mean, e in zip(means, errors, strict=True)], strict=True)
            axes.fill_between(places, low, high, color=colours[name], alpha=0.13, linewidth=0)
            marker = "o" if len(places) == 1 else None
            axes.plot(places, means, color=colours[name], linewidth=2.0, marker=marker)
            drawn[name] = (results.labels[name], colours[name])
        style.dress(axes, MEASURES[measure].capitalize(), measure)
        # Of small values matplotlib writes the power of ten above the panel, over the subtitle.
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _place: f"{value:.3g}"))
    for axes in panels[len(shown) :]:
        axes.set_visible(False)
    style.figure_legend(figure, list(drawn.values()), "mean over seeds, smoothed; bands: one standard error")
    return figure


def _ends(outcomes: Sequence[Outcome], variant: str, measure: str) -> Mapping[int, tuple[float, float]]:
    """By seed: means over the first and the last quarter of the points."""
    found = {}
    for outcome in _finished(outcomes):
        values = [value for _, value in outcome.series.get(measure, ())]
        if outcome.variant == variant and values:
            size = max(1, len(values) // 4)
            found[outcome.seed] = (sum(values[:size]) / size, sum(values[-size:]) / size)
    return found


def _finished(outcomes: Sequence[Outcome]) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.finished]
