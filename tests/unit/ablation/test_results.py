"""Table, figure, report and panel of made-up ablations, whose numbers are known."""

from __future__ import annotations

import csv
import io
import json
import math

import pytest

from roleagent.ablation.figure import draw_ablation
from roleagent.ablation.plan import Request, make_plan
from roleagent.ablation.records import parent_metrics
from roleagent.ablation.report import FIGURE, headline, render_report, write_report
from roleagent.ablation.results import Results, table_csv
from roleagent.console.ablation import results_panel
from tests.support.screens import drawn
from tests.unit.ablation.conftest import MakeResults

#: Differences of gigpo from full: -0.1, -0.2, -0.3; of grpo, over the two seeds that it has: -0.4, -0.4.
ENDS = {"full": [0.7, 0.8, 0.9], "gigpo": [0.6, 0.6, 0.6], "grpo": [0.3, 0.4, None]}
SITTING = {
    "at": "2026-01-01T00:00:00+00:00",
    "command": "roleagent ablate",
    "parallel": 2,
    "threads": 1,
    "machine": {
        "processor": "some | processor",
        "cores": 2,
        "memory_gb": 4.0,
        "gpus": [],
        "python": "3.11",
        "packages": {"torch": "2"},
        "commit": "abc",
    },
}


@pytest.fixture
def results(make_up: MakeResults) -> Results:
    """The full method takes twice the time of the others."""
    return make_up(ENDS, seconds={"full": 120.0})


def test_the_table_has_means_paired_differences_and_corrected_p_values(results: Results) -> None:
    by_episodes = results.comparisons[0]
    assert (by_episodes.axis, by_episodes.budget) == ("episodes", 64.0)
    full, gigpo, grpo = by_episodes.lines
    assert full.success.mean == pytest.approx(0.8)
    assert (full.difference.n, full.p, full.p_holm) == (0, None, None)
    assert gigpo.difference.mean == pytest.approx(-0.2)
    # t = -0.2 / (0.1 / sqrt 3) = -2 sqrt 3 with two degrees of freedom: p = 1 - t / sqrt(2 + t^2) = 0.0741799
    assert gigpo.p == pytest.approx(1 - math.sqrt(12 / 14))
    assert gigpo.p_holm == pytest.approx(2 * (1 - math.sqrt(12 / 14)))
    # Only the seeds that both finished are paired; without spread p is 2^(1 - 2).
    assert (grpo.success.n, grpo.difference.n) == (2, 2)
    assert (grpo.p, grpo.p_holm) == (0.5, 0.5)


def test_at_equal_time_the_slower_variant_is_read_off_half_way(results: Results) -> None:
    by_time = results.comparisons[1]
    assert (by_time.axis, by_time.budget) == ("seconds", 60.0)
    assert by_time.lines[0].values == pytest.approx({0: 0.55, 1: 0.6, 2: 0.65})
    assert by_time.lines[1].values == pytest.approx({0: 0.6, 1: 0.6, 2: 0.6})


def test_csv_json_and_mlflow_hold_the_same_numbers(results: Results) -> None:
    rows = list(csv.DictReader(io.StringIO(table_csv(results))))
    assert [(row["equal"], row["variant"]) for row in rows[:3]] == [
        ("episodes", "full"),
        ("episodes", "gigpo"),
        ("episodes", "grpo"),
    ]
    value = json.loads(json.dumps(results.as_dict()))["comparisons"]["equal_episodes"]["variants"]["gigpo"]
    assert float(rows[1]["p_holm"]) == pytest.approx(value["p_holm"], abs=1e-6)
    metrics = parent_metrics(results)
    assert metrics["equal_episodes/gigpo/difference"] == value["difference"]["mean"]
    assert "equal_episodes/full/difference" not in metrics


def test_the_headline_names_what_is_significant(make_up: MakeResults, results: Results) -> None:
    assert "8 of 9 runs finished. At equal episodes no variant differs significantly" in headline(results)
    clear = make_up({"full": [0.70, 0.71, 0.72], "grpo": [0.50, 0.515, 0.52]})
    assert "these differ significantly from full method (5 % level, after Holm): GRPO (-19.8 points)" in headline(clear)
    assert "takes two seeds" in headline(make_up({"full": [0.7], "grpo": [0.5]}))


def test_the_figure_shows_means_bands_seeds_and_differences(results: Results) -> None:
    figure = draw_ablation(results)
    assert figure is not None
    episodes, seconds, differences = figure.axes
    black = [line for line in episodes.lines if list(line.get_ydata()) == pytest.approx([0.4, 0.8])]
    assert len(black) == 2  # the mean, and the seed that is equal to it
    assert [line for line in seconds.lines if max(line.get_xdata()) == pytest.approx(120.0)]
    assert [tick.get_text() for tick in differences.get_yticklabels()] == ["GRPO", "GiGPO"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["full method", "GiGPO", "GRPO"]


def test_a_run_that_was_held_up_does_not_squeeze_the_others(make_up: MakeResults) -> None:
    results = make_up({"full": [0.7, 0.8], "gigpo": [0.6, 0.6]}, seconds={"gigpo": 80.0}, delays={"full": 4000.0})
    figure = draw_ablation(results)
    assert figure is not None
    minutes = figure.axes[1].get_xlim()
    assert minutes[1] == pytest.approx(1.03 * 80 / 60)  # gigpo has all its seeds up to 80 s, full up to 60 s
    assert minutes[0] < 0


def test_a_figure_without_pairs_or_runs(make_up: MakeResults) -> None:
    alone = draw_ablation(make_up({"full": [0.5]}))
    assert alone is not None
    assert len(alone.axes) == 2
    assert draw_ablation(make_up({"full": [None]})) is None


def test_the_report_says_everything_and_is_no_victim_of_its_texts(results: Results) -> None:
    plan = make_plan(Request("smoke", ("full,gigpo,grpo",), 3, ("iterations=1",)))
    folder = write_report(plan, results, [SITTING])
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert "| GiGPO | 3 | 60.0% | 60.0% to 60.0% | -20.0 | -44.8 to +4.8 | 0.074 | 0.148 |" in text
    assert "Read off after 60 s of training" in text
    assert "- some-ablation-grpo-s2: failed: it \\| broke" in text
    assert "some \\| processor" in text
    assert "    roleagent ablate --preset smoke --variants full,gigpo,grpo --seeds 3 --set iterations=1" in text
    assert f"({FIGURE})" in text
    assert (folder / FIGURE).read_bytes().startswith(b"\x89PNG")
    assert json.loads((folder / "results.json").read_text(encoding="utf-8"))["against"] == "full"
    assert (folder / "table.csv").is_file()


def test_a_report_of_nothing(make_up: MakeResults) -> None:
    plan = make_plan(Request("smoke", ("full",), 1))
    text = render_report(plan, make_up({"full": [None]}), [], figure="")
    assert "0 of 1 runs finished" in text
    assert "No finished run" in text
    assert "![" not in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_panel_fits_the_screen(results: Results, width: int) -> None:
    more = {"failed": 1, "report": "r.md", "figure": "f.png", "mlflow_run": "id", "mlflow_uri": "sqlite:///x"}
    value = {**results.as_dict(), **more, "mlflow_url": "", "repeat": "roleagent ablate"}
    text = drawn(results_panel(value, results.labels), width=width)
    panel = [line for line in text.splitlines() if line[:1] in "╭│╰"]
    assert all(len(line) <= width for line in panel)
    assert "8 of 9 runs finished" in text
    assert "failed  some-ablation-grpo-s2  it | broke" in text
    if width >= 80:
        assert "-20.0 (-45 to +5)" in text
        assert "60.0% (60% to 60%)" in text
