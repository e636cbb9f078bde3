"""An episode as spans: every prediction stands beside what happened."""

from __future__ import annotations

from roleagent.tracking.traces import episode_spans, trace_id
from roleagent.types import Diagnosis, DiagnosisStatus, Step, StopReason, Task, Trajectory


def step(index: int, **changes: object) -> Step:
    fields: dict[str, object] = {
        "index": index,
        "state": f"s{index}",
        "reasoning": "because",
        "action": f"a{index}",
        "predictions": (f"p{index}1", f"p{index}2"),
        "reward": 0.0,
        "valid_action": True,
        "malformed": False,
        "truncated": False,
        "context_ids": (1, 2),
        "generated_ids": (3,) * (10 * index),
        "logprobs": (0.0,) * (10 * index),
        "continues": index > 1,
    }
    return Step(**{**fields, **changes})  # type: ignore[arg-type]


def episode(**changes: object) -> Trajectory:
    fields: dict[str, object] = {
        "trajectory_id": "t1",
        "task": Task("home-1", "household", "pick", "train"),
        "goal": "put the mug on the desk",
        "iteration": 4,
        "policy_version": 3,
        "sample_index": 2,
        "steps": (step(1), step(2, valid_action=False)),
        "final_state": "s3",
        "success": False,
        "score": 0.0,
        "stop_reason": StopReason.MAX_STEPS,
    }
    return Trajectory(**{**fields, **changes})  # type: ignore[arg-type]


def test_spans_of_an_episode() -> None:
    root, *children = episode_spans(episode())
    assert (root.kind, root.start, root.end) == ("AGENT", 0, 10 + 1 + 20 + 1)
    assert [span.kind for span in children] == ["CHAT_MODEL", "TOOL", "CHAT_MODEL", "TOOL"]
    assert [(span.start, span.end) for span in children] == [(0, 10), (10, 11), (11, 31), (31, 32)]
    assert children[0].inputs == {"state": "s1"}
    assert children[0].outputs["predictions"] == [
        {"horizon": 1, "predicted": "p11", "happened": "s2"},
        {"horizon": 2, "predicted": "p12", "happened": "s3"},
    ]
    # The second prediction of the last step looks beyond the end of the episode.
    assert children[2].outputs["predictions"][1] == {"horizon": 2, "predicted": "p22", "happened": None}
    assert children[1].outputs == {"observation": "s2", "reward": 0.0, "valid_action": True}
    assert [span.ok for span in children] == [True, True, True, False]
    assert [span.name for span in children] == ["turn 1", "a1", "turn 2", "a2"]
    assert not root.ok  # the episode failed
    assert episode_spans(episode(success=True))[0].ok
    assert root.outputs["stop_reason"] == "max_steps"


def test_a_diagnosis_closes_the_trace() -> None:
    diagnosis = Diagnosis(
        "t1", "home-1", "household", "r", 4, 3, DiagnosisStatus.VALID, "loops", "why", 2, "how", "find it"
    )
    last = episode_spans(episode(), diagnosis)[-1]
    assert (last.kind, last.inputs, last.outputs["failure_type"]) == ("RETRIEVER", {"query": "find it"}, "loops")


def test_an_episode_without_steps_has_a_root() -> None:
    (root,) = episode_spans(episode(steps=(), final_state="s1"))
    assert root.inputs["first_state"] == "s1"
    assert root.end == 1


def test_trace_ids_are_those_of_run_and_episode() -> None:
    assert trace_id("r", "t") == trace_id("r", "t")
    assert len({trace_id("r", "t"), trace_id("r", "u"), trace_id("s", "t")}) == 3
