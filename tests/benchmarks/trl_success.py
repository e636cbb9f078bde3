"""CPU seconds to a held-out success rate, ours and TRL's. Long: it can be resumed, and `make bench` only reads it.

    python -m tests.benchmarks.trl_success ours FOLDER --minutes 60      as often as wanted: it goes on where it was
    python -m tests.benchmarks.trl_success theirs FOLDER --minutes 60
    python -m tests.benchmarks.trl_success report FOLDER --target 0.7
    python -m tests.benchmarks trl_success                                of build/success, into build/benchmarks.json

Both sides start from the packaged policy on the quickstart household with the same recipe: 8 tasks x 8 episodes a step
at temperature 0.7, two optimiser steps on 32 episodes each, AdamW at a constant 3e-4, gradients cut at 1, clip 0.2 and
0.28, no KL term, advantages without a deviation, token mean. Ours is Role-Agent with all its phases (validation,
diagnosis and checkpoints included). TRL's is GRPO on the episode's outcome, with a rollout of `trl_generation`. Both
are evaluated alike, on the same held-out tasks at temperature 0.4; evaluation and loading are not counted. One thread.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from roleagent.config import load_config
from roleagent.loop import phases, runs
from roleagent.loop.worker import Worker
from roleagent.policy.engines.factory import make_engine
from roleagent.rollout.loop import collect
from roleagent.rollout.settings import settings_from_config
from tests.benchmarks.generation_case import EPISODES_A_TASK, Case
from tests.benchmarks.timing import spent
from tests.benchmarks.trl_generation import Rollout

EVERY, TASKS_A_STEP, RATE = 2, 8, 3e-4  # iterations between evaluations; tasks of an iteration; learning rate
HELDOUT, TEMPERATURE = 128, 0.4
RUN = "trl-success-ours"
FOLDER, TARGET = Path("build/success"), 0.7  # where `make bench` looks, and for which success
Row = dict[str, float]  # iteration, cpu (seconds so far, training alone), success (held out)


def first_reaching(rows: Sequence[Row], target: float) -> float | None:
    """CPU seconds at the first evaluation at or above the target; None if there is none."""
    return next((row["cpu"] for row in rows if row["success"] >= target), None)


def report(ours: Sequence[Row], theirs: Sequence[Row], target: float) -> dict[str, float]:
    """Return the seconds of both sides and their ratio; a side that has not reached the target is left out.

    While TRL has not, what it has spent so far gives an upper bound of the ratio.
    """
    here, there = first_reaching(ours, target), first_reaching(theirs, target)
    found = {"trl_success_target": target}
    if here is not None:
        found["success_cpu_seconds"] = here
    if there is not None:
        found["trl_success_cpu_seconds"] = there
    if here is not None and there is not None and there > 0:
        found["trl_time_to_success_ratio"] = here / there
    elif here is not None and theirs and theirs[-1]["cpu"] > 0:
        found["trl_time_to_success_ratio_at_most"] = here / theirs[-1]["cpu"]
    return found


def numbers() -> dict[str, float]:
    """For `make bench`: what the calls above have found so far, in `build/success`; nothing without them."""
    ours, theirs = (read_rows(FOLDER / name) for name in ("ours.json", "theirs.json"))
    return report(ours, theirs, TARGET) if ours else {}


def read_rows(path: Path) -> list[Row]:
    """Rows of an earlier call; none if there was none."""
    rows: list[Row] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    return rows


def write_rows(path: Path, rows: list[Row]) -> None:
    """Replace the file in one step: a call may be ended at any time."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    part.replace(path)
    sys.stdout.write(f"{rows[-1]}\n")
    sys.stdout.flush()


def train_ours(folder: Path, minutes: float) -> None:
    """Train with all phases of an iteration until the time is over."""
    os.environ["ROLEAGENT_HOME"] = str(folder / "home")
    changes = [
        "iterations=1000",
        f"learner.learning_rate={RATE}",
        "learner.learning_rate_end=1.0",
        f"evaluation.tasks={HELDOUT}",
        f"evaluation.final_tasks={HELDOUT}",
        f"evaluation.temperature={TEMPERATURE}",
    ]
    worker = runs.open_run(load_config("quickstart", changes), RUN).worker()
    start = runs.first_iteration(worker)
    path = folder / "ours.json"
    rows = [row for row in read_rows(path) if row["iteration"] < start]
    until = time.monotonic() + 60 * minutes
    with runs.running(worker):
        if start == 0:
            results = phases.prepare(worker)
            rows = [{"iteration": 0.0, "cpu": 0.0, "success": _success(results)}]
            write_rows(path, rows)
            phases.commit(worker, 0, results)
        for n in range(max(1, start), worker.config.iterations + 1):
            if time.monotonic() > until:
                return
            worker.learner(n - 1)  # loading is no part of an iteration
            drawn: list[Any] = []
            results = []
            took = spent(lambda n=n, drawn=drawn, results=results: _iteration(worker, n, drawn, results)).cpu  # type: ignore[misc]
            last = rows[-1]
            if n % EVERY == 0:
                results.append(phases.evaluate(worker, n, final=False))
            success = _success(results) if n % EVERY == 0 else last["success"]
            rows.append({"iteration": float(n), "cpu": last["cpu"] + took, "success": success})
            # The row before the commit: one whose iteration was not committed is dropped by the next call.
            write_rows(path, rows)
            phases.commit(worker, n, results, drawn)


def _iteration(worker: Worker, n: int, drawn: list[Any], results: list[phases.PhaseResult]) -> None:
    drawn.extend(phases.draw_tasks(worker, n))
    results.extend([phases.roll_out(worker, n, drawn), phases.validate_rollout(worker, n), phases.score(worker, n)])
    results.append(phases.diagnose(worker, n))
    results.append(phases.validate_diagnoses(worker, n))
    results.append(phases.reshape(worker, n))
    results.append(phases.update(worker, n))


def _success(results: Sequence[phases.PhaseResult]) -> float:
    return next(result.metrics["success/heldout"] for result in results if result.phase == "evaluation")


def train_theirs(folder: Path, minutes: float, keep: bool) -> None:
    """Train with GRPOTrainer until the time is over; its own checkpoints are what it goes on from."""
    from transformers.trainer_utils import get_last_checkpoint

    case = Case()
    rollout = Rollout(case, keep)
    path, place = folder / "theirs.json", folder / "trl"
    place.mkdir(parents=True, exist_ok=True)
    checkpoint = get_last_checkpoint(str(place))  # type: ignore[no-untyped-call]
    begun = int(checkpoint.rsplit("-", 1)[1]) // 2 if checkpoint else 0
    rows = [row for row in read_rows(path) if row["iteration"] <= begun]
    if not rows:
        rows = [{"iteration": 0.0, "cpu": 0.0, "success": evaluate(case)}]
        write_rows(path, rows)
    trainer = _trainer(case, rollout, place, rows, path, time.monotonic() + 60 * minutes)
    trainer.train(resume_from_checkpoint=checkpoint)


def _trainer(case: Case, rollout: Rollout, place: Path, rows: list[Row], path: Path, until: float) -> Any:
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    class Clock(TrainerCallback):
        """Counts the CPU time of optimiser steps, rollouts included, and evaluates outside of it."""

        began = 0.0
        cpu = rows[-1]["cpu"]

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.began = time.process_time()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.cpu += time.process_time() - self.began
            if state.global_step % (2 * EVERY):
                return
            control.should_save = True
            control.should_training_stop = time.monotonic() > until
            rows.append({"iteration": state.global_step / 2, "cpu": self.cpu, "success": evaluate(case)})
            write_rows(path, rows)

    tasks = [task.task_id for task in case.environment().tasks("train")]
    return GRPOTrainer(
        model=case.policy.model,
        reward_funcs=lambda completions, success, **_: success,
        args=GRPOConfig(
            output_dir=str(place),
            per_device_train_batch_size=TASKS_A_STEP * EPISODES_A_TASK // 2,
            steps_per_generation=2,
            num_generations=EPISODES_A_TASK,
            max_completion_length=case.settings.max_context,
            temperature=case.settings.temperature,
            learning_rate=RATE,
            lr_scheduler_type="constant",
            max_grad_norm=1.0,
            epsilon=0.2,
            epsilon_high=0.28,
            beta=0.0,
            loss_type="dapo",
            scale_rewards="none",
            max_steps=2000,
            save_strategy="no",
            save_total_limit=2,
            gradient_checkpointing=False,
            activation_checkpointing=False,
            use_cpu=True,
            bf16=False,
            report_to=[],
            logging_steps=1000,
        ),
        train_dataset=Dataset.from_dict({"prompt": tasks}),
        processing_class=case.policy.tokenizer.hf,
        rollout_func=rollout,
        callbacks=[Clock()],
    )


def evaluate(case: Case) -> float:
    """Held-out success of the case's model, played by our engine: the same on both sides."""
    config = load_config("quickstart")
    engine = make_engine(case.policy)
    played = collect(
        engine,
        case.policy.tokenizer,
        case.environment,
        [(task, 0) for task in case.environment().tasks("heldout")[:HELDOUT]],
        settings_from_config(config, temperature=TEMPERATURE, max_context=engine.max_context),
        iteration=0,
        policy_version=0,
        seed=config.seed,
        purpose="evaluation",
    )
    return sum(trajectory.success for trajectory in played) / len(played)


def main() -> None:
    """Train one side for a while, or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["ours", "theirs", "report"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--target", type=float, default=TARGET)
    parser.add_argument("--again", action="store_true", help="TRL reads the whole conversation again in every turn")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if arguments.what == "ours":
        train_ours(folder, arguments.minutes)
    elif arguments.what == "theirs":
        train_theirs(folder, arguments.minutes, keep=not arguments.again)
    else:
        found = report(read_rows(folder / "ours.json"), read_rows(folder / "theirs.json"), arguments.target)
        sys.stdout.write(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
