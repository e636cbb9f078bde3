"""Iterations of the preset `quickstart`, phase by phase, without the orchestrator.

What Agent-In-World adds is measured in pairs: the update of the same trajectories from the same weights is made twice
in every iteration, alone and with diagnosis, its validation and reshaping beside it as in `flows/train.py`; the order
alternates. The first iteration, in which libraries and models are loaded, is not counted.
"""

from __future__ import annotations

import os
import resource
import statistics
import tempfile
import threading
from collections.abc import Callable

from roleagent.config import load_config
from roleagent.loop import phases, publishing, runs
from roleagent.loop.worker import Worker
from tests.benchmarks.timing import Spent, spent

ITERATIONS = 4
_CHANGES = ("evaluation.every=0", "evaluation.tasks=1", "evaluation.final_tasks=1")


def numbers() -> dict[str, float]:
    """Medians over iterations; `*_share` are of the iteration's wall time, `*_cpu_*` of its CPU time."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ROLEAGENT_HOME"] = folder
        worker = runs.open_run(load_config("quickstart", _CHANGES), "benchmark").worker()
        with runs.running(worker):
            publishing.publish(worker, 0, phases.commit(worker, 0, phases.prepare(worker)))
            rows = [iteration(worker, n) for n in range(1, ITERATIONS + 1)][1:]
    found = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    found["peak_rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return found


def iteration(worker: Worker, n: int) -> dict[str, float]:
    """Run one iteration and return its numbers."""
    results: list[phases.PhaseResult] = []
    took: dict[str, Spent] = {}

    def timed(name: str, work: Callable[[], phases.PhaseResult | None]) -> None:
        def kept() -> None:
            result = work()
            if result is not None:
                results.append(result)

        took[name] = spent(kept)

    drawn = phases.draw_tasks(worker, n)
    timed("rollout", lambda: phases.roll_out(worker, n, drawn))
    timed("validation", lambda: phases.validate_rollout(worker, n))
    timed("scoring", lambda: phases.score(worker, n))

    def branch() -> None:
        results.append(phases.diagnose(worker, n))
        results.append(phases.validate_diagnoses(worker, n))
        results.append(phases.reshape(worker, n))

    def beside() -> phases.PhaseResult:
        thread = threading.Thread(target=branch)
        thread.start()
        result = phases.update(worker, n)
        thread.join()
        return result

    for name in ("alone", "beside") if n % 2 else ("beside", "alone"):
        worker.learner(n - 1)  # loading is no part of an update
        if name == "alone":
            took[name] = spent(lambda: phases.update(worker, n))
        else:
            timed(name, beside)
    metrics: dict[str, float] = {}
    took["commit"] = spent(lambda: metrics.update(phases.commit(worker, n, results, drawn)))
    took["bank"] = spent(lambda: worker.bank.add(worker.diagnoses(n)))
    took["publishing"] = spent(lambda: publishing.publish(worker, n, metrics))

    parts = ("rollout", "validation", "scoring", "alone", "commit", "publishing")
    without = sum((took[name] for name in parts), Spent(0.0, 0.0))
    added = took["beside"] - took["alone"] + took["bank"]
    whole = without + added
    generated = metrics["rollout/tokens_generated"]
    return {
        "iteration_seconds": whole.wall,
        "iteration_cpu_seconds": whole.cpu,
        "rollout_share": took["rollout"].wall / whole.wall,
        "update_share": took["alone"].wall / whole.wall,
        "scoring_share": took["scoring"].wall / whole.wall,
        "scoring_cpu_share": took["scoring"].cpu / whole.cpu,
        "aiw_added_share": added.wall / without.wall,
        "aiw_added_cpu_share": added.cpu / without.cpu,
        "generation_tokens_per_second": generated / took["rollout"].wall,
        "generation_tokens_per_cpu_second": generated / took["rollout"].cpu,
        "update_tokens_per_second": metrics["update/tokens"] / took["alone"].wall,
        "update_tokens_per_cpu_second": metrics["update/tokens"] / took["alone"].cpu,
    }
