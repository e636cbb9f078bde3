"""What Agent-In-World adds to an iteration, generation of the diagnoses apart.

    python -m tests.benchmarks.agent_in_world_cost

Median CPU and wall milliseconds of each part at 16 diagnoses an iteration, with banks of growing size.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from roleagent.agent_in_world.curriculum import TaskDistribution
from roleagent.agent_in_world.embedding import TextEmbedder
from roleagent.agent_in_world.failure_bank import FailureBank
from roleagent.agent_in_world.retrieval import retrieve
from roleagent.config.models import AgentInWorldConfig
from roleagent.types import Diagnosis, DiagnosisStatus
from tests.benchmarks.timing import median_cpu, spent

CONFIG = AgentInWorldConfig()
KINDS = ["repeated exploration", "wrong receptacle", "missing treatment", "wrong object", "closed target"]
PLACES = ["drawer", "shelf", "fridge", "cabinet", "microwave", "sink", "table", "desk"]
THINGS = ["apple", "mug", "pen", "soap", "plate", "book", "egg", "cloth", "knife", "lamp"]


def diagnosis(number: int, iteration: int) -> Diagnosis:
    kind, place, thing = KINDS[number % 5], PLACES[number // 5 % 8], THINGS[number // 40 % 10]
    return Diagnosis(
        trajectory_id=f"{iteration}/{number}",
        task_id=f"task-{number % 512}",
        environment="household",
        run_id="run",
        iteration=iteration,
        policy_version=iteration - 1,
        status=DiagnosisStatus.VALID,
        failure_type=kind,
        root_cause="The agent did not look at what it had already seen.",
        critical_step=4,
        lesson="Look elsewhere.",
        retrieval_query=f"{kind}: {thing} and {place}, tried again without a change of plan",
    )


def measure(repeats: int, action: Callable[[int], object]) -> str:
    wall, cpu = [], []
    for repeat in range(repeats):
        begin, begin_cpu = time.perf_counter(), time.process_time()
        action(repeat)
        wall.append(1e3 * (time.perf_counter() - begin))
        cpu.append(1e3 * (time.process_time() - begin_cpu))
    return f"{statistics.median(wall):7.1f} wall {statistics.median(cpu):7.1f} CPU"


def ask(bank: FailureBank, batches: list[list[Diagnosis]], number: int) -> None:
    retrieve(bank, batches[number], config=CONFIG, seed=0, iteration=number)


def write(bank: FailureBank, batches: list[list[Diagnosis]], number: int) -> None:
    bank.add(batches[number])


def report(line: str) -> None:
    sys.stdout.write(line + "\n")


def numbers() -> dict[str, float]:
    """For `make bench`: CPU milliseconds a diagnosis in a bank of 4,000 records, and of one reshaping."""
    embedder = TextEmbedder(CONFIG.embedding_model)
    distribution = TaskDistribution([f"task-{i}" for i in range(3553)], CONFIG)
    relevance = {f"task-{i}": 0.5 for i in range(500)}
    batches = [[diagnosis(4000 + 16 * n + i, 300) for i in range(16)] for n in range(9)]

    def reshape(n: int) -> None:
        distribution.observe({f"task-{n}": 0.5})
        distribution.add_relevance(relevance)
        distribution.end_iteration()
        distribution.draw(16, 0, n)

    with tempfile.TemporaryDirectory() as folder, FailureBank(Path(folder), "run", embedder) as bank:
        bank.add([diagnosis(i, 1 + i // 16) for i in range(4000)])
        queries = [f"{item.failure_type}: {item.retrieval_query}" for batch in batches for item in batch]
        embedding = spent(lambda: embedder.embed(queries)).cpu / len(batches)
        return {
            "bank_query_ms": 1e3 * median_cpu(len(batches), partial(ask, bank, batches)) / 16,
            "bank_embed_ms": 1e3 * embedding / 16,
            "bank_add_ms": 1e3 * median_cpu(len(batches), partial(write, bank, batches)) / 16,
            "reshape_ms": 1e3 * median_cpu(9, reshape),
        }


def main() -> None:
    begin = time.perf_counter()
    embedder = TextEmbedder(CONFIG.embedding_model)
    report(
        f"load the embedder       {1e3 * (time.perf_counter() - begin):7.1f} wall (once a process, imports included)"
    )
    texts = [
        [f"{item.failure_type}: {item.retrieval_query} {n}" for item in map(diagnosis, range(16), [n] * 16)]
        for n in range(10)
    ]
    embedder.embed(["warm up"])
    report(f"embed 16 new texts      {measure(10, lambda n: embedder.embed(texts[n]))}")
    report(f"embed 16 known texts    {measure(10, lambda _: embedder.embed(texts[0]))}")
    distribution = TaskDistribution([f"task-{i}" for i in range(3553)], CONFIG)
    relevance = {f"task-{i}": 0.5 for i in range(500)}

    def reshape(n: int) -> None:
        distribution.observe({f"task-{n}": 0.5})
        distribution.add_relevance(relevance)
        distribution.end_iteration()
        distribution.draw(16, 0, n)
        distribution.metrics()

    report(f"reshape and draw        {measure(20, reshape)}  (pool 3,553, 500 relevant)")
    with tempfile.TemporaryDirectory() as folder, FailureBank(Path(folder), "run", embedder) as bank:
        filled = 0
        for size in (0, 1000, 4000):
            bank.add([diagnosis(i, 1 + i // 16) for i in range(filled, size)])
            filled = size
            fresh = [[diagnosis(size + 16 * n + i, 1 + size) for i in range(16)] for n in range(10)]
            for batch in fresh:  # embedding is measured above
                embedder.embed([f"{item.failure_type}: {item.retrieval_query}" for item in batch])
            query = measure(10, partial(ask, bank, fresh))
            report(f"retrieve, {size:5d} records {query}")
            store = measure(10, partial(write, bank, fresh))
            report(f"store 16, {size:5d} records {store}")
            filled += 160
        stats = bank.stats()
        report(f"bank: {stats['records']} records, {stats['patterns']} patterns")
        bank.close()
        reopen = measure(1, lambda _: FailureBank(Path(folder), "run", embedder).close())
        report(f"open, {stats['records']:5d} records     {reopen}  (builds the graph)")


if __name__ == "__main__":
    main()
