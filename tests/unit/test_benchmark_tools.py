"""The arithmetic behind `make bench`, by hand."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from roleagent.config import load_config
from roleagent.loop import runs
from roleagent.loop.timing import Timing
from roleagent.loop.worker import drop_workers
from tests.benchmarks import __main__ as bench
from tests.benchmarks import run_cost, trl_success
from tests.benchmarks.timing import Spent, median_cpu, spent
from tests.support.committed import committed_run


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLEAGENT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(runs, "check", lambda config: None)
    drop_workers()


def test_times_add_and_subtract() -> None:
    assert Spent(3.0, 2.0) + Spent(1.0, 0.5) - Spent(0.5, 1.0) == Spent(3.5, 1.5)


def test_cpu_time_does_not_count_sleep_and_the_median_is_no_mean() -> None:
    def work(number: int) -> None:
        sum(range(2_000_000 if number == 0 else 10_000))

    slow, typical = spent(lambda: work(0)).cpu, median_cpu(5, work)
    assert 0 < typical < slow / 3


@pytest.mark.parametrize("name", bench.BENCHMARKS)
def test_every_benchmark_has_its_numbers_documented(name: str) -> None:
    assert callable(importlib.import_module(f"tests.benchmarks.{name}").numbers)


def test_an_unknown_benchmark_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["nope"]) == 2
    assert "error: no benchmark nope; there are startup" in capsys.readouterr().err


def test_costs_of_a_run_by_hand() -> None:
    # Iteration 1 loads libraries and is left out. Iteration 2: 10 s with 6 of rollout, 1 of validation, 0.5 of storage,
    # 0.5 of publishing: 2 are left for Prefect. Iteration 3: 20 s with 15, 2, 1, 1: 1 is left.
    rows = [
        {},
        {"seconds/rollout": 90.0},
        {"seconds/rollout": 6.0, "seconds/validation": 1.0, "seconds/storage": 0.5},
        {"seconds/rollout": 15.0, "seconds/validation": 2.0, "seconds/storage": 1.0},
    ]
    walls = [Timing(1.0), Timing(100.0), Timing(10.0, publishing=0.5), Timing(20.0, publishing=1.0)]
    found = run_cost.costs(committed_run(rows, walls))
    assert found == pytest.approx(
        {
            "orchestration_seconds": 4.5,  # medians of 4 and 5
            "orchestration_share": 0.325,  # of 0.4 and 0.25
            "prefect_seconds": 1.5,
            "validation_seconds": 1.5,
            "storage_seconds": 0.75,
            "publishing_seconds": 0.75,
        }
    )


def test_the_share_without_a_quickstart_run_is_of_a_quickstart_iteration() -> None:
    found = {
        **{"from_quickstart_run": 0.0, "orchestration_seconds": 0.5, "orchestration_share": 0.3},
        **{"prefect_seconds": 0.2, "iteration_seconds": 9.8},
    }
    assert bench.derived(found) == {"orchestration_share": 0.05}
    assert bench.derived({**found, "from_quickstart_run": 1.0}) == {}
    assert bench.derived({"orchestration_seconds": 1.0}) == {}


def test_only_a_whole_finished_quickstart_run_is_taken() -> None:
    assert run_cost.latest_quickstart() is None
    for name, preset, changes, status in (
        ("whole", "quickstart", ["seed=7"], "finished"),
        ("short", "quickstart", ["iterations=2"], "finished"),
        ("smoke", "smoke", [], "finished"),
        ("stopped", "quickstart", [], "failed"),
    ):
        handle = runs.open_run(load_config(preset, changes), name)
        runs.write_status(handle.worker(), status)
    (runs.home.home() / "store" / "runs" / "smoke" / "config.json").write_text("{", encoding="utf-8")
    drop_workers()
    found = run_cost.latest_quickstart()
    assert found is not None
    assert found.run_id == "whole"


NAMES = """
    aiw_added_cpu_share aiw_added_share bank_add_ms bank_embed_ms bank_query_ms clone_mb
    decode_transformers_us_a_token decode_us_a_token from_quickstart_run generation_tokens_per_cpu_second
    generation_tokens_per_second help_seconds household_reset_us household_step_us iteration_cpu_seconds
    iteration_seconds orchestration_seconds orchestration_share peak_rss_mb prefect_seconds publishing_seconds
    reshape_ms rollout_environment_us_a_call rollout_loop_us_a_token rollout_share scoring_cpu_share
    scoring_share storage_seconds update_plain_tokens_per_cpu_second update_share update_tokens_per_cpu_second
    update_tokens_per_second update_with_reference_tokens_per_cpu_second validation_seconds
"""


def test_the_page_explains_every_number() -> None:
    page = (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert not [name for name in NAMES.split() if f"`{name}`" not in page]


def test_what_a_long_run_found_goes_into_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trl_success, "FOLDER", tmp_path)
    assert trl_success.numbers() == {}
    for name, cpu in (("ours", 30.0), ("theirs", 120.0)):
        trl_success.write_rows(tmp_path / f"{name}.json", [{"iteration": 2.0, "cpu": cpu, "success": 0.7}])
    assert trl_success.numbers()["trl_time_to_success_ratio"] == 0.25


def test_time_to_success_by_hand() -> None:
    def rows(*pairs: tuple[float, float]) -> list[dict[str, float]]:
        return [{"iteration": float(n), "cpu": cpu, "success": success} for n, (cpu, success) in enumerate(pairs)]

    ours = rows((0, 0.5), (20, 0.6), (40, 0.7), (60, 0.65))
    both = trl_success.report(ours, rows((0, 0.5), (80, 0.71), (160, 0.9)), 0.7)
    assert (both["success_cpu_seconds"], both["trl_success_cpu_seconds"]) == (40, 80)
    assert both["trl_time_to_success_ratio"] == 0.5
    unfinished = trl_success.report(ours, rows((0, 0.5), (100, 0.6)), 0.7)
    assert "trl_time_to_success_ratio" not in unfinished
    assert unfinished["trl_time_to_success_ratio_at_most"] == 0.4
    assert trl_success.report(rows((0, 0.5)), [], 0.7) == {"trl_success_target": 0.7}
