"""The summary of a run in whatever state, and the shares of its time, computed by hand."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roleagent.errors import StorageError
from roleagent.loop import home, publishing, runs
from roleagent.loop.publishing import failure_counts
from roleagent.loop.timing import Timing, phase_shares
from roleagent.loop.worker import Worker, drop_workers
from tests.support.committed import MakeRun

EVALUATED = {"heldout/n": 8.0, "heldout/low": 0.1, "heldout/high": 0.6}
ROWS = [
    {"success/heldout": 0.25, **EVALUATED, "seconds/loading": 1.0, "seconds/storage": 1.0, "seconds/evaluation": 6.0},
    {
        "success/train": 0.5,
        "match/mean": 0.4,
        "bank/size": 3.0,
        "curriculum/drawn_by_relevance": 0.0,
        "memory/peak_mb": 900.0,
        "seconds/rollout": 4.0,
        "seconds/update": 3.0,
        "seconds/diagnosis": 3.5,
        "seconds/diagnosis_validation": 0.2,
        "seconds/reshaping": 0.3,
    },
    {
        "success/train": 0.75,
        "match/mean": 0.6,
        "bank/size": 5.0,
        "curriculum/drawn_by_relevance": 0.5,
        "success/heldout": 0.5,
        **EVALUATED,
        "seconds/rollout": 3.0,
        "seconds/update": 2.0,
        "seconds/diagnosis": 1.0,
        "seconds/reshaping": 0.5,
        "seconds/evaluation": 2.0,
    },
]
WALLS = [Timing(10.0, publishing=1.0), Timing(10.0, publishing=0.5, waiting=1.0), Timing(10.0, publishing=0.5)]
KEYS = {
    *("run_id", "status", "seconds", "seed", "iterations", "iterations_planned", "heldout_before", "heldout_after"),
    *("train_success_by_source", "heldout_match"),
    *("heldout", "train_success", "prediction_match", "failure_types", "bank_size", "curriculum_share", "phase_share"),
    *("cost_table", "gradient_noise_scale", "gradient_noise_interval", "measures"),
    *("beside_update_share", "peak_rss_mb", "checkpoint", "mlflow_run", "mlflow_uri", "mlflow_url", "report"),
}


def test_phase_shares_by_hand() -> None:
    # 20 s of wall: rollout 7, update 5, waiting 1 of a branch of 4.3, publishing 1; the other 6 are orchestration.
    seconds = [
        {"rollout": 4.0, "update": 3.0, "diagnosis": 2.0, "diagnosis_validation": 0.2, "reshaping": 0.3},
        {"rollout": 3.0, "update": 2.0, "diagnosis": 1.5, "reshaping": 0.3},
    ]
    share, beside = phase_shares(seconds, [Timing(12.0, 0.5, 1.0), Timing(8.0, 0.5, 0.0)])
    assert share == pytest.approx(
        {"rollout": 0.35, "update": 0.25, "diagnosis": 0.05, "publishing": 0.05, "orchestration": 0.3}
    )
    assert beside == pytest.approx({"diagnosis": 0.175, "diagnosis_validation": 0.01, "reshaping": 0.03})


def test_no_time_has_no_shares() -> None:
    assert phase_shares([], []) == ({}, {})


phase = st.sampled_from(["rollout", "update", "diagnosis", "reshaping", "evaluation", "storage"])


@given(st.lists(st.dictionaries(phase, st.floats(0, 100)), min_size=1, max_size=5), st.floats(0, 5), st.floats(0.1, 50))
def test_shares_add_up_to_one(seconds: list[dict[str, float]], waiting: float, rest: float) -> None:
    hidden = ("diagnosis", "reshaping")
    walls = [
        Timing(sum(value for name, value in item.items() if name not in hidden) + waiting + rest, 0.0, waiting)
        for item in seconds
    ]
    share, _ = phase_shares(seconds, walls)
    assert sum(share.values()) == pytest.approx(1.0)
    assert all(value >= 0 for value in share.values())


def test_failure_counts_are_ordered_by_number_then_name() -> None:
    rows = [{"failure_types": {"b": 1, "a": 1}}, {"failure_types": {"c": 5, "b": 2}}, {"failure_types": {"a": 2}}]
    assert list(failure_counts(rows).items()) == [("c", 5), ("a", 3), ("b", 3)]


def summary_of(worker: Worker) -> dict[str, object]:
    drop_workers()
    return publishing.load_summary(runs.find_run(worker.run_id).worker())


def test_summary_of_a_finished_run(make_run: MakeRun) -> None:
    worker = make_run(ROWS, WALLS, [{}, {"loops": 2}, {"loops": 1, "lost": 4}])
    runs.write_status(worker, "finished")
    summary = summary_of(worker)
    assert set(summary) == KEYS
    assert summary["status"] == "finished"
    assert (summary["seed"], summary["iterations"], summary["iterations_planned"]) == (3, 2, 3)
    assert summary["seconds"] == pytest.approx(30.0)
    assert summary["heldout_before"] == {"success": 0.25, "low": 0.1, "high": 0.6, "n": 8}
    assert summary["heldout_after"] == {"success": 0.5, "low": 0.1, "high": 0.6, "n": 8}
    assert summary["failure_types"] == {"lost": 4, "loops": 3}
    assert summary["bank_size"] == [3.0, 5.0]
    assert summary["train_success"] == [0.5, 0.75]
    assert summary["curriculum_share"] == pytest.approx(0.25)
    assert summary["peak_rss_mb"] == 900.0
    assert str(summary["checkpoint"]).endswith("store/runs/a-run/iterations/2/checkpoint")
    share = summary["phase_share"]
    assert isinstance(share, dict)
    assert sum(share.values()) == pytest.approx(1.0)
    # 30 s: 1 + 1 + 6, then 4 + 3 + 1 waited, then 3 + 2 + 2, and 2 of publishing: 5 are left.
    assert share["orchestration"] == pytest.approx(5 / 30)
    assert share["diagnosis"] == pytest.approx(1 / 30)
    assert summary["beside_update_share"] == pytest.approx(
        {"diagnosis": 4.5 / 30, "diagnosis_validation": 0.2 / 30, "reshaping": 0.8 / 30}
    )
    json.dumps(summary)  # all of it can be written as JSON


def test_summary_of_a_run_that_has_not_committed_yet(make_run: MakeRun) -> None:
    summary = summary_of(make_run())
    assert set(summary) == KEYS
    assert summary["status"] == "new"
    assert (summary["heldout_before"], summary["heldout_after"], summary["checkpoint"]) == (None, None, "")
    assert (summary["seconds"], summary["phase_share"], summary["peak_rss_mb"]) == (0, {}, 0.0)


def test_summary_of_a_run_that_is_evaluated_only_before(make_run: MakeRun) -> None:
    summary = summary_of(make_run(ROWS[:2], WALLS[:2]))
    assert summary["heldout_before"] == {"success": 0.25, "low": 0.1, "high": 0.6, "n": 8}
    assert summary["heldout_after"] is None


@pytest.mark.parametrize(
    "damaged",
    [
        b'{"wall"',
        b"[" * 100_000,
        b'{"wall": "long"}',
        b'{"wall": NaN}',
        b'{"wall": 1e999}',
        b'{"wall": -5}',
        b'{"wall": 1, "waiting": null}',
    ],
)
def test_iterations_without_timing_count_neither_in_time_nor_in_shares(make_run: MakeRun, damaged: bytes) -> None:
    # A crash between the commit and the note of its time, and a note that was damaged later.
    worker = make_run(ROWS, [WALLS[0], None, WALLS[2]])
    worker.store.write(worker.run_id, "timing/000002.json", damaged)
    summary = summary_of(worker)
    assert summary["seconds"] == pytest.approx(10.0)
    assert summary["phase_share"] == pytest.approx(
        {"loading": 0.1, "storage": 0.1, "evaluation": 0.6, "diagnosis": 0, "publishing": 0.1, "orchestration": 0.1}
    )


@pytest.mark.parametrize(
    "stored", [b"", b"{", b"[]", b"[" * 100_000, b"null", b'{"peak_rss_mb": "much"}', b'{"status": "failed"}']
)
def test_a_damaged_or_foreign_summary_does_no_harm(make_run: MakeRun, stored: bytes) -> None:
    worker = make_run(ROWS, WALLS)
    runs.write_status(worker, "finished")
    worker.store.write(worker.run_id, publishing.SUMMARY, stored)
    summary = summary_of(worker)
    assert set(summary) == KEYS
    assert (summary["status"], summary["iterations"], summary["peak_rss_mb"]) == ("finished", 2, 900.0)


def test_the_memory_of_the_last_moments_is_taken_from_the_stored_summary(make_run: MakeRun) -> None:
    worker = make_run(ROWS, WALLS)
    worker.store.write(worker.run_id, publishing.SUMMARY, b'{"peak_rss_mb": 1234.5}')
    assert summary_of(worker)["peak_rss_mb"] == 1234.5


def test_a_damaged_commit_is_told_and_not_summarised(make_run: MakeRun) -> None:
    worker = make_run(ROWS, WALLS)
    worker.store.store.put(f"runs/{worker.run_id}/iterations/1/metrics.json", b"{}")
    with pytest.raises(StorageError, match=r"is not what was committed"):
        summary_of(worker)


def test_overview_reads_the_first_the_last_and_the_newest_evaluated(make_run: MakeRun) -> None:
    worker = make_run([ROWS[0], ROWS[2], ROWS[1]])
    found = publishing.overview(worker)
    assert (found["status"], found["iterations"], found["iterations_planned"]) == ("new", 2, 3)
    assert found["heldout_before"].success == 0.25
    assert found["heldout_after"].success == 0.5
    assert found["bank_size"] == 3.0


def test_overview_of_a_run_without_commits(make_run: MakeRun) -> None:
    found = publishing.overview(make_run())
    assert (found["heldout_before"], found["heldout_after"], found["bank_size"]) == (None, None, 0.0)


def test_best_iteration_is_the_later_of_equals(make_run: MakeRun) -> None:
    worker = make_run([{"success/heldout": value, **EVALUATED} for value in (0.5, 0.75, 0.75, 0.25)])
    publishing.history(worker)
    assert publishing.best_iteration(worker) == 2


def test_best_iteration_without_evaluation(make_run: MakeRun) -> None:
    worker = make_run([{}, {}])
    publishing.history(worker)
    assert publishing.best_iteration(worker) is None


def test_tables_of_a_run(make_run: MakeRun) -> None:
    first = {"success/heldout": 0.25, "success/heldout/pick": 0.5, **EVALUATED}
    last = {"success/heldout": 0.5, "success/heldout/pick": 0.75, "success/heldout/heat": 0.25, **EVALUATED}
    worker = make_run([first, last])
    found = {key: rows for key, _, rows in publishing.tables(worker, {"failure_types": {"loops": 3, "lost": 1}})}
    assert found["success"] == [
        {"task type": "heat", "before": "not played", "after": "25.0%", "change": ""},
        {"task type": "pick", "before": "50.0%", "after": "75.0%", "change": "+25.0 points"},
        {"task type": "all 8 tasks", "before": "25.0%", "after": "50.0%", "change": "+25.0 points"},
    ]
    assert found["failures"] == [
        {"failure type": "loops", "failures": 3, "share": "75%"},
        {"failure type": "lost", "failures": 1, "share": "25%"},
    ]
    assert publishing.tables(make_run([{}], run_id="other"), {"failure_types": {}}) == []


def test_rare_failure_types_are_one_row(make_run: MakeRun) -> None:
    types = {f"type {n}": 20 - n for n in range(15)}
    ((_, _, rows),) = publishing.tables(make_run([{}]), {"failure_types": types})
    assert len(rows) == 13
    assert rows[-1] == {"failure type": "3 more", "failures": 8 + 7 + 6, "share": "11%"}  # of 195
    assert sum(row["failures"] for row in rows) == sum(types.values())


def test_figures_of_a_report_elsewhere(make_run: MakeRun) -> None:
    worker = make_run([{}])
    folder = home.reports_folder(worker.run_id)
    folder.mkdir(parents=True)
    (folder / "report.md").write_text("# Run\n\n![Success](figures/success.png)\n\n- `x](figures`\n", encoding="utf-8")
    assert publishing.report_text(worker) == f"# Run\n\n- Success: `{folder}/figures/success.png`\n\n- `x](figures`\n"
    place = {"mlflow_run": "abc", "mlflow_uri": "http://h:1", "mlflow_url": "http://h:1/#/experiments/1/runs/abc"}
    worker.store.write(worker.run_id, runs.TRACKING, json.dumps(place).encode())
    shown = "![Success](http://h:1/get-artifact?run_uuid=abc&path=figures/success.png)"
    assert shown in publishing.report_text(worker).splitlines()
