"""A run that is killed with -9, at any moment, and resumed is the run that was not.

One run is left alone. Four others are killed once in every iteration, each time at another moment, and resumed. In
the end everything but the clock must be equal: the tasks that were drawn, every metric, the curriculum, the episodes,
the diagnoses, the weights and the optimizer's state bit for bit, the bank and MLflow's records. All children are
forked from one prepared process and run the flow's own code without Prefect (`tests.support.loop`). Figures, which
are drawn from the numbers that are compared, are left out.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.support import processes
from tests.support.faults import KillAt, at, faulty_stores, kill, torn_write
from tests.support.loop import RUN_ID, small_config, train
from tests.support.processes import ROOT
from tests.support.results import Results, committed, read_results, store_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # a busy machine takes its time

LAST = 3

#: The moments of each run, by iteration (0 is the state before training).
CHAINS: tuple[tuple[str, ...], ...] = (
    ("load the policy", "sample tasks", "in the rollout", "validate trajectories"),
    ("in the evaluation", "score", "update", "diagnose"),
    ("in writing the weights", "reshape", "before the manifest", "in the evaluation"),
    ("after the manifest", "publishing: the bank is written", "publishing: MLflow is written", "after the manifest"),
)
#: Moments at which the iteration is committed already.
COMMITTED = {"after the manifest", "publishing: the bank is written", "publishing: MLflow is written"}
KILLS = [(chain, n) for chain in range(len(CHAINS)) for n in range(LAST + 1)]


def go_on(iteration: int = -1, moment: str = "") -> None:
    """Begin the run, or go on with it; die at a moment of an iteration. Runs in a child."""
    here = f"*/iterations/{iteration}/"
    with ExitStack() as stack:
        fate = KillAt(iteration, moment)
        if moment == "in the rollout":
            fate = KillAt(iteration, "roll out", done=3)
        elif moment == "in the evaluation":
            fate = KillAt(iteration, "evaluate", done=2)
        elif moment == "in writing the weights":
            stack.enter_context(torn_write(f"iterations/{iteration}/checkpoint/model.safetensors", kill))
        elif moment == "before the manifest":
            stack.enter_context(faulty_stores(at("before", "put", f"{here}manifest.json", kill)))
        elif moment == "after the manifest":
            stack.enter_context(faulty_stores(at("after", "put", f"{here}manifest.json", kill)))
        elif moment == "publishing: the bank is written":
            stack.enter_context(_kill_instead_of("log_iteration", iteration))
        elif moment == "publishing: MLflow is written":
            stack.enter_context(_kill_instead_of("set_checkpoint", iteration))
        from roleagent.loop.events import listening

        stack.enter_context(patch("roleagent.tracking.figures.draw_figures", lambda history: {}))
        stack.enter_context(listening(fate))
        train(small_config("environment.max_steps=8", "seed=2"), before=fate)


def _kill_instead_of(method: str, iteration: int):  # type: ignore[no-untyped-def]
    from roleagent.tracking.tracker import Tracker

    plain = getattr(Tracker, method)

    def fatal(tracker: Tracker, n: int, *args: object) -> object:
        return kill() if n == iteration else plain(tracker, n, *args)

    return patch.object(Tracker, method, fatal)


@dataclass(frozen=True)
class Death:
    """What was seen right after a kill."""

    moment: str
    ended: processes.Ended
    committed: list[int]


@dataclass(frozen=True)
class Story:
    """A run from its beginning to its end, and its deaths on the way."""

    home: Path
    deaths: tuple[Death, ...]
    end: processes.Ended
    results: Results


def live(home: Path, moments: tuple[str, ...]) -> Story:
    home.mkdir()
    environment = {"ROLEAGENT_HOME": str(home)}
    deaths = []
    for n, moment in enumerate(moments):
        ended = processes.run(go_on, n, moment, environment=environment)
        deaths.append(Death(moment, ended, committed(home)))
    end = processes.run(go_on, environment=environment)
    results = processes.run(read_results, home, environment=environment).result()
    return Story(home, tuple(deaths), end, results)


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Future[Story]]]:
    """The uninterrupted run, then the killed ones; two at a time."""
    folder = tmp_path_factory.mktemp("resume")
    pool = ThreadPoolExecutor(max_workers=2)
    yield [pool.submit(live, folder / str(k), moments) for k, moments in enumerate(((), *CHAINS))]
    pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def uninterrupted(stories: list[Future[Story]]) -> Story:
    return stories[0].result()


def test_the_uninterrupted_run_exercises_everything(uninterrupted: Story) -> None:
    """Without weights that move, diagnoses and a bank that fills, the comparisons would say nothing."""
    results = uninterrupted.results
    uninterrupted.end.result()
    assert sorted(results.metrics) == [0, 1, 2, 3]
    assert all(len(results.tasks[n]) == 2 for n in (1, 2, 3))
    weights = [results.digests[n]["checkpoint/model.safetensors"] for n in range(LAST + 1)]
    assert len(set(weights)) == LAST + 1
    assert all("diagnoses.parquet" in results.digests[n] for n in (1, 2, 3))
    assert results.bank
    assert any(results.failure_types.values())
    assert any(metrics.get("curriculum/relevant_tasks", 0.0) > 0 for metrics in results.metrics.values())
    assert len(results.traces) == LAST


def test_every_number_that_is_shown_is_measured(uninterrupted: Story) -> None:
    """Report, figures and advice read metrics by name; a name that no phase writes would be a part that never shows."""
    kinds = "success|match|rollout|update|mismatch|curriculum|bank|groups|reward|diagnosis|retrieval|heldout|memory"
    shown = {
        node.value
        for path in (ROOT / "roleagent" / "tracking").glob("*.py")
        if path.name != "history.py"  # it knows other names of the same numbers
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(f"({kinds})/[a-z_/]*[a-z]", node.value)
    }
    store = store_of(uninterrupted.home)
    measured = set()
    for n in store.committed(RUN_ID):
        measured |= set(json.loads(store.read(RUN_ID, n, "metrics.json"))["metrics"])
    assert len(shown) > 20
    assert {name for name in shown if not any(other.startswith(name) for other in measured)} == set()


@pytest.mark.parametrize(("chain", "n"), KILLS, ids=[f"{n}: {CHAINS[chain][n]}" for chain, n in KILLS])
def test_killed_and_resumed_equals_uninterrupted(
    stories: list[Future[Story]], uninterrupted: Story, chain: int, n: int
) -> None:
    story = stories[1 + chain].result()
    death = story.deaths[n]
    assert death.ended.killed, death.ended.trace or f"it was to die at '{death.moment}' and ended otherwise"
    assert death.committed == list(range(n + 1 if death.moment in COMMITTED else n))
    story.end.result()
    resumed, plain = story.results, uninterrupted.results
    assert resumed.tasks[n] == plain.tasks[n]
    assert resumed.metrics[n] == plain.metrics[n]
    assert resumed.failure_types[n] == plain.failure_types[n]
    # Episodes, diagnoses, curriculum, weights, optimizer: the very bytes.
    assert resumed.digests[n] == plain.digests[n]


@pytest.mark.parametrize("chain", range(len(CHAINS)))
def test_what_lies_beside_the_commits_is_equal_too(
    stories: list[Future[Story]], uninterrupted: Story, chain: int
) -> None:
    resumed, plain = stories[1 + chain].result().results, uninterrupted.results
    assert sorted(resumed.metrics) == sorted(plain.metrics)
    assert resumed.bank == plain.bank
    assert resumed.traces == plain.traces
    assert resumed.marks == plain.marks
    assert resumed.history == plain.history
    for name, points in resumed.history.items():
        steps = [step for step, _ in points]
        assert steps == sorted(set(steps)), f"{name} has a point twice, or out of order"
    assert [step for step, _ in resumed.history["iteration"]] == list(range(LAST + 1))


@pytest.mark.parametrize("chain", range(len(CHAINS)))
def test_the_store_is_whole_and_the_stored_bytes_are_the_committed_ones(
    stories: list[Future[Story]], chain: int
) -> None:
    story = stories[1 + chain].result()
    store = store_of(story.home)
    state = store.inspect(RUN_ID, verify=True)
    assert state.latest is not None
    assert state.latest.iteration == LAST
    assert state.problems == ()
    assert store.read_run(RUN_ID, "status.json").startswith(b'{"status": "finished"')
