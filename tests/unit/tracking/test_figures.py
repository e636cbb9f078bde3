"""Figures show the numbers that they were given."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from roleagent.tracking.figures import draw_figures, shorten
from roleagent.tracking.style import smooth


def made_up_history(iterations: int) -> list[dict[str, Any]]:
    """A run with every number that the figures know."""
    rows: list[dict[str, Any]] = []
    for n in range(1, iterations + 1):
        row: dict[str, Any] = {
            "iteration": n,
            "success/train": 0.4 + 0.4 * n / iterations,
            "match/mean": 0.5,
            "match/h1": 0.6,
            "match/h2": 0.4,
            "bank/size": 3.0 * n,
            "failure_types": {f"type {k}": k + 1 for k in range(10)},
            "phase_seconds": {"rollout": 2.0, "update": 1.0},
            "curriculum/relevance_share": 0.5,
            "curriculum/entropy": 6.0,
            "curriculum/max_probability": 0.01,
            "mismatch/logprob_gap_mean": 1e-4,
            "mismatch/ratio_mean": 1.0,
            "groups/degenerate": 0.25,
            "groups/silent": 0.0,
            "gradient_noise/trace": 6.0,
            "gradient_noise/signal": 1.0 if n % 2 else 2.0,
            "gradient_noise/batch": 8.0,
            "rollout/no_op_share": 0.1,
            **{f"match/action/verb{k}": 0.05 * k for k in range(12)},
            **{f"action_share/verb{k}": 1 / 12 for k in range(12)},
        }
        if n in (1, iterations):
            row |= {"success/heldout": 0.5, "heldout/low": 0.4, "heldout/high": 0.6}
        rows.append(row)
    return rows


@pytest.mark.parametrize("iterations", [1, 2, 25])
def test_every_figure_is_drawn_as_a_picture(iterations: int) -> None:
    figures = draw_figures(made_up_history(iterations))
    assert list(figures) == [
        *("success", "match", "failure_types", "bank", "curriculum"),
        *("signal", "mismatch", "behaviour", "phases"),
    ]
    for figure in figures.values():
        picture = io.BytesIO()
        figure.savefig(picture, format="png")
        assert picture.getvalue().startswith(b"\x89PNG")


def test_figures_without_numbers_are_left_out() -> None:
    assert list(draw_figures([{"iteration": 1, "success/train": 0.5}])) == ["success"]
    assert draw_figures([{"iteration": 0}]) == {}
    assert draw_figures([]) == {}


def test_success_shows_training_heldout_and_its_interval() -> None:
    (axes,) = draw_figures(made_up_history(25))["success"].axes
    raw, averaged, heldout = axes.lines
    assert list(raw.get_ydata()) == [row["success/train"] for row in made_up_history(25)]
    assert list(heldout.get_xdata()) == [1.0, 25.0]
    assert len(averaged.get_ydata()) == 25
    band = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == (0.4, 0.6)
    assert axes.get_ylim() == (0.0, 1.0)


def test_phase_bars_stack_to_the_seconds_of_an_iteration() -> None:
    (axes,) = draw_figures(made_up_history(4))["phases"].axes
    tops = [bar.get_y() + bar.get_height() for bar in axes.patches]
    assert max(tops) == pytest.approx(3.0)
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["update  33.3%", "rollout  66.7%"]


def test_rare_failure_types_are_put_together_and_nothing_is_lost() -> None:
    (axes,) = draw_figures(made_up_history(3))["failure_types"].axes
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels[0] == "3 more  18"  # types 0, 1, 2 of sizes 1 + 2 + 3, in three iterations
    assert sum(int(label.split()[-1]) for label in labels) == 3 * sum(range(1, 11))


def test_the_engines_account_stands_beside_the_models() -> None:
    said = ({"lost": 3, "loops": 1}, {"lost": 1})
    known: tuple[dict[str, float], ...] = ({"engine_types/loops": 4.0}, {"engine_types/other": 1.0})
    compared = ((4.0, 0.25), (1.0, 0.0))
    rows = [
        {"iteration": n, "failure_types": said[n - 1], **known[n - 1]}
        | dict(zip(("diagnosis/checked", "diagnosis/type_accuracy"), compared[n - 1], strict=True))
        for n in (1, 2)
    ]
    model, engine = draw_figures(rows)["failure_types"].axes
    assert model.get_ylim() == engine.get_ylim()
    assert [text.get_text() for text in engine.get_legend().get_texts()] == [
        "other  0 / 1",
        "lost  4 / 0",
        "loops  1 / 4",
    ]
    assert [text.get_text() for text in engine.texts] == ["of the same episodes; 20% of 5 types agree"]
    alone = [{key: value for key, value in row.items() if not key.startswith("engine")} for row in rows]
    assert len(draw_figures(alone)["failure_types"].axes) == 1


def test_labels_cannot_start_formulas() -> None:
    assert shorten("a\n$\\frac$\x00 b") == "a \\frac b"
    assert len(shorten("x" * 100)) == 26
    history = [{"iteration": n, "failure_types": {"$\\badcommand{": 1}} for n in (1, 2)]
    draw_figures(history)["failure_types"].savefig(io.BytesIO(), format="png")


def test_smoothing_keeps_constants_and_means() -> None:
    assert smooth([0.3] * 20) == pytest.approx([0.3] * 20)
    assert smooth([1.0, 2.0]) == [1.0, 2.0]
    line = list(np.linspace(0, 1, 40))
    assert smooth(line)[10:30] == pytest.approx(line[10:30])  # no lag
