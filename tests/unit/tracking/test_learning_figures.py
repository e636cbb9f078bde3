"""Mismatch, signal and behaviour: what the panels hold."""

from __future__ import annotations

import itertools

import pytest

from roleagent.tracking import style
from roleagent.tracking.figures import draw_figures
from roleagent.tracking.learning_figures import draw_behaviour, draw_mismatch, draw_signal, noise_scales


def test_the_noise_scale_is_a_ratio_of_trailing_means() -> None:
    pairs = [(1, 4.0, 2.0), (2, 6.0, -3.0), (3, 2.0, 5.0)]
    rows = [{"iteration": n, "gradient_noise/trace": s, "gradient_noise/signal": g} for n, s, g in pairs]
    # After two iterations the mean signal is negative: there is no scale yet. After three it is 12 / 4.
    assert noise_scales(rows) == ([1.0, 3.0], [2.0, 3.0])
    # Only the last ten count in a short run: the eleventh leaves the first one out.
    later = [{"iteration": n, "gradient_noise/trace": 1.0, "gradient_noise/signal": 1.0} for n in range(2, 12)]
    first = {"iteration": 1, "gradient_noise/trace": 100.0, "gradient_noise/signal": 1.0}
    assert noise_scales([first, *later])[1][-1] == 1.0


def test_noise_without_a_signal_is_told() -> None:
    rows = [{"iteration": n, "gradient_noise/trace": 1.0, "gradient_noise/signal": -0.5} for n in (1, 2, 3)]
    figure = draw_signal(rows)
    assert figure is not None
    (panel,) = figure.axes
    assert not panel.lines
    assert "no signal found: the noise outweighs it" in [text.get_text() for text in panel.texts]


def test_a_label_that_was_moved_leads_back_to_its_line() -> None:
    figure, (axes,) = style.new_figure()
    axes.set(xlim=(0, 5), ylim=(0, 1))
    style.end_labels(axes, [5.0] * 3, [0.5, 0.5, 0.9], ["a", "b", "c"], ["k"] * 3)
    figure.canvas.draw()
    leads = {text.get_text(): text.arrow_patch is not None for text in axes.texts}
    assert leads == {"a": False, "b": True, "c": False}
    assert {text.xy for text in axes.texts} == {(5.0, 0.5), (5.0, 0.9)}
    heights = sorted(text.xyann[1] for text in axes.texts)
    assert min(two - one for one, two in itertools.pairwise(heights)) >= 0.06


def test_per_cents_of_an_axis_are_whole() -> None:
    figure, (axes,) = style.new_figure(height=4.4, width=5)
    style.percent(axes, 0.46, 0.66)  # matplotlib's own choice has steps of 2.5 here
    figure.canvas.draw()
    ticks = [100 * value for value in axes.get_yticks()]
    assert all(abs(value - round(value)) < 1e-6 for value in ticks)


def test_the_mismatch_over_the_iterations_is_shown_as_it_was_measured() -> None:
    rows = [
        {"iteration": n, "mismatch/logprob_gap_mean": 1e-3 * n, "mismatch/ratio_mean": 1.0, "mismatch/ratio_max": 1.5}
        for n in (1, 2, 3)
    ]
    figure = draw_mismatch(rows)
    assert figure is not None
    gap, ratio = figure.axes  # nothing was capped: no panel
    assert gap.get_yscale() == "log"
    assert list(gap.lines[0].get_ydata()) == pytest.approx([1e-3, 2e-3, 3e-3])
    assert [text.get_text() for text in ratio.texts[1:]] == ["mean", "max"]


def test_the_most_frequent_actions_are_shown() -> None:
    row = {"iteration": 1.0, "rollout/no_op_share": 0.1}
    row |= {f"match/action/v{k:02d}": 0.5 for k in range(14)} | {f"action_share/v{k:02d}": k / 100 for k in range(14)}
    figure = draw_behaviour([row])
    assert figure is not None
    shown = {text.get_text() for text in figure.axes[-1].texts}
    assert {f"v{k:02d}" for k in range(2, 14)} <= shown
    assert not {"v00", "v01"} & shown


def test_figures_without_their_numbers_are_left_out() -> None:
    rows = [{"iteration": 1, "success/train": 0.5}]
    assert draw_mismatch(rows) is draw_signal(rows) is draw_behaviour(rows) is None
    assert "signal" in draw_figures([{"iteration": 1, "groups/silent": 0.5}])
