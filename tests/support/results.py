"""What a run left behind, read from its store, its bank and its MLflow database: for comparing runs."""

from __future__ import annotations

import json
import re
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roleagent.storage import RunStore, open_store
from tests.support.loop import RUN_ID

#: Metrics that measure the machine and not the run.
_OF_THE_MACHINE = re.compile(r"seconds/|memory/|rollout_time/|.*[/_]seconds$|.*tokens_per_second$")


@dataclass(frozen=True)
class Results:
    """Everything that a resumed run must have in common with an uninterrupted one."""

    tasks: dict[int, list[dict[str, Any]]]  #: drawn in each iteration: id, source, probability
    metrics: dict[int, dict[str, float]]  #: of each iteration, without those of the machine
    failure_types: dict[int, dict[str, int]]
    digests: dict[int, dict[str, str]]  #: SHA-256 of each committed object but `metrics.json`
    history: dict[str, list[tuple[int, float]]]  #: MLflow's points (step, value) by metric, in the order of writing
    marks: dict[str, str]  #: MLflow's tags and datasets
    traces: list[str]  #: ids of MLflow's traces
    bank: list[Any]  #: records of the failure bank


def store_of(home: Path) -> RunStore:
    """Return the store of the run in a home folder."""
    return RunStore(open_store(str(home / "store")))


def committed(home: Path, run_id: str = RUN_ID) -> list[int]:
    """Return the committed iterations."""
    return store_of(home).committed(run_id)


def read_results(home: Path, run_id: str = RUN_ID) -> Results:
    """Read a run's results. The bank is opened for it: no other process may use the home folder meanwhile."""
    store = store_of(home)
    numbers = store.committed(run_id)
    records = {n: json.loads(store.read(run_id, n, "metrics.json")) for n in numbers}
    history, marks, traces = read_mlflow(home)
    return Results(
        tasks={n: record["tasks"] for n, record in records.items()},
        metrics={n: comparable(record["metrics"]) for n, record in records.items()},
        failure_types={n: record["failure_types"] for n, record in records.items()},
        digests={
            n: {item.name: item.sha256 for item in store.manifest(run_id, n).objects if item.name != "metrics.json"}
            for n in numbers
        },
        history={name: points for name, points in history.items() if not _OF_THE_MACHINE.match(name)},
        marks=marks,
        traces=traces,
        bank=read_bank(home, run_id),
    )


def comparable(metrics: dict[str, float]) -> dict[str, float]:
    """Return the metrics that do not measure the machine."""
    return {name: value for name, value in metrics.items() if not _OF_THE_MACHINE.match(name)}


def read_bank(home: Path, run_id: str = RUN_ID) -> list[Any]:
    """Return the records of the failure bank as they lie there, without bringing them in line with the commits."""
    from roleagent.agent_in_world.embedding import TextEmbedder
    from roleagent.agent_in_world.failure_bank import FailureBank
    from roleagent.config.models import AgentInWorldConfig

    folder = home / "bank" / run_id
    assert folder.is_dir(), f"there is no {folder}"
    with FailureBank(folder, run_id, TextEmbedder(AgentInWorldConfig().embedding_model)) as bank:
        return list(bank.records())


def read_mlflow(home: Path) -> tuple[dict[str, list[tuple[int, float]]], dict[str, str], list[str]]:
    """Return metric histories, marks (tags and datasets, without addresses) and trace ids from the local database."""
    with sqlite3.connect(f"file:{home / 'mlflow.db'}?mode=ro", uri=True) as database:
        history: dict[str, list[tuple[int, float]]] = {}
        for key, step, value in database.execute("SELECT key, step, value FROM metrics ORDER BY rowid"):
            history.setdefault(key, []).append((step, value))
        marks = {
            key: str(value).replace(str(home), "")
            for key, value in database.execute("SELECT key, value FROM tags WHERE key LIKE 'roleagent.%'")
        }
        for name, digest in database.execute(
            "SELECT name, digest FROM datasets JOIN inputs ON source_id = dataset_uuid ORDER BY name"
        ):
            marks[f"dataset {name}"] = marks.get(f"dataset {name}", "") + digest
        (marks["runs"],) = (str(row[0]) for row in database.execute("SELECT count(*) FROM runs"))
        traces = [row[0] for row in database.execute("SELECT request_id FROM trace_info ORDER BY request_id")]
    return history, marks, traces
