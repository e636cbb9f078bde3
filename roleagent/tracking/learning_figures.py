"""Figures of how a run learns: training-inference mismatch, what the batches can teach, how the policy behaves.

See `roleagent.tracking.figures`, which draws them among the others. A panel without numbers is left out, a figure
without panels is not drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from roleagent.tracking import style
from roleagent.tracking.history import History, column, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WINDOW = 10  # iterations over which the noise scale's numerator and denominator are averaged, at least
_VERBS_SHOWN = 12


class _Panel(NamedTuple):
    title: str
    subtitle: str
    series: Sequence[tuple[str, str]]  # key of the metric, label
    percent: bool = False
    log: bool = False


_MISMATCH = (
    _Panel(
        "Log-prob gap",
        "mean |log trainer - log sampler|, nats",
        (("mismatch/logprob_gap_mean", "gap"),),
        log=True,
    ),
    _Panel(
        "Probability ratio",
        "trainer / sampler; 1 is no mismatch",
        (("mismatch/ratio_mean", "mean"), ("mismatch/ratio_max", "max")),
    ),
    _Panel("Capped tokens", "ratio above the importance cap", (("mismatch/capped_share", "capped"),), percent=True),
)
_SIGNAL = (
    _Panel(
        "Groups that teach nothing",
        "share of the tasks of a batch",
        (
            ("groups/degenerate", "equal rewards"),
            ("groups/equal_advantages", "equal advantages"),
            ("groups/silent", "zero gradient"),
        ),
        percent=True,
    ),
    _Panel(
        "State groups",
        "share of the groups with one step, and of steps that share",
        (("state_groups/single_share", "size 1"), ("state_groups/shared_share", "steps shared")),
        percent=True,
    ),
)
_BEHAVIOUR = (
    _Panel(
        "Steps that lead nowhere",
        "share of all steps",
        (
            ("rollout/no_op_share", "no-op"),
            ("rollout/toggle_share", "toggle"),
            ("rollout/action_repeat_share", "repeat"),
        ),
        percent=True,
    ),
    _Panel(
        "Prediction reward of no-ops",
        "their share of it; above their share of steps they pay",
        (
            ("match/no_op_mass", "of all matches"),
            ("bonus/no_op_mass", "of what is paid"),
            ("rollout/no_op_share", "of steps"),
        ),
        percent=True,
    ),
)


def draw_mismatch(history: History) -> Figure | None:
    """The training-inference gap: log-prob difference and ratio of trainer and sampler on the same tokens."""
    return _draw(history, _MISMATCH)


def draw_signal(history: History) -> Figure | None:
    """Degenerate groups, state groups of one, and the gradient noise scale as a ratio of trailing means."""
    measured = bool(column(history, "gradient_noise/trace")[0])
    places, scales = noise_scales(history)
    panels = [panel for panel in _SIGNAL if _series(history, panel)]
    if not panels and not measured:
        return None
    count = len(panels) + measured
    figure, axes = style.new_figure(count, height=3.8, width=5.0 * count)
    for panel, place in zip(panels, axes, strict=False):
        _fill(place, history, panel)
    if measured:
        _noise(axes[-1], history, places, scales)
    return figure


def _noise(axes: Axes, history: History, places: list[float], scales: list[float]) -> None:
    """The scale, in what a minibatch holds of a task, beside how many of these it holds."""
    _, batches = column(history, "gradient_noise/batch")
    style.dress(axes, "Gradient noise scale", "trailing means; dashed: as many as in a minibatch")
    if not places:
        axes.set_axis_off()
        axes.text(0, 0.9, "no signal found: the noise outweighs it", transform=axes.transAxes, color=style.MUTED)
        return
    axes.plot(places, scales, color=style.PURPLE, linewidth=2.2, marker="o" if len(places) == 1 else None)
    if batches:
        axes.axhline(batches[-1], color=style.REST, linewidth=1.4, linestyle=(0, (4, 3)))
    _log_scale(axes, scales + batches[-1:])


def noise_scales(history: History) -> tuple[list[float], list[float]]:
    """Iterations and B_simple there: mean trace over mean signal of at least the last 10 iterations, where positive.

    The mean is over the trailing half of the run where that is longer, so that the curve settles as the run goes on.
    """
    pairs = [
        (float(row["iteration"]), trace, signal)
        for row in history
        if (trace := number(row, "gradient_noise/trace")) is not None
        and (signal := number(row, "gradient_noise/signal")) is not None
    ]
    places, scales = [], []
    for end in range(1, len(pairs) + 1):
        window = pairs[max(0, end - max(_WINDOW, end // 2)) : end]
        trace, signal = sum(item[1] for item in window), sum(item[2] for item in window)
        if trace > 0 and signal > 0:
            places.append(pairs[end - 1][0])
            scales.append(trace / signal)
    return places, scales


def draw_behaviour(history: History) -> Figure | None:
    """Whether the policy makes its next state easy to foretell: idle steps, their pay, and the match by action."""
    keys = sorted({key for row in history for key in row if key.startswith("match/action/")})
    weights = {key: sum(column(history, f"action_share/{key.removeprefix('match/action/')}")[1]) for key in keys}
    shown = sorted(keys, key=lambda key: (-weights[key], key))[:_VERBS_SHOWN]
    by_action = _Panel(
        "Match by action",
        "mean match of the most frequent kinds",
        [(key, key.removeprefix("match/action/")) for key in shown],
    )
    return _draw(history, [*_BEHAVIOUR, by_action])


def _draw(history: History, panels: Sequence[_Panel]) -> Figure | None:
    panels = [panel for panel in panels if _series(history, panel)]
    if not panels:
        return None
    figure, axes = style.new_figure(len(panels), height=3.8, width=5.0 * len(panels))
    for panel, place in zip(panels, axes, strict=True):
        _fill(place, history, panel)
    return figure


def _series(history: History, panel: _Panel) -> list[tuple[str, list[float], list[float]]]:
    found = [(label, *column(history, key)) for key, label in panel.series]
    return [item for item in found if item[1]]


def _fill(axes: Axes, history: History, panel: _Panel) -> None:
    ends: list[tuple[float, float, str, str]] = []
    drawn = _series(history, panel)
    for n, (label, x, y) in enumerate(drawn):
        colour = style.SERIES[n % len(style.SERIES)]
        dashes = "solid" if n < len(style.SERIES) else (0, (3, 1.5))
        averaged = style.smooth(y)
        if len(drawn) <= 3:
            axes.plot(x, y, color=colour, linewidth=0.9, alpha=0.3)
        axes.plot(x, averaged, color=colour, linewidth=2.0, linestyle=dashes, marker="o" if len(x) == 1 else None)
        ends.append((x[-1], averaged[-1], label, colour))
    style.dress(axes, panel.title, panel.subtitle)
    values = [value for _, _, y in drawn for value in y]
    if panel.log and min(values) > 0:
        _log_scale(axes, values)
    elif panel.percent:
        style.percent(axes, 0.0, max(0.05, min(1.0, 1.1 * max(values))))
    else:
        axes.ticklabel_format(axis="y", useOffset=False)
    if len(ends) > 1:
        style.end_labels(axes, *zip(*ends, strict=True))


def _log_scale(axes: Axes, values: Sequence[float]) -> None:
    from matplotlib.ticker import LogFormatter

    axes.set_ylim(min(values) / 1.5, max(values) * 1.5)  # before the scale: equal limits have no logarithmic one
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(LogFormatter())  # plain text: formulas take a second to set
    axes.yaxis.set_minor_formatter(LogFormatter())
    axes.tick_params(which="both", colors=style.MUTED, labelsize=9, length=0)
