"""How often diagnoses agree with the engine, and how often the engine agrees with the labels of scripted failures.

The policy plays held-out homes and, in its environment role, diagnoses those that it lost; its diagnoses are compared
with the engine's account of the same episodes. It also diagnoses scripted failures of held-out homes, which have a
label. Last, the engine's account of scripted failures is compared with their labels, in homes and in real games.

    python -m tests.benchmarks.diagnosis_accuracy                  everything, about a CPU minute, with tables
    python -m tests.benchmarks.diagnosis_accuracy --homes 500      more homes
    python -m tests.benchmarks.diagnosis_accuracy --model FOLDER   another policy
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from roleagent.agent_in_world.accuracy import agreement, verdicts
from roleagent.agent_in_world.diagnosis import diagnose
from roleagent.config import load_config
from roleagent.environments.alfworld import demonstrations as alfworld
from roleagent.environments.alfworld.alfworld import AlfWorld
from roleagent.environments.alfworld.games import training_games
from roleagent.environments.base import Explains, Verdict
from roleagent.environments.household.demonstrations import DEFAULT_HABITS, Demonstration, demonstrate
from roleagent.environments.household.generator import task_id
from roleagent.environments.household.household import Household
from roleagent.environments.registry import make_environment
from roleagent.policy.engines.factory import make_engine
from roleagent.policy.model import load_policy
from roleagent.rollout.loop import collect
from roleagent.rollout.settings import settings_from_config
from roleagent.types import Diagnosis, Step, StopReason, Trajectory
from tests.differential.games import DATA

HOMES = 100
SCRIPTED = 120  #: scripted failures that the policy diagnoses
FAILURES = 2000  #: scripted failures in homes on which engine and labels are compared
GAMES = 500  #: real games in which the demonstrator plays for the same
SEED = 1

Confusion = Counter[tuple[str, str]]


def numbers() -> dict[str, float]:
    """Everything by the default policy; docs/diagnosis-accuracy.md says what each number is."""
    found = {f"diagnosis_{name}": value for name, value in policy_accuracy(HOMES)[0].items()}
    return found | label_agreement(FAILURES)[0]


def policy_accuracy(homes: int, model: str = "roleagent:quickstart") -> tuple[dict[str, float], Confusion, Confusion]:
    """Return the shares, and counts of (engine's or label's type, model's type) for played and scripted failures."""
    config = load_config("quickstart", [f"policy.model={model}"])
    policy = load_policy(config.policy.model, dtype=config.policy.dtype)
    engine = make_engine(policy)
    options = config.environment.options
    environment = make_environment(config.environment.name, **{**options, "heldout_tasks": max(homes, SCRIPTED)})
    played = collect(
        engine,
        policy.tokenizer,
        lambda: make_environment(config.environment.name, **{**options, "heldout_tasks": max(homes, SCRIPTED)}),
        [(task, 0) for task in environment.tasks("heldout")[:homes]],
        settings_from_config(config, max_context=engine.max_context),
        iteration=0,
        policy_version=0,
        seed=SEED,
        purpose="diagnosis accuracy",
    )

    def diagnosed(trajectories: Sequence[Trajectory]) -> list[Diagnosis]:
        batch = diagnose(
            engine,
            policy.tokenizer,
            trajectories,
            config=config.agent_in_world,
            run_id="diagnosis accuracy",
            seed=SEED,
            iteration=0,
            instructions=config.policy.instructions,
            max_context=min(config.policy.max_context, engine.max_context),
        )
        return list(batch.diagnoses)

    made = diagnosed(played)
    known = verdicts(environment, played, made)
    found = {name.removeprefix("diagnosis/"): value for name, value in agreement(made, known).items()}
    found = {name: value for name, value in found.items() if "/" not in name}
    found["parse_share"] = sum(bool(item.failure_type) for item in made) / max(1, len(made))
    found["lost"] = float(sum(not trajectory.success for trajectory in played))
    scripted = list(islice(scripted_failures("heldout", config.environment.max_steps), SCRIPTED))
    truth = ((one.task.task_id, one.label) for one in scripted)
    labels = {name: Verdict(label.failure_type, label.critical_step, ()) for name, label in truth if label}
    again = diagnosed([as_trajectory(one) for one in scripted])
    on_labels = agreement(again, labels)
    found |= {
        "scripted_type_accuracy": on_labels["diagnosis/type_accuracy"],
        "scripted_critical_step_accuracy": on_labels["diagnosis/critical_step_accuracy"],
        "scripted_parse_share": sum(bool(item.failure_type) for item in again) / len(again),
    }
    return found, confusion(made, known), confusion(again, labels)


def confusion(diagnoses: Sequence[Diagnosis], known: dict[str, Verdict]) -> Confusion:
    """Count (true type, model's type) of valid diagnoses."""
    pairs = ((known.get(item.trajectory_id), item.failure_type) for item in diagnoses if item.failure_type)
    return Counter((verdict.failure_type, named) for verdict, named in pairs if verdict is not None)


def as_trajectory(one: Demonstration) -> Trajectory:
    """Return a scripted failure as a rollout would record it; its id is the task's."""
    steps = tuple(
        Step(t, step.state, step.reasoning, step.action, (), 0.0, step.valid, False, False, (), (), (), t > 1)
        for t, step in enumerate(one.steps, 1)
    )
    name, final = one.task.task_id, one.steps[-1].next_state
    return Trajectory(name, one.task, one.goal, 0, 0, 0, steps, final, False, 0.0, StopReason.MAX_STEPS)


def scripted_failures(space: str, max_steps: int) -> Iterator[Demonstration]:
    """Yield the scripted failures in homes of an id space, one home after the other."""
    index = 0
    while True:
        one = demonstrate(task_id("small", space, index), index, DEFAULT_HABITS, max_steps)
        if one.label is not None:
            yield one
        index += 1


def real_failures(games: int) -> Iterator[Demonstration]:
    """Yield the scripted failures in real training games, three attempts a game; none where there are no games."""
    if not (DATA / "games_train.jsonl.xz").is_file():
        return
    tasks = training_games(str(DATA))
    for task in tasks[:: max(1, len(tasks) // games)][:games]:
        for seed in range(3):
            one = alfworld.demonstrate(task, seed, DEFAULT_HABITS, folder=str(DATA))
            if one.label is not None:
                yield one


def label_agreement(failures: int) -> tuple[dict[str, float], Confusion, Confusion]:
    """Return the engine's agreement with labels, and (label, engine's type) counts for homes and for real games."""
    found: dict[str, float] = {}
    tables: list[Confusion] = []
    for name, environment, labelled in (
        ("engine", Household("small"), islice(scripted_failures("pretrain", 20), failures)),
        ("engine_alfworld", AlfWorld(folder=str(DATA)), real_failures(GAMES)),
    ):
        shares, table = compared(environment, labelled)
        found |= {f"{name}_{key}": value for key, value in shares.items()}
        tables.append(table)
    return found, tables[0], tables[1]


def compared(environment: Explains, labelled: Iterable[Demonstration]) -> tuple[dict[str, float], Confusion]:
    """Return the shares of labels that the environment's verdicts equal, and (label, verdict) counts."""
    hits: Counter[str] = Counter()
    table: Confusion = Counter()
    seconds = 0.0
    for one in labelled:
        actions = [step.action for step in one.steps]
        began = time.process_time()
        verdict, label = environment.explain(one.task.task_id, actions), one.label
        seconds += time.process_time() - began
        assert verdict is not None
        assert label is not None
        hits["failures"] += 1
        hits["type_agreement"] += verdict.failure_type == label.failure_type
        hits["type_agreement_lenient"] += label.failure_type in (verdict.failure_type, *verdict.also)
        hits["step_agreement"] += verdict.critical_step == label.critical_step
        table[label.failure_type, verdict.failure_type] += 1
    total = hits.pop("failures")
    if not total:
        return {}, table
    shares = {name: count / total for name, count in hits.items()}
    return {"failures": float(total), "explain_us": 1e6 * seconds / total, **shares}, table


def tabulate(title: str, table: Confusion) -> str:
    """Return a confusion table as text: a line for each pair, the most frequent first, agreement marked."""
    lines = [f"{title}\n"]
    for (truth, named), count in sorted(table.items(), key=lambda item: (-item[1], item[0])):
        lines.append(f"  {count:5d}  {truth or '(none)':<26} {'=' if truth == named else named}\n")
    return "".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--homes", type=int, default=HOMES, help="held-out homes that the policy plays")
    parser.add_argument("--model", default="roleagent:quickstart", help="the policy: a folder or a model id")
    parser.add_argument("--failures", type=int, default=FAILURES, help="scripted failures for engine and labels")
    chosen = parser.parse_args()
    shares, played, scripted = policy_accuracy(chosen.homes, chosen.model)
    engine, homes, games = label_agreement(chosen.failures)
    for name, value in {**{f"diagnosis_{name}": value for name, value in shares.items()}, **engine}.items():
        sys.stdout.write(f"{name:<44} {value:10.4f}\n")
    sys.stdout.write(tabulate("played homes: engine, model", played))
    sys.stdout.write(tabulate("scripted failures: label, model", scripted))
    sys.stdout.write(tabulate("scripted failures in homes: label, engine", homes))
    sys.stdout.write(tabulate("scripted failures in real games: label, engine", games))


if __name__ == "__main__":
    main()
