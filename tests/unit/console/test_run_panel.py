"""What a run did, on one screen: numbers by hand, narrow terminals, ASCII, untrusted names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roleagent.console.run_panel import Bar, Curve, finished_panel, rate_text, run_panel, short_path, sparks
from tests.support.screens import Draw

SUMMARY: dict[str, Any] = {
    "run_id": "quickstart-20260101-000000-abcd",
    "status": "finished",
    "seconds": 612.0,
    "seed": 1,
    "iterations": 60,
    "iterations_planned": 60,
    "heldout_before": {"success": 0.52, "low": 0.46, "high": 0.58, "n": 256},
    "heldout_after": {"success": 0.719, "low": 0.66, "high": 0.77, "n": 256},
    "train_success": [0.25, 0.5, 0.75],
    "train_success_by_source": {"uniform": [0.25, 0.75, 1.0], "relevance": [None, 0.25, 0.5]},
    "prediction_match": [0.5, None, 0.6],
    "heldout_match": {"0": 0.514, "60": 0.736},
    "failure_types": {"searches the wrong place": 30, "loops": 10},
    "bank_size": [20, 1040],
    "curriculum_share": 0.384,
    "phase_share": {"rollout": 0.6, "update": 0.3, "scoring": 0.001, "orchestration": 0.099},
    "peak_rss_mb": 1294.2,
    "checkpoint": "/store/runs/x/iterations/60/checkpoint",
    "report": "/reports/x/report.md",
    "mlflow_run": "b331",
    "mlflow_uri": "sqlite:////home/mlflow.db",
    "mlflow_url": "",
}


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([0, 7], "▁█"),
        ([0, 1, 2, 3, 4, 5, 6, 7], "▁▂▃▄▅▆▇█"),
        ([3.5], "▄"),
        ([2, 2, 2], "▄▄▄"),
        ([0.0] * 24 + [1.0] * 24, "▁" * 12 + "█" * 12),  # 48 values on 24 places, pairs of equals
    ],
)
def test_sparks_by_hand(values: list[float], line: str) -> None:
    assert sparks(values) == line


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200), st.integers(1, 40))
def test_sparks_are_as_many_as_fit(values: list[float], width: int) -> None:
    assert len(sparks(values, width)) == min(width, len(values))


def test_a_curve_tells_its_ends_as_means_of_a_few(draw: Draw) -> None:
    # 20 values: ends are means of five. 1..5 -> 3, 16..20 -> 18.
    assert draw(Curve([float(n) for n in range(1, 21)], ".0f")).strip().endswith("  3 to 18")
    assert draw(Curve([], ".0f")).strip() == "none"
    assert draw(Curve([None, 0.5], ".2f"), encoding="ascii").strip() == "0.50 to 0.50"


@pytest.mark.parametrize(("share", "width", "length"), [(1.0, 80, 20), (0.5, 80, 10), (0.01, 80, 1), (0.0, 80, 0)])
def test_a_bar_is_its_share_rounded_up(draw: Draw, share: float, width: int, length: int) -> None:
    assert draw(Bar(share), width).strip() == "━" * length


def test_a_bar_shrinks_and_then_gives_way(draw: Draw) -> None:
    assert draw(Bar(1.0), 10).strip() == "━" * 10
    assert draw(Bar(1.0), 3).strip() == ""
    assert draw(Bar(1.0), 80, "ascii").strip() == "=" * 20


def test_rates() -> None:
    assert rate_text(SUMMARY["heldout_before"]) == "52.0% (46% to 58%, 256 tasks)"
    assert rate_text(None) == "not evaluated"


def test_paths_below_the_working_directory_are_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert short_path(str(tmp_path / "a" / "b")) == "a/b"
    assert short_path("/elsewhere/b") == "/elsewhere/b"
    assert short_path("s3://bucket/b") == "s3://bucket/b"


def test_the_panel_of_a_finished_run(draw: Draw) -> None:
    text = draw(finished_panel(SUMMARY), 120)
    for line in (
        "quickstart-20260101-000000-abcd  finished  seed 1",
        "52.0% (46% to 58%, 256 tasks)",
        "71.9% (66% to 77%, 256 tasks)  +19.9 points",
        "25% to 75%",
        "0.50 to 0.60",
        "1,040 in the bank, 2 types",
        "75% searches the wrong place",
        "25% loops",
        "38% of the tasks were drawn because of a diagnosis",
        "10:12 in 60 iterations: rollout 60%, update 30%, orchestration 10%",
        "1,294 MiB at most",
        "/store/runs/x/iterations/60/checkpoint",
        "roleagent play --run quickstart-20260101-000000-abcd",
        "mlflow ui --backend-store-uri sqlite:////home/mlflow.db",
    ):
        assert line in text
    assert "scoring" not in text  # under half a percent


def test_a_command_with_a_blank_in_its_address_can_be_copied(draw: Draw) -> None:
    text = draw(finished_panel({**SUMMARY, "mlflow_uri": "sqlite:////my home/mlflow.db"}), 120)
    assert "mlflow ui --backend-store-uri 'sqlite:////my home/mlflow.db'" in text


def test_what_the_curriculum_draws_does_not_hide_what_was_learned(draw: Draw) -> None:
    lines = draw(run_panel(SUMMARY)).splitlines()
    assert any("uniform draws" in line and "25% to 100%" in line for line in lines)
    assert any("held-out " in line and "0.51 before, 0.74 after" in line for line in lines)


def test_the_panel_of_a_run_that_was_interrupted_early(draw: Draw) -> None:
    early = {
        **SUMMARY,
        **{"status": "interrupted", "iterations": 0, "heldout_after": None, "train_success": [], "bank_size": []},
        **{"train_success_by_source": {"uniform": [], "relevance": []}, "heldout_match": {"0": 0.514}},
        **{"prediction_match": [], "failure_types": {}, "phase_share": {}, "seconds": 0.0, "report": ""},
    }
    text = draw(run_panel(early))
    assert "interrupted" in text
    assert "not evaluated" in text
    assert "0 in the bank, 0 types" in text
    assert "0:00 in 0 of 60 iterations" in text
    assert "points" not in text
    assert "uniform" not in text
    assert "before," not in text
    assert "report" not in text


def test_a_server_is_a_link(draw: Draw) -> None:
    page = "http://127.0.0.1:5000/#/experiments/1/runs/b331"
    text = draw(finished_panel({**SUMMARY, "mlflow_uri": "http://127.0.0.1:5000", "mlflow_url": page}))
    assert f"its MLflow page  {page}\n" in text


@pytest.mark.parametrize("width", [40, 60, 100])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_the_panel_fits_and_its_addresses_are_never_broken(draw: Draw, width: int, encoding: str) -> None:
    lines = draw(finished_panel(SUMMARY), width, encoding).splitlines()
    end = next(n for n, line in enumerate(lines) if "checkpoint" in line)
    assert all(len(line) <= width for line in lines[:end])
    assert any(line.endswith("/store/runs/x/iterations/60/checkpoint") for line in lines)


def test_markup_and_escape_sequences_of_a_model_are_shown_and_not_obeyed(draw: Draw) -> None:
    text = draw(run_panel({**SUMMARY, "failure_types": {"[red]loud[/red] \x1b]0;x\x07": 1}}))
    assert "[red]loud[/red]" in text
    assert "\x1b" not in text
