"""Measures beside success: quarters, changes and paired differences by hand."""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Sequence

import pytest

from roleagent.ablation.curves import Point
from roleagent.ablation.measures import draw_measures, measure_lines, measures_csv, noise_lines
from roleagent.ablation.plan import Request, make_plan
from roleagent.ablation.report import MEASURES_FIGURE, render_report, write_report
from roleagent.ablation.results import Outcome, Results, make_results
from roleagent.learning.gradient_noise import SIGNAL, TRACE
from roleagent.tracking.history import MEASURES

CURVE = (Point(0, 0.0, 0.0, 0.4, 10), Point(8, 64.0, 60.0, 0.5, 10))


def outcome(variant: str, seed: int, values: Sequence[float], measure: str = "rollout/no_op_share") -> Outcome:
    series = {measure: [(n + 1, value) for n, value in enumerate(values)]}
    return Outcome(f"a-{variant}-s{seed}", variant, seed, "finished", "", CURVE, series=series)


@pytest.fixture
def results() -> Results:
    """Eight iterations: quarters are two. The additive variant grows idle, more than the full one."""
    outcomes = [
        outcome("full", 0, [0.1, 0.3, 0, 0, 0, 0, 0.2, 0.2]),
        outcome("full", 1, [0.2, 0.2, 0, 0, 0, 0, 0.4, 0.4]),
        outcome("additive", 0, [0.2, 0.2, 0, 0, 0, 0, 0.5, 0.7]),
        outcome("additive", 1, [0.2, 0.2, 0, 0, 0, 0, 0.8, 0.8]),
        Outcome("a-no-wia-s0", "no-wia", 0, "failed", "broke"),
    ]
    labels = {"full": "full method", "additive": "additive", "no-wia": "without"}
    return make_results("a", "full", labels, outcomes)


def test_quarters_change_and_difference_by_hand(results: Results) -> None:
    full, additive = measure_lines(results)
    assert (full.variant, additive.variant) == ("full", "additive")
    assert (full.before.mean, full.after.mean, full.difference.n) == (pytest.approx(0.2), pytest.approx(0.3), 0)
    assert (additive.before.mean, additive.after.mean) == (pytest.approx(0.2), pytest.approx(0.7))
    assert additive.change.mean == pytest.approx(0.5)  # 0.4 and 0.6
    assert additive.difference.mean == pytest.approx(0.4)  # 0.6 - 0.2 and 0.8 - 0.4: no spread
    assert (additive.difference.low, additive.difference.high) == (pytest.approx(0.4), pytest.approx(0.4))


def test_every_value_is_in_the_csv(results: Results) -> None:
    rows = list(csv.DictReader(io.StringIO(measures_csv(results))))
    assert len(rows) == 4 * 8
    assert rows[-1] == {
        "variant": "additive",
        "seed": "1",
        "iteration": "8",
        "measure": "rollout/no_op_share",
        "value": "0.8",
    }


def test_the_figure_has_a_line_a_variant_and_names_them(results: Results) -> None:
    figure = draw_measures(results)
    assert figure is not None
    (axes,) = [panel for panel in figure.axes if panel.get_visible()]
    assert axes.get_title(loc="left") == "No-op steps"
    assert list(axes.lines[0].get_ydata())[-1] == pytest.approx(0.3)  # means 0.3 and 0.3
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["full method", "additive"]


def test_no_panels_title_reaches_into_the_next_and_small_values_are_written_out() -> None:
    series = {name: [(n + 1, n * 1e-5) for n in range(4)] for name in MEASURES}
    outcomes = [Outcome(f"a-full-s{seed}", "full", seed, "finished", "", CURVE, series=series) for seed in range(2)]
    figure = draw_measures(make_results("a", "full", {"full": "full method"}, outcomes))
    assert figure is not None
    figure.canvas.draw()
    panels = [panel for panel in figure.axes if panel.get_visible()]
    assert len(panels) == len(MEASURES)
    boxes = [panel._left_title.get_window_extent() for panel in panels]
    for place, (one, two) in enumerate(itertools.pairwise(boxes)):
        assert place % 3 == 2 or one.x1 < two.x0, panels[place].get_title(loc="left")
    assert all(box.x1 < figure.bbox.x1 for box in boxes)
    assert {panel.yaxis.get_offset_text().get_text() for panel in panels} == {""}


def test_the_report_shows_them(results: Results) -> None:
    plan = make_plan(Request("smoke", ("full,additive,no-wia",), 2))
    folder = write_report(plan, results, [])
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert "| no-op steps | additive | 2 | 0.2 | 0.7 | 0.5 |" in text
    assert (folder / MEASURES_FIGURE).read_bytes().startswith(b"\x89PNG")
    assert (folder / "measures.csv").is_file()


def test_runs_without_measures_have_no_figure_and_no_table() -> None:
    nothing = make_results("a", "full", {"full": "full"}, [Outcome("a-full-s0", "full", 0, "finished", "", CURVE)])
    assert measure_lines(nothing) == []
    assert draw_measures(nothing) is None


def test_gradient_noise_is_taken_over_all_seeds_at_once() -> None:
    def measured(variant: str, seed: int, signals: Sequence[float], trace: float) -> Outcome:
        series = {
            SIGNAL: [(n + 1, value) for n, value in enumerate(signals)],
            TRACE: [(n + 1, trace) for n in range(len(signals))],
        }
        return Outcome(f"a-{variant}-s{seed}", variant, seed, "finished", "", CURVE, series=series)

    outcomes = [
        *(measured("full", seed, [2.0] * 6, trace) for seed, trace in enumerate((10.0, 30.0))),
        *(measured("gigpo", seed, [-1.0, 0.5] * 3, 20.0) for seed in range(2)),
        measured("grpo", 0, [1.0] * 6, 20.0),  # too few iterations
    ]
    results = make_results("a", "full", {"full": "full method", "gigpo": "GiGPO", "grpo": "GRPO"}, outcomes)
    full, gigpo = noise_lines(results)
    assert full[:3] == ("full", 12, 10.0)  # 20 over 2
    assert 5.0 <= full.low < 10.0 < full.high <= 15.0
    assert gigpo.scale is None
    assert gigpo.high == math.inf
    text = render_report(make_plan(Request("smoke", ("full,gigpo,grpo",), 2)), results, [])
    assert "| full method | 12 | 10 |" in text
    assert "| GiGPO | 12 | no signal found |" in text
    assert "| unbounded |" in text
