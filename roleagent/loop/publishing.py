"""What follows a commit: the bank's index, MLflow, retention, and at the end summary, figures and report.

Everything here is derived from what is committed and can be repeated: a crash between a commit and its publication
loses nothing, the next start catches up.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from roleagent.json_text import read_json_text
from roleagent.learning.gradient_noise import noise_interval, noise_scale
from roleagent.loop import home
from roleagent.loop.costs import cost_table
from roleagent.loop.runs import mlflow_place, read_status
from roleagent.loop.statistics import Rate
from roleagent.loop.timing import phase_shares, timings
from roleagent.loop.worker import Stopwatch, Worker, peak_memory_mb
from roleagent.storage import MissingObjectError, prune
from roleagent.tracking.history import MEASURES

SUMMARY = "summary.json"
_TABLE_ROWS = 12


def history(worker: Worker) -> list[dict[str, Any]]:
    """Return one flat row of metrics a committed iteration, with `failure_types` and `phase_seconds` as mappings."""
    return [row(worker, n) for n in worker.store.committed(worker.run_id)]


def row(worker: Worker, n: int) -> dict[str, Any]:
    """Return the row of iteration n; kept warm, since a commit never changes."""

    def read() -> dict[str, Any]:
        record = json.loads(worker.store.read(worker.run_id, n, "metrics.json"))
        metrics: dict[str, Any] = record["metrics"]
        seconds = {key.removeprefix("seconds/"): value for key, value in metrics.items() if key.startswith("seconds/")}
        return {**metrics, "iteration": n, "failure_types": record["failure_types"], "phase_seconds": seconds}

    if n not in worker.history:
        worker.history[n] = read()
    return worker.history[n]


def publish(worker: Worker, n: int, metrics: Mapping[str, float]) -> float:
    """Index the failures of iteration n, log it to MLflow, prune checkpoints; return the seconds that it took."""
    with Stopwatch() as watch:
        _publish(worker, n)
        worker.forget(before=n)
    return watch.seconds


def republish(worker: Worker, n: int) -> None:
    """Catch up with the publication of every commit up to n: a crash may have come between.

    Numbers and failures of all commits are compared; what else is published of an iteration, only of the last one: the
    one before it was through when it began.
    """
    worker.tracker.sync(history(worker))
    if worker.config.agent_in_world.enabled:
        worker.open_bank()
    _publish(worker, n)


def _publish(worker: Worker, n: int) -> None:
    """Publish iteration n; a repeat changes nothing."""
    enabled = worker.config.agent_in_world.enabled and n > 0
    if enabled:
        worker.bank.add(worker.diagnoses(n))
        solved = worker.curriculum(n).solved
        worker.bank.mark_resolved([task_id for task_id, when in solved.items() if when == n], n)
    tracker = worker.tracker
    if n == 0:
        tracker.log_datasets({split: worker.environment.tasks(split) for split in ("train", "heldout")})
    tracker.log_iteration(n, row(worker, n))
    tracker.set_checkpoint(n, worker.store.checkpoint_uri(worker.run_id, n))
    if n > 0 and (tracker.wants_traces(n) or n == worker.config.iterations):
        diagnoses = worker.diagnoses(n) if enabled else []
        tracker.log_traces(worker.trajectories(n), {diagnosis.trajectory_id: diagnosis for diagnosis in diagnoses})
    prune(worker.store.store, worker.run_id, worker.config.storage.keep_checkpoints, best_iteration(worker))


def best_iteration(worker: Worker) -> int | None:
    """Return the evaluated iteration with the highest held-out success (the later of equals), None if there is none."""
    evaluated = [
        (item["success/heldout"], n) for n, item in sorted(worker.history.items()) if "success/heldout" in item
    ]
    return max(evaluated)[1] if evaluated else None


def failure_counts(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Count the diagnosed failures of all iterations by type, the most frequent first."""
    types: dict[str, int] = {}
    for item in rows:
        for name, count in item["failure_types"].items():
            types[name] = types.get(name, 0) + count
    return dict(sorted(types.items(), key=lambda pair: (-pair[1], pair[0])))


def measures(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    """Return one value an iteration of each of `MEASURES` that the run has, None where an iteration had none."""
    found = {name: [item.get(name) for item in rows] for name in MEASURES}
    return {name: values for name, values in found.items() if any(value is not None for value in values)}


def _ends(interval: tuple[float, float] | None) -> list[float | None] | None:
    """An interval for JSON, which knows no infinity: null for an end that there is not."""
    return None if interval is None else [end if math.isfinite(end) else None for end in interval]


def summarise(worker: Worker, status: str = "finished") -> dict[str, Any]:
    """Return the machine-readable summary of a run, finished or not; `docs/command-line.md` explains its keys."""
    rows = history(worker)
    rates = {item["iteration"]: rate for item in rows if (rate := heldout_rate(item)) is not None}
    walls = timings(worker)
    share, beside = phase_shares(
        [item["phase_seconds"] for item in rows if item["iteration"] in walls], list(walls.values())
    )
    trained = [item for item in rows if item["iteration"] > 0]
    last = rows[-1]["iteration"] if rows else 0
    drawn = [item["curriculum/drawn_by_relevance"] for item in trained if "curriculum/drawn_by_relevance" in item]
    return {
        "run_id": worker.run_id,
        "status": status,
        "seconds": sum(timing.wall for timing in walls.values()),
        "seed": worker.config.seed,
        "iterations": last,
        "iterations_planned": worker.config.iterations,
        "heldout_before": rates[0].as_dict() if 0 in rates else None,
        "heldout_after": rates[max(rates)].as_dict() if rates and max(rates) > 0 else None,
        "heldout": {str(n): rate.as_dict() for n, rate in rates.items()},
        "train_success": [item.get("success/train") for item in trained],
        "train_success_by_source": {
            name: [item.get(f"success/{name}") for item in trained] for name in ("uniform", "relevance")
        },
        "prediction_match": [item.get("match/mean") for item in trained],
        "heldout_match": {str(item["iteration"]): item["match/heldout"] for item in rows if "match/heldout" in item},
        "failure_types": failure_counts(rows),
        "bank_size": [item.get("bank/size", 0.0) for item in trained],
        "curriculum_share": sum(drawn) / len(drawn) if drawn else 0.0,
        "phase_share": share,
        "beside_update_share": beside,
        "cost_table": cost_table(rows, walls),
        "gradient_noise_scale": noise_scale(trained),
        "gradient_noise_interval": _ends(noise_interval(trained)),
        "measures": measures(trained),
        "peak_rss_mb": max((item["memory/peak_mb"] for item in rows), default=0.0),
        "checkpoint": worker.store.checkpoint_uri(worker.run_id, last) if rows else "",
        **mlflow_place(worker),
        "report": str(home.reports_folder(worker.run_id) / "report.md") if status == "finished" else "",
    }


def overview(worker: Worker) -> dict[str, Any]:
    """Return the first lines of a summary, from a few objects only: status, iterations, rates, size of the bank."""
    rows = worker.store.committed(worker.run_id)
    last = rows[-1] if rows else 0
    rates = (heldout_rate(row(worker, n)) for n in reversed(rows) if n > 0)
    return {
        "run_id": worker.run_id,
        "status": read_status(worker)["status"],
        "iterations": last,
        "iterations_planned": worker.config.iterations,
        "heldout_before": heldout_rate(row(worker, 0)) if rows else None,
        "heldout_after": next((rate for rate in rates if rate is not None), None),
        "bank_size": row(worker, last).get("bank/size", 0.0) if rows else 0.0,
    }


def finish(worker: Worker, n: int) -> dict[str, Any]:
    """Write summary, figures and report of a run whose last iteration is n; log them; return the summary."""
    from roleagent.tracking.report import write_report

    summary = summarise(worker)
    summary["peak_rss_mb"] = max(summary["peak_rss_mb"], peak_memory_mb())
    folder = home.reports_folder(worker.run_id)
    rows = history(worker)
    diagnoses = [d for k in reversed(worker.store.committed(worker.run_id)) for d in worker.committed_diagnoses(k)]
    links = {"checkpoint": summary["checkpoint"]}
    if worker.tracker.run_url:
        links["MLflow run"] = worker.tracker.run_url
    write_report(
        folder,
        rows,
        run_id=worker.run_id,
        config=worker.config.model_dump(mode="json"),
        diagnoses=diagnoses,
        links=links,
        costs=summary["cost_table"],
    )
    worker.store.write(worker.run_id, SUMMARY, json.dumps(summary, indent=1).encode())
    worker.tracker.log_report(folder)
    return summary


def report_text(worker: Worker) -> str:
    """Return the Markdown of a finished run's report, for a page elsewhere.

    Its figures are files beside it. Where an MLflow server has them too they are shown from there, else they are named.
    """
    folder = home.reports_folder(worker.run_id)
    text = (folder / "report.md").read_text(encoding="utf-8")
    place = mlflow_place(worker)
    if not place["mlflow_url"]:
        return re.sub(r"(?m)^!\[([^]]*)\]\((figures/[^)]*)\)$", rf"- \1: `{folder}/\2`", text)
    server = place["mlflow_url"].partition("/#/")[0]
    return text.replace("](figures/", f"]({server}/get-artifact?run_uuid={place['mlflow_run']}&path=figures/")


def tables(worker: Worker, summary: Mapping[str, Any]) -> list[tuple[str, str, list[dict[str, Any]]]]:
    """Return the tables of a finished run as (key, description, rows)."""
    evaluated = [item for item in history(worker) if "success/heldout" in item]
    found = [
        ("success", "Held-out success by task type, before and after training", _success_table(evaluated)),
        ("failures", "What went wrong, as the model diagnosed it", _failure_table(summary["failure_types"])),
    ]
    return [table for table in found if table[2]]


def _success_table(evaluated: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    if not evaluated:
        return []
    prefix = "success/heldout"
    first, last = evaluated[0], evaluated[-1]
    names = {key: key.removeprefix(f"{prefix}/") for key in sorted(last) if key.startswith(f"{prefix}/")}
    return [
        {
            "task type": name,
            "before": f"{first[key]:.1%}" if key in first else "not played",
            "after": f"{last[key]:.1%}",
            "change": f"{100 * (last[key] - first[key]):+.1f} points" if key in first else "",
        }
        for key, name in {**names, prefix: f"all {last['heldout/n']:.0f} tasks"}.items()
    ]


def _failure_table(types: Mapping[str, int]) -> list[dict[str, Any]]:
    counts = list(types.items())
    rest = sum(count for _, count in counts[_TABLE_ROWS:])
    shown = counts[:_TABLE_ROWS] + ([(f"{len(counts) - _TABLE_ROWS} more", rest)] if rest else [])
    return [
        {"failure type": name, "failures": count, "share": f"{count / sum(types.values()):.0%}"}
        for name, count in shown
    ]


def heldout_rate(item: Mapping[str, Any]) -> Rate | None:
    """Return the held-out success of an iteration's row, None if it was not evaluated."""
    if "heldout/n" not in item:
        return None
    return Rate(item["success/heldout"], item["heldout/low"], item["heldout/high"], int(item["heldout/n"]))


def load_summary(worker: Worker) -> dict[str, Any]:
    """Return the summary of a run in whatever state it is, from its commits.

    Of the one that was stored at its end only the memory of the last moments is taken, so that a stored summary which
    is damaged, or of another version, does no harm.
    """
    summary = summarise(worker, read_status(worker)["status"])
    try:
        stored = read_json_text(worker.store.read_run(worker.run_id, SUMMARY))
        summary["peak_rss_mb"] = max(summary["peak_rss_mb"], float(stored["peak_rss_mb"]))
    except (MissingObjectError, ValueError, KeyError, TypeError):
        return summary
    return summary
