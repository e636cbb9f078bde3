"""What goes wrong on the way stops the run with one line, loses nothing that was committed, and can be mended.

A base run of one iteration is made once and copied. Each test goes on with a copy, lets something fail in iteration 2,
and goes on again. The runs are children of one prepared process (`tests.support.processes`).
"""

from __future__ import annotations

import errno
import io
import json
import re
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import pytest

from roleagent.loop.events import listening
from tests.support import processes
from tests.support.faults import FullDisk, KillAt
from tests.support.loop import RUN_ID, small_config, train
from tests.support.results import committed, read_bank, read_mlflow, store_of
from tests.support.unruly import HOSTILE, MoodyHousehold

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # a busy machine takes its time

TINY = (
    "iterations=2",
    "environment.max_steps=3",
    "rollout.group_size=3",
    "rollout.max_turn_tokens=64",
    "evaluation.every=0",
    "evaluation.tasks=1",
    "evaluation.final_tasks=1",
    "agent_in_world.max_diagnosis_tokens=64",
    "storage.keep_checkpoints=3",
    "tracking.traces=0",
)


class Notes(KillAt):
    """Keeps the notices of a run."""

    def __init__(self) -> None:
        super().__init__(-1, "")
        self.notices: list[str] = []

    def notice(self, text: str) -> None:
        self.notices.append(text)


def go_on(
    fault: Callable[..., AbstractContextManager[Callable[[int, str], None]]] | None = None,
    *arguments: Any,
    overrides: tuple[str, ...] = (),
) -> list[str]:
    """Train or go on, with a fault; return the notices. Figures, which nobody looks at here, are left out."""
    notes = Notes()
    with ExitStack() as stack:
        stack.enter_context(patch("roleagent.tracking.figures.draw_figures", lambda history: {}))
        stack.enter_context(listening(notes))
        before = stack.enter_context(fault(*arguments)) if fault else notes
        train(small_config(*TINY, *overrides), before=before)
    return notes.notices


def home_of(path: Path) -> dict[str, str]:
    return {"ROLEAGENT_HOME": str(path)}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed after its first iteration."""
    home = tmp_path_factory.mktemp("base")
    assert processes.run(go_on, dies_before, 2, "sample tasks", environment=home_of(home)).killed
    assert committed(home) == [0, 1]
    return home


@pytest.fixture
def home(base: Path, tmp_path: Path) -> Path:
    """A copy of the base run, in a place of its own."""
    copy = tmp_path / "home"
    shutil.copytree(base, copy)
    shutil.rmtree(copy / "runs")  # it names the store of the original
    return copy


def dies_before(iteration: int, phase: str) -> AbstractContextManager[Callable[[int, str], None]]:
    return nullcontext(KillAt(iteration, phase))


def status_of(home: Path) -> dict[str, Any]:
    status: dict[str, Any] = json.loads(store_of(home).read_run(RUN_ID, "status.json"))
    return status


def assert_one_line(ended: processes.Ended, error: str) -> None:
    assert ended.error == error, ended.trace or f"it ended with {ended.code}"
    assert "\n" not in ended.message
    assert "Traceback" not in ended.message


def assert_mended(home: Path) -> list[str]:
    """Going on finishes the run, and every committed byte is as its manifest says; return the notices."""
    ended = processes.run(go_on, environment=home_of(home))
    notices: list[str] = ended.result()
    state = store_of(home).inspect(RUN_ID)
    assert state.latest is not None
    assert (state.latest.iteration, state.problems) == (2, ())
    assert status_of(home)["status"] == "finished"
    history, marks, _ = read_mlflow(home)
    assert [step for step, _ in history["iteration"]] == [0, 1, 2]
    assert marks["runs"] == "1"
    return notices


# -- bad data -------------------------------------------------------------------------------------------------------


@contextmanager
def pays_too_much(iteration: int) -> Iterator[Callable[[int, str], None]]:
    """From an iteration on, the environment pays 7 for every step, and it has said that it pays at most 1."""
    from roleagent.environments.household.household import Household

    plain = Household.step
    with ExitStack() as stack:

        def before(n: int, phase: str) -> None:
            if (n, phase) == (iteration, "roll out"):
                stack.enter_context(
                    patch.object(Household, "step", lambda self, action: replace(plain(self, action), reward=7.0))
                )

        yield before


def test_bad_data_stop_the_iteration_and_are_saved(home: Path) -> None:
    before = store_of(home).listing(RUN_ID)
    ended = processes.run(go_on, pays_too_much, 2, environment=home_of(home))

    assert_one_line(ended, "DataQualityError")
    assert "reward" in ended.message
    saved = home / "store" / "runs" / RUN_ID / "iterations" / "2" / "violations-trajectories.parquet"
    assert str(saved) in ended.message
    import pandas as pd

    rows = pd.read_parquet(saved)
    assert len(rows)
    assert (rows["reward"] == 7.0).all()
    assert rows["broken"].str.contains("reward").all()
    after = store_of(home).listing(RUN_ID)
    assert {n: after[n] for n in (0, 1)} == before
    assert committed(home) == [0, 1]
    assert not any("checkpoint" in name or name == "metrics.json" for name in after[2])
    assert (status_of(home)["status"], status_of(home)["reason"]) == ("failed", ended.message)
    history, _, _ = read_mlflow(home)
    assert [step for step, _ in history["iteration"]] == [0, 1]
    with sqlite3.connect(home / "mlflow.db") as database:
        assert database.execute("SELECT status FROM runs").fetchall() == [("FAILED",)]

    assert_mended(home)
    names = {item.name for item in store_of(home).manifest(RUN_ID, 2).objects}
    assert "trajectories.parquet" in names
    assert not any(name.startswith("violations-trajectories") for name in names)


# -- an environment that hangs and raises ---------------------------------------------------------------------------


def moody() -> AbstractContextManager[Callable[[int, str], None]]:
    from roleagent.environments import registry

    registry.register("moody", "tests.support.unruly:MoodyHousehold")
    return nullcontext(lambda n, phase: None)


def test_stuck_and_raising_environments_end_their_episodes_only(tmp_path: Path) -> None:
    began = time.monotonic()
    ended = processes.run(
        go_on,
        moody,
        overrides=(
            "iterations=1",
            "rollout.group_size=4",
            "environment.name=moody",
            "environment.step_timeout_seconds=0.5",
            "quality.max_environment_error_share=0.8",
        ),
        environment=home_of(tmp_path),
    )
    ended.result()
    assert time.monotonic() - began < 4 * MoodyHousehold.hang_seconds
    metrics = json.loads(store_of(tmp_path).read(RUN_ID, 1, "metrics.json"))["metrics"]
    assert metrics["rollout/stop/environment_timeout"] == 2 / 8
    assert metrics["rollout/stop/environment_error"] == 4 / 8
    assert metrics["diagnosis/skipped/environment_fault"] == 6
    from roleagent.rollout.records import read_trajectories

    episodes = read_trajectories(store_of(tmp_path).read(RUN_ID, 1, "trajectories.parquet"))
    assert len(episodes) == 8
    assert all(episode.steps for episode in episodes if not episode.stop_reason.startswith("environment"))


# -- the store is lost ----------------------------------------------------------------------------------------------


def vanishes(iteration: int, phase: str) -> AbstractContextManager[Callable[[int, str], None]]:
    """The store's folder is gone when a phase begins, as a disk that was unmounted."""
    import os

    store = Path(os.environ["ROLEAGENT_HOME"]) / "store"

    def before(n: int, name: str) -> None:
        if (n, name) == (iteration, phase):
            store.rename(store.with_name("elsewhere"))

    return nullcontext(before)


@pytest.mark.parametrize("phase", ["update", "commit"])
def test_a_store_that_vanishes_is_one_line_and_loses_nothing(home: Path, phase: str) -> None:
    ended = processes.run(go_on, vanishes, 2, phase, environment=home_of(home))
    assert_one_line(ended, "MissingStoreError")
    assert str(home / "store") in ended.message
    assert "mount it or bring it back" in ended.message
    assert not (home / "store").exists(), "an empty store hides that the real one is missing"
    (home / "elsewhere").rename(home / "store")
    assert committed(home) == [0, 1]
    assert_mended(home)


@contextmanager
def fills_up(pattern: str, code: int) -> Iterator[Callable[[int, str], None]]:
    with FullDisk(pattern, code).mounted():
        yield lambda n, phase: None


@pytest.mark.parametrize(
    ("key", "code", "words"),
    [
        ("*/2/trajectories.parquet", errno.EROFS, "read-only"),
        ("*/2/checkpoint/optimizer.safetensors", errno.ENOSPC, "disk is full"),
        ("*/2/manifest.json", errno.ENOSPC, "disk is full"),
    ],
)
def test_a_full_or_read_only_disk_is_one_line_and_loses_nothing(home: Path, key: str, code: int, words: str) -> None:
    ended = processes.run(go_on, fills_up, key, code, environment=home_of(home))
    assert_one_line(ended, "StorageError")
    assert words in ended.message
    assert committed(home) == [0, 1]
    assert_mended(home)


# -- two processes, one run -----------------------------------------------------------------------------------------


def waits(iteration: int, phase: str, folder: Path) -> AbstractContextManager[Callable[[int, str], None]]:
    """Stop before a phase, tell so by the file `there`, and go on when there is the file `go`."""

    def before(n: int, name: str) -> None:
        if (n, name) == (iteration, phase):
            (folder / "there").touch()
            wait_for(folder / "go")

    return nullcontext(before)


def wait_for(path: Path, seconds: float = 200.0) -> None:
    limit = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < limit, f"{path} did not appear"
        time.sleep(0.05)


def test_a_second_process_takes_the_run_over_and_the_first_one_stops(home: Path, tmp_path: Path) -> None:
    # Two machines: each with a home of its own, the store is shared.
    first = processes.start(go_on, waits, 2, "score", tmp_path, environment=home_of(home))
    wait_for(tmp_path / "there")
    other = tmp_path / "other"
    shutil.copytree(home / "mlflow-artifacts", other / "mlflow-artifacts", dirs_exist_ok=True)
    shutil.copy(home / "mlflow.db", other / "mlflow.db")
    second = processes.run(go_on, overrides=(f"storage.uri={home / 'store'}",), environment=home_of(other))
    second.result()
    taken_over = store_of(home).manifest(RUN_ID, 2)
    (tmp_path / "go").touch()
    ended = first.wait()

    assert_one_line(ended, "CommitConflict")
    assert "taken over" in ended.message
    assert store_of(home).manifest(RUN_ID, 2) == taken_over
    state = store_of(home).inspect(RUN_ID)
    assert state.latest == taken_over
    assert status_of(home)["status"] == "finished", "the first process is not to write over the second one's status"


# -- a damaged checkpoint -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["checkpoint/model.safetensors", "checkpoint/optimizer.safetensors"])
def test_a_damaged_checkpoint_is_left_for_the_one_before_it(home: Path, name: str) -> None:
    store = store_of(home)
    intact = {item.name: item.sha256 for item in store.manifest(RUN_ID, 1).objects if item.name != "metrics.json"}
    path = home / "store" / "runs" / RUN_ID / "iterations" / "1" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)

    notices = assert_mended(home)

    (notice,) = [text for text in notices if "not valid" in text]
    assert notice.startswith(f"iteration 1 of run {RUN_ID} is not valid: the content of {name} has changed")
    assert notice.endswith("going on from iteration 0")
    again = {item.name: item.sha256 for item in store.manifest(RUN_ID, 1).objects if item.name != "metrics.json"}
    assert again == intact
    assert any(path.name.startswith("undone-") for path in path.parents[1].iterdir())


# -- hostile text ---------------------------------------------------------------------------------------------------


def hostile_run(folder: Path) -> None:
    """Let hostile text from both sides go through everything that keeps or shows it. Runs in a child."""
    from rich.console import Console

    from roleagent.agent_in_world.diagnosis import diagnose
    from roleagent.agent_in_world.embedding import TextEmbedder
    from roleagent.agent_in_world.failure_bank import FailureBank
    from roleagent.config.models import TrackingConfig
    from roleagent.console import play, run_panel, show
    from roleagent.policy.model import load_policy
    from roleagent.rollout.context import clean_text
    from roleagent.rollout.loop import collect
    from roleagent.rollout.records import read_diagnoses, read_trajectories, write_diagnoses, write_trajectories
    from roleagent.rollout.settings import RolloutSettings
    from roleagent.tracking.report import render_report
    from roleagent.tracking.traces import trace_id
    from roleagent.tracking.tracker import Tracker
    from roleagent.types import DiagnosisStatus, StopReason
    from tests.support.scripted import ScriptedEngine
    from tests.support.unruly import Prompter

    tokenizer = load_policy("roleagent:quickstart", device="cpu").tokenizer
    inner = HOSTILE.replace("<action>", "").replace("</action>", "").replace("<predict>", "").replace("</predict>", "")
    control = next(i for i in range(tokenizer.vocab_size) if tokenizer.is_control(i) and i not in tokenizer.stop_ids)
    turn = [
        *tokenizer.encode_text(f"<think>{inner}</think><action>open {inner}</action><predict>"),
        control,  # a control token that the model itself samples
        *tokenizer.encode_text(f"{inner}</predict>"),
        tokenizer.eot_id,
    ]
    environment = Prompter()
    episodes = collect(
        ScriptedEngine(tokenizer, lambda text: turn, 4 * len(turn) + 4000),
        tokenizer,
        lambda: environment,
        [(task, 0) for task in environment.tasks("train")],
        RolloutSettings(
            horizon=1, max_steps=2, max_turn_tokens=len(turn), max_context=4 * len(turn) + 4000, concurrency=1
        ),
        iteration=1,
        policy_version=0,
        seed=0,
        purpose="rollout",
    )
    short, long = episodes

    # The environment heard the model's action, whole, and nothing of what it had said itself.
    said = clean_text(f"open {inner}").strip()
    assert environment.heard == [said] * 3
    assert [step.action for step in short.steps] == [said] * 2
    assert short.stop_reason is StopReason.MAX_STEPS
    assert long.stop_reason is StopReason.CONTEXT_FULL
    assert all(step.predictions == (clean_text(inner).strip(),) for step in short.steps)
    # Control tokens in what the model reads are the template's own.
    opening, following = tokenizer.opening("x", "x"), tokenizer.next_user("x", False)
    for step, plain in zip(short.steps, (opening, following), strict=True):
        found = [token for token in step.context_ids if tokenizer.is_control(token)]
        expected = [token for token in plain if tokenizer.is_control(token)]
        assert found == expected, f"{found} are control tokens, expected {expected}"

    assert read_trajectories(write_trajectories(episodes)) == episodes

    # The diagnosis is the model's, not the one that the environment offers.
    answer = json.dumps(
        {
            "failure_type": f"kind {inner}"[:60],
            "root_cause": f"cause {inner}",
            "critical_step": 1,
            "lesson": f"lesson {inner}",
            "retrieval_query": f"query {inner}"[:280],
        }
    )
    config = small_config().agent_in_world.model_copy(update={"max_diagnosis_tokens": 4000})
    engine = ScriptedEngine(tokenizer, lambda text: tokenizer.encode_turn(f"Well:\n```json\n{answer}\n```"), 100_000)
    batch = diagnose(
        engine,
        tokenizer,
        [short],
        config=config,
        run_id=RUN_ID,
        seed=0,
        iteration=1,
        instructions=False,
        max_context=100_000,
    )
    (diagnosis,) = batch.diagnoses
    assert diagnosis.status is DiagnosisStatus.VALID, diagnosis.error
    assert "obeyed" not in diagnosis.failure_type
    assert diagnosis.root_cause.startswith("cause <|end|>"), repr(diagnosis)
    for text in (diagnosis.failure_type, diagnosis.root_cause, diagnosis.lesson, diagnosis.retrieval_query):
        assert text.isprintable()
    assert read_diagnoses(write_diagnoses([diagnosis])) == [diagnosis]

    with FailureBank(folder / "bank", RUN_ID, TextEmbedder(config.embedding_model)) as bank:
        assert bank.add([diagnosis]) == 1
        neighbours = bank.search(HOSTILE, 3)
        (kept,) = bank.records()
        assert (kept.failure_type, kept.retrieval_query) == (diagnosis.failure_type, diagnosis.retrieval_query)
        stats = bank.stats()

    types = {diagnosis.failure_type: 1, HOSTILE: 2}
    rows = [{"iteration": n, "success/heldout": 0.5, "failure_types": types} for n in (0, 1)]
    tracker = Tracker(TrackingConfig(), folder)
    tracker.start_run(RUN_ID, RUN_ID, {"note": clean_text(HOSTILE)})
    tracker.log_iteration(1, rows[1])
    tracker.log_traces([short], {short.trajectory_id: diagnosis})
    from mlflow.tracing.client import TracingClient

    trace = TracingClient(tracker.uri).get_trace(trace_id(RUN_ID, short.trajectory_id))
    spans = {span.name: span for span in trace.data.spans}
    assert spans["turn 1"].inputs == {"state": short.steps[0].state}
    assert spans["turn 1"].outputs["action"] == said
    assert spans[trajectory_name(short)].outputs["final_state"] == short.final_state

    report = render_report(rows, run_id=RUN_ID, config={"note": HOSTILE}, diagnoses=[diagnosis])
    assert "cause" in report
    live = re.sub(r"\\.", "", report)  # what is left when escaped characters are taken out
    for raw in ("<script", "](", "![x", "`code", "\x1b", "\x07", "\x9b", "\u202e", "\n# title", "http://evil", "www."):
        assert raw not in live, f"{raw!r} is in the report as it came"
    for line in live.splitlines():
        if line.startswith("|") and "obey" in line:
            assert line.endswith("|"), f"a row was broken up: {line}"

    worker = MagicMock()  # what the screens ask of a worker
    worker.run_id = RUN_ID
    worker.store.committed.return_value = [1]
    worker.committed_diagnoses.return_value = [diagnosis]
    worker.trajectories.return_value = [short]
    worker.config = small_config()
    worker.environment = environment
    worker.engine.return_value.max_context = 1000
    screen = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=300)
    screen.print(show.diagnosis_panel(worker, diagnosis.record_id))
    screen.print(show.neighbours_table("a-run", neighbours))
    screen.print(show.bank_table(RUN_ID, {**stats, "by_failure_type": types}))
    screen.print(run_panel._failures({"failure_types": types, "bank_size": [1.0]}))
    with patch("roleagent.rollout.loop.collect", return_value=[short]):
        play.watch_policy(screen, worker, "", temperature=1.0, seed=0)
    shown = screen.file.getvalue()  # type: ignore[attr-defined]
    assert shown.count("[bold red]loud[/bold red]") >= 4, "markup is text"
    for raw in ("\x1b[2J", "\x1b[38;5;201m", "\x1b]8", "\x07", "\x9b", "\x00", "\x08", "\u202e"):
        assert raw not in shown, f"{raw!r} reaches the terminal"


def trajectory_name(trajectory: Any) -> str:
    return str(trajectory.task.task_id)


def test_hostile_text_is_kept_and_shown_and_never_obeyed(tmp_path: Path) -> None:
    processes.run(hostile_run, tmp_path, environment=home_of(tmp_path)).result()


def test_the_bank_of_a_failed_run_holds_committed_failures_only(home: Path) -> None:
    """The bank is read as it lies there after a failure in the middle of iteration 2."""
    processes.run(go_on, fills_up, "*/2/manifest.json", errno.ENOSPC, environment=home_of(home))
    records = processes.run(read_bank, home, environment=home_of(home)).result()
    assert {record.iteration for record in records} <= {1}
