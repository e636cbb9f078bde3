"""How often diagnoses agree with what the environment knows, by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from roleagent.agent_in_world.accuracy import agreement, verdicts
from roleagent.environments.base import Verdict
from roleagent.types import Diagnosis, DiagnosisStatus, Step, StopReason, Task, Trajectory


def diagnosis(name: str, failure_type: str, critical_step: int) -> Diagnosis:
    return Diagnosis(
        trajectory_id=name,
        task_id=f"task of {name}",
        environment="toy",
        run_id="run",
        iteration=1,
        policy_version=0,
        status=DiagnosisStatus.VALID,
        failure_type=failure_type,
        critical_step=critical_step,
    )


def trajectory(name: str, actions: Sequence[str]) -> Trajectory:
    steps = tuple(
        Step(t, "s", "", action, (), 0.0, True, False, False, (), (), (), t > 1) for t, action in enumerate(actions, 1)
    )
    task = Task(f"task of {name}", "toy", "toy", "train")
    return Trajectory(name, task, "goal", 1, 0, 0, steps, "end", False, 0.0, StopReason.MAX_STEPS)


class Knowing:
    """Says that an episode went wrong at its last step; one without "lose" was won."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def explain(self, task_id: str, actions: Sequence[str]) -> Verdict | None:
        self.asked.append(task_id)
        return Verdict("lost", len(actions), (len(actions),)) if "lose" in actions else None


def test_shares_by_hand() -> None:
    found = [
        diagnosis("a", "Wrong  Object", 4),  # type after normalising, step exact
        diagnosis("b", "wrong object", 5),  # a type that holds as well, step near
        diagnosis("c", "wrong object", 9),  # another type, another step that is acceptable
        diagnosis("d", "lamp not used", 1),  # nothing
        diagnosis("e", "lamp not used", 1),  # the environment has no type for it
        diagnosis("f", "lamp not used", 1),  # the environment says nothing of it
    ]
    quarantined = replace(diagnosis("g", "", 0), status=DiagnosisStatus.QUARANTINED)
    known = {
        "a": Verdict("wrong object", 4, (4,)),
        "b": Verdict("missing treatment", 6, (6, 8), ("wrong object",)),
        "c": Verdict("missing treatment", 2, (2, 9)),
        "d": Verdict("invalid action", 7, (7,)),
        "e": Verdict("", 1, (1,)),
        "g": Verdict("invalid action", 7, (7,)),
    }
    assert agreement([*found, quarantined], known) == {
        "diagnosis/checked": 4.0,
        "diagnosis/unexplained": 1.0,
        "diagnosis/type_accuracy": 0.25,
        "diagnosis/type_accuracy_lenient": 0.5,
        "diagnosis/critical_step_accuracy": 0.25,
        "diagnosis/critical_step_near": 0.5,
        "diagnosis/critical_step_lenient": 0.5,
        "engine_types/invalid action": 1.0,
        "engine_types/missing treatment": 2.0,
        "engine_types/wrong object": 1.0,
    }


def test_without_anything_to_compare_there_are_no_shares() -> None:
    one = diagnosis("a", "lost", 1)
    assert agreement([one], {}) == {}
    assert agreement([], {"a": Verdict("lost", 1, (1,))}) == {}
    assert agreement([one], {"a": Verdict("", 1, (1,))}) == {"diagnosis/checked": 0.0, "diagnosis/unexplained": 1.0}


def test_only_valid_diagnoses_of_lost_episodes_are_asked_about() -> None:
    environment = Knowing()
    played = [trajectory(name, actions) for name, actions in (("a", ["go", "lose"]), ("b", ["win"]), ("c", ["lose"]))]
    played += [trajectory("d", []), trajectory("e", ["lose"])]
    made = [diagnosis(name, "lost", 1) for name in "abd"]
    made.append(replace(diagnosis("c", "", 0), status=DiagnosisStatus.QUARANTINED))
    assert verdicts(environment, played, made) == {"a": Verdict("lost", 2, (2,))}
    assert environment.asked == ["task of a", "task of b"]


@pytest.mark.parametrize("environment", [object(), None])
def test_an_environment_that_knows_nothing(environment: object) -> None:
    assert verdicts(environment, [trajectory("a", ["lose"])], [diagnosis("a", "lost", 1)]) == {}
