"""The phase that diagnoses: what the environment knows goes into the metrics and nowhere else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from roleagent.agent_in_world import diagnosis
from roleagent.agent_in_world.asking import Answer
from roleagent.agent_in_world.records import BankRecord
from roleagent.config import load_config
from roleagent.environments.base import Verdict
from roleagent.environments.household.demonstrations import demonstrate
from roleagent.environments.household.generator import task_id
from roleagent.environments.household.household import Household
from roleagent.loop import phases
from roleagent.types import Step, StopReason, Task, Trajectory


class Silent:
    """An environment without the hook."""

    name = "household"


class Knowing(Silent):
    """An environment that says the same of every episode."""

    def __init__(self, failure_type: str) -> None:
        self.verdict = Verdict(failure_type, 1, (1,), ("lenient",))

    def explain(self, task_id: str, actions: Sequence[str]) -> Verdict | None:
        return self.verdict


class CharacterTokenizer:
    """One token a character."""

    def opening(self, system: str | None, first_user: str) -> list[int]:
        return [ord(char) for char in first_user]


def episode(index: int) -> Trajectory:
    """A scripted failure as a rollout records it."""
    played = demonstrate(task_id("small", "train", index), 0, {"wrong receptacle": 1.0, "lamp not used": 1.0}, 12)
    steps = tuple(
        Step(t, one.state, one.reasoning, one.action, (), 0.0, one.valid, False, False, (), (), (), t > 1)
        for t, one in enumerate(played.steps, 1)
    )
    task = Task(played.task.task_id, "household", played.task.task_type, "train")
    final = played.steps[-1].next_state
    return Trajectory(f"1/{index}", task, played.goal, 1, 0, 0, steps, final, False, 0.0, StopReason.MAX_STEPS)


def run(environment: object, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run the phase over four failed episodes; return everything that it asked, stored, kept and measured."""
    seen: dict[str, Any] = {"prompts": [], "options": [], "stored": [], "kept": {}}

    def ask(engine: object, tokenizer: object, prompts: list[list[int]], **options: Any) -> list[Answer]:
        seen["prompts"].append(prompts)
        seen["options"].append(options)
        record = {"failure_type": "wrong receptacle", "root_cause": "It was put away.", "critical_step": 2}
        text = json.dumps({**record, "lesson": "Look again.", "retrieval_query": "wrong receptacle: put mug"})
        return [Answer(text, 1) for _ in prompts]

    def put(name: str, data: bytes) -> tuple[str, str]:
        seen["stored"].append((name, hashlib.sha256(data).hexdigest()))
        return seen["stored"][-1]  # type: ignore[no-any-return]

    monkeypatch.setattr(diagnosis, "ask", ask)
    played = [episode(index) for index in (0, 1, 2, 4)]
    worker = SimpleNamespace(
        config=load_config("smoke"),
        run_id="run",
        engine=lambda version: SimpleNamespace(max_context=20_000),
        policy_tokenizer=CharacterTokenizer(),
        trajectories=lambda n: played,
        environment=environment,
        writer=lambda n: SimpleNamespace(put=put),
        keep=lambda key, value: seen["kept"].__setitem__(key, value),
    )
    seen["metrics"] = phases.diagnose(worker, 1).metrics  # type: ignore[arg-type]
    seen["bank"] = [BankRecord.of(item) for item in seen["kept"]["diagnoses/1"]]
    return seen


@pytest.mark.parametrize(
    "environment",
    [Knowing("wrong receptacle"), Knowing("lamp not used"), Household("small")],
    ids=["right", "other", "real"],
)
def test_prompts_records_and_bank_do_not_depend_on_it(environment: object, monkeypatch: pytest.MonkeyPatch) -> None:
    blind, seeing = run(Silent(), monkeypatch), run(environment, monkeypatch)
    for what in ("prompts", "options", "stored", "kept", "bank"):
        assert seeing[what] == blind[what], what
    assert len(seeing["bank"]) == 4
    added = set(seeing["metrics"]) - set(blind["metrics"])
    assert {name.partition("/")[0] for name in added} == {"diagnosis", "engine_types"}
    assert {name: seeing["metrics"][name] for name in blind["metrics"]} == blind["metrics"]


def test_what_it_knows_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    right, other = (run(Knowing(name), monkeypatch)["metrics"] for name in ("wrong receptacle", "lamp not used"))
    assert (right["diagnosis/checked"], right["diagnosis/type_accuracy"]) == (4.0, 1.0)
    assert (other["diagnosis/checked"], other["diagnosis/type_accuracy"]) == (4.0, 0.0)
    assert (right["diagnosis/critical_step_accuracy"], right["diagnosis/critical_step_near"]) == (0.0, 1.0)
    assert right["engine_types/wrong receptacle"] == 4.0
    real = run(Household("small"), monkeypatch)["metrics"]
    assert real == run(Household("small"), monkeypatch)["metrics"]
    assert sum(value for name, value in real.items() if name.startswith("engine_types/")) == real["diagnosis/checked"]
