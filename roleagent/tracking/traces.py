"""Episodes as MLflow traces.

An episode is an AGENT span, in error when it failed. Each step has a CHAT_MODEL span (state -> reasoning, action,
predictions) and a TOOL span (action -> observation, reward), with every prediction beside what happened. A diagnosis is
a RETRIEVER span at the end (its query) and an assessment of the trace. Trace ids are hashes of (run, trajectory): a
repeat finds the trace and writes nothing.

An episode's record keeps no clock, so a trace's time axis counts tokens: 1 ms a generated token for the model's
spans, 1 ms for the environment's.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from roleagent.types import Diagnosis, DiagnosisStatus, Step, Trajectory

if TYPE_CHECKING:
    from mlflow.entities import Span
    from mlflow.entities.trace_info import TraceInfo

_MILLISECOND = 1_000_000
_PREVIEW = 300
_NAME = 60


@dataclass(frozen=True, slots=True)
class SpanRecord:
    """One span, before it becomes MLflow's."""

    name: str
    kind: str  #: MLflow span type
    parent: int | None  #: index in the list of spans; None for the root
    start: int  #: ticks of 1 ms from the trace's start
    end: int
    inputs: dict[str, Any]
    outputs: dict[str, Any]
    attributes: dict[str, Any] = field(default_factory=dict)
    ok: bool = True


def episode_spans(trajectory: Trajectory, diagnosis: Diagnosis | None = None) -> list[SpanRecord]:
    """Lay an episode out as spans; the root comes first, its end is the last child's."""
    children: list[SpanRecord] = []
    clock = 0
    states = trajectory.states
    for step in trajectory.steps:
        tokens = max(1, len(step.generated_ids))
        children.append(_model_span(step, states, clock, clock + tokens))
        clock += tokens
        children.append(_environment_span(step, states[step.index], clock, clock + 1))
        clock += 1
    if diagnosis is not None:
        children.append(_diagnosis_span(diagnosis, clock, clock + 1))
        clock += 1
    root = SpanRecord(
        name=trajectory.task.task_id,
        kind="AGENT",
        parent=None,
        start=0,
        end=max(1, clock),
        inputs={"goal": trajectory.goal, "first_state": states[0]},
        outputs={
            "success": trajectory.success,
            "score": trajectory.score,
            "stop_reason": trajectory.stop_reason.value,
            "steps": len(trajectory.steps),
            "final_state": trajectory.final_state,
        },
        attributes={
            "task_type": trajectory.task.task_type,
            "split": trajectory.task.split,
            "iteration": trajectory.iteration,
            "policy_version": trajectory.policy_version,
            "sample_index": trajectory.sample_index,
            "clock": "1 ms a generated token",
        },
        ok=trajectory.success,
    )
    return [root, *children]


def _model_span(step: Step, states: tuple[str, ...], start: int, end: int) -> SpanRecord:
    compared = [
        {
            "horizon": h,
            "predicted": text,
            "happened": states[step.index + h - 1] if step.index + h <= len(states) else None,
        }
        for h, text in enumerate(step.predictions, start=1)
    ]
    return SpanRecord(
        name=f"turn {step.index}",
        kind="CHAT_MODEL",
        parent=0,
        start=start,
        end=end,
        inputs={"state": step.state},
        outputs={"reasoning": step.reasoning, "action": step.action, "predictions": compared},
        attributes={
            "malformed": step.malformed,
            "truncated": step.truncated,
            "mlflow.chat.tokenUsage": {
                "input_tokens": len(step.context_ids),
                "output_tokens": len(step.generated_ids),
                "total_tokens": len(step.context_ids) + len(step.generated_ids),
            },
        },
        ok=not step.malformed,
    )


def _environment_span(step: Step, after: str, start: int, end: int) -> SpanRecord:
    return SpanRecord(
        name=step.action.strip()[:_NAME] or "no action",
        kind="TOOL",
        parent=0,
        start=start,
        end=end,
        inputs={"action": step.action},
        outputs={"observation": after, "reward": step.reward, "valid_action": step.valid_action},
        ok=step.valid_action,
    )


def _diagnosis_span(diagnosis: Diagnosis, start: int, end: int) -> SpanRecord:
    return SpanRecord(
        name="diagnosis",
        kind="RETRIEVER",
        parent=0,
        start=start,
        end=end,
        inputs={"query": diagnosis.retrieval_query},
        outputs={
            "failure_type": diagnosis.failure_type,
            "root_cause": diagnosis.root_cause,
            "critical_step": diagnosis.critical_step,
            "lesson": diagnosis.lesson,
        },
        attributes={"status": diagnosis.status.value, "attempts": diagnosis.attempts, "error": diagnosis.error},
        ok=diagnosis.status is DiagnosisStatus.VALID,
    )


def trace_id(run_id: str, trajectory_id: str) -> str:
    """The trace of an episode: a hash, so that it is written once."""
    return "tr-" + hashlib.blake2b(f"{run_id}\n{trajectory_id}".encode(), digest_size=16).hexdigest()


def to_mlflow(
    identifier: str,
    spans: list[SpanRecord],
    trajectory: Trajectory,
    diagnosis: Diagnosis | None,
    *,
    experiment_id: str,
    mlflow_run_id: str,
    started_ms: int,
) -> tuple[TraceInfo, list[Span]]:
    """Build MLflow's entities of one trace; `started_ms` is milliseconds since the epoch."""
    from mlflow.entities.trace_info import TraceInfo
    from mlflow.entities.trace_location import TraceLocation
    from mlflow.entities.trace_state import TraceState

    outcome = "success" if trajectory.success else trajectory.stop_reason.value
    info = TraceInfo(
        trace_id=identifier,
        trace_location=TraceLocation.from_experiment_id(experiment_id),
        request_time=started_ms,
        state=TraceState.OK if trajectory.success else TraceState.ERROR,
        request_preview=trajectory.goal[:_PREVIEW],
        response_preview=f"{outcome} after {len(trajectory.steps)} steps",
        execution_duration=spans[0].end,
        trace_metadata={
            "mlflow.sourceRun": mlflow_run_id,
            "mlflow.trace.session": f"iteration {trajectory.iteration}",
            "mlflow.traceInputs": json.dumps(spans[0].inputs, ensure_ascii=False)[:_PREVIEW],
            "mlflow.traceOutputs": json.dumps(spans[0].outputs, ensure_ascii=False)[:_PREVIEW],
        },
        tags={
            "mlflow.traceName": trajectory.task.task_id,
            "roleagent.trajectory_id": trajectory.trajectory_id,
            "roleagent.iteration": str(trajectory.iteration),
            "roleagent.success": str(trajectory.success).lower(),
            "roleagent.task_type": trajectory.task.task_type,
        },
        assessments=_assessments(identifier, trajectory, diagnosis, started_ms),
    )
    return info, _mlflow_spans(identifier, spans, experiment_id, started_ms)


def _mlflow_spans(identifier: str, spans: list[SpanRecord], experiment_id: str, started_ms: int) -> list[Span]:
    from mlflow.entities import Span

    digest = identifier.removeprefix("tr-")
    ids = [hashlib.blake2b(f"{digest}{n}".encode(), digest_size=8).hexdigest() for n in range(len(spans))]
    built = []
    for n, span in enumerate(spans):
        attributes = {
            "mlflow.traceRequestId": identifier,
            "mlflow.experimentId": experiment_id,
            "mlflow.spanType": span.kind,
            "mlflow.spanInputs": span.inputs,
            "mlflow.spanOutputs": span.outputs,
            **span.attributes,
        }
        built.append(
            Span.from_dict(
                {
                    "trace_id": _base64(digest),
                    "span_id": _base64(ids[n]),
                    "parent_span_id": None if span.parent is None else _base64(ids[span.parent]),
                    "name": span.name,
                    "start_time_unix_nano": (started_ms + span.start) * _MILLISECOND,
                    "end_time_unix_nano": (started_ms + span.end) * _MILLISECOND,
                    "events": [],
                    "status": {"code": "STATUS_CODE_OK" if span.ok else "STATUS_CODE_ERROR", "message": ""},
                    "attributes": {key: json.dumps(value, ensure_ascii=False) for key, value in attributes.items()},
                }
            )
        )
    return built


def _base64(hexadecimal: str) -> str:
    return base64.b64encode(bytes.fromhex(hexadecimal)).decode()


def _assessments(identifier: str, trajectory: Trajectory, diagnosis: Diagnosis | None, time_ms: int) -> list[Any]:
    from mlflow.entities import AssessmentSource, Feedback

    code = AssessmentSource(source_type="CODE", source_id="environment")
    stamp: dict[str, Any] = {"create_time_ms": time_ms, "last_update_time_ms": time_ms, "trace_id": identifier}
    found = [Feedback(name="success", value=trajectory.success, source=code, **stamp)]
    if diagnosis is not None and diagnosis.status is DiagnosisStatus.VALID:
        judge = AssessmentSource(source_type="LLM_JUDGE", source_id="agent-in-world")
        found.append(
            Feedback(
                name="failure_type",
                value=diagnosis.failure_type,
                rationale=diagnosis.root_cause,
                source=judge,
                **stamp,
            )
        )
    return found
