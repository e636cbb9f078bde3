"""The model, prompted as the environment, says why its episodes failed (the method, section 2, "Diagnosis").

Failed episodes are chosen by a seeded draw, diagnosed in one batch, and those answers that do not parse are asked for
once more with other random numbers. What still does not parse is quarantined with the model's own words.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from roleagent.agent_in_world.asking import ask
from roleagent.agent_in_world.parsing import Record, Rejection, parse_record
from roleagent.agent_in_world.prompts import diagnosis_prompt, episode_steps
from roleagent.seeding import derive, generator
from roleagent.types import Diagnosis, DiagnosisStatus, StopReason, Trajectory

if TYPE_CHECKING:
    from roleagent.config.models import AgentInWorldConfig
    from roleagent.policy.engines.base import Engine
    from roleagent.policy.tokens import PolicyTokenizer

MAX_ATTEMPTS = 2  #: the first answer and one retry
MAX_RAW = 4_000  #: characters of an answer that are kept

_FAULTS = {StopReason.ENVIRONMENT_ERROR, StopReason.ENVIRONMENT_TIMEOUT}
_SHORTEST_EPISODE = 80  # characters; below this an episode says nothing


class Selection(NamedTuple):
    """Failed episodes to diagnose, and how many were passed over, by reason.

    Reasons: `over_limit` (more than `max_per_task` of one task), `environment_fault` (the episode was ended by an error
    or time-out, which is no failure of the model), `no_steps` (nothing was done).
    """

    chosen: list[Trajectory]
    skipped: dict[str, int]


@dataclass(frozen=True, slots=True)
class DiagnosisBatch:
    """The diagnoses of one iteration, in the order of the selection.

    Metrics: `failed` (episodes without success), `diagnosed`, `skipped/<reason>`, `valid`, `quarantined`,
    `quarantined_share`, `retried`, `shortened` (prompts that did not fit as they were), `too_long` (those that did not
    fit at all), `prompt_tokens`, `generated_tokens` (sums, retries included) and `failure_types` (different labels).
    """

    diagnoses: tuple[Diagnosis, ...]
    metrics: Mapping[str, float]


@dataclass(slots=True)
class _Case:
    """One episode under diagnosis."""

    trajectory: Trajectory
    prompt: list[int] | None  # None: it does not fit into the context
    shortened: bool
    outcome: Record | Rejection
    raw: str = ""
    attempts: int = 0


def select_failures(trajectories: Sequence[Trajectory], max_per_task: int, seed: int, iteration: int) -> Selection:
    """Choose at most `max_per_task` failed episodes of each task by a seeded draw.

    The choice does not depend on the order of the trajectories; the result is ordered by task and sample.
    """
    by_task: dict[str, list[Trajectory]] = defaultdict(list)
    skipped = {"over_limit": 0, "environment_fault": 0, "no_steps": 0}
    for trajectory in trajectories:
        if trajectory.success:
            continue
        if trajectory.stop_reason in _FAULTS:
            skipped["environment_fault"] += 1
        elif not trajectory.steps:
            skipped["no_steps"] += 1
        else:
            by_task[trajectory.task.task_id].append(trajectory)
    chosen: list[Trajectory] = []
    for task_id, failures in sorted(by_task.items()):
        failures.sort(key=lambda item: (item.sample_index, item.trajectory_id))
        if len(failures) > max_per_task:
            rng = generator(seed, iteration, "diagnosis-choice", task_id)
            skipped["over_limit"] += len(failures) - max_per_task
            kept = sorted(rng.choice(len(failures), size=max_per_task, replace=False).tolist())
            failures = [failures[index] for index in kept]
        chosen += failures
    return Selection(chosen, skipped)


def diagnose(
    engine: Engine,
    tokenizer: PolicyTokenizer,
    trajectories: Sequence[Trajectory],
    *,
    config: AgentInWorldConfig,
    run_id: str,
    seed: int,
    iteration: int,
    instructions: bool,
    max_context: int,
) -> DiagnosisBatch:
    """Diagnose the failed episodes of an iteration with the policy that played them.

    Args:
        engine, tokenizer: the policy, in the environment role.
        trajectories: all episodes of the iteration, failed or not.
        config: reads `max_diagnoses_per_task`, `max_diagnosis_tokens`, `temperature`.
        run_id, iteration: name the records; with `seed` also every random draw.
        instructions: use the prompt for a model that was never trained on diagnoses.
        max_context: tokens that prompt and answer may have together.
    """
    selection = select_failures(trajectories, config.max_diagnoses_per_task, seed, iteration)
    room = max_context - config.max_diagnosis_tokens
    cases = [_open_case(tokenizer, trajectory, instructions, room) for trajectory in selection.chosen]
    prompt_tokens = generated_tokens = retried = 0
    for attempt in range(1, MAX_ATTEMPTS + 1):
        open_cases = [case for case in cases if case.prompt is not None and isinstance(case.outcome, Rejection)]
        if not open_cases:
            break
        retried += len(open_cases) if attempt > 1 else 0
        prompts = [case.prompt for case in open_cases if case.prompt is not None]
        seeds = [derive(seed, iteration, "diagnosis", case.trajectory.trajectory_id, attempt) for case in open_cases]
        answers = ask(
            engine,
            tokenizer,
            prompts,
            seeds=seeds,
            max_tokens=config.max_diagnosis_tokens,
            temperature=config.temperature,
        )
        prompt_tokens += sum(len(prompt) for prompt in prompts)
        generated_tokens += sum(answer.tokens for answer in answers)
        for case, answer in zip(open_cases, answers, strict=True):
            case.attempts = attempt
            case.raw = answer.text[:MAX_RAW]
            case.outcome = parse_record(answer.text, len(case.trajectory.steps))
    diagnoses = tuple(_close_case(case, run_id, iteration) for case in cases)
    valid = sum(item.status is DiagnosisStatus.VALID for item in diagnoses)
    metrics = {
        "failed": float(sum(not trajectory.success for trajectory in trajectories)),
        "diagnosed": float(len(diagnoses)),
        "valid": float(valid),
        "quarantined": float(len(diagnoses) - valid),
        "quarantined_share": (len(diagnoses) - valid) / len(diagnoses) if diagnoses else 0.0,
        "retried": float(retried),
        "shortened": float(sum(case.shortened for case in cases)),
        "too_long": float(sum(case.prompt is None for case in cases)),
        "prompt_tokens": float(prompt_tokens),
        "generated_tokens": float(generated_tokens),
        "failure_types": float(len({item.failure_type for item in diagnoses if item.failure_type})),
    }
    metrics |= {f"skipped/{reason}": float(count) for reason, count in selection.skipped.items()}
    return DiagnosisBatch(diagnoses, metrics)


def fit_prompt(
    tokenizer: PolicyTokenizer, trajectory: Trajectory, instructions: bool, room: int
) -> tuple[list[int] | None, bool]:
    """Return (prompt ids of at most `room` tokens, whether the episode had to be shortened).

    Steps in the middle go first; see :func:`~roleagent.agent_in_world.prompts.render_episode`. The ids are None when
    nothing useful fits.
    """
    steps = episode_steps(trajectory)

    def ids(max_chars: int | None) -> tuple[list[int], int]:
        text = diagnosis_prompt(trajectory.goal, steps, instructions=instructions, max_chars=max_chars)
        return tokenizer.opening(None, text), len(text)

    prompt, chars = ids(None)
    if len(prompt) <= room:
        return prompt, False
    frame = len(diagnosis_prompt("", [], instructions=instructions))
    # What fits is guessed from this text's own characters a token, then made smaller until it does.
    max_chars = int(chars * room / len(prompt)) - frame
    while max_chars >= _SHORTEST_EPISODE:
        prompt, _ = ids(max_chars)
        if len(prompt) <= room:
            return prompt, True
        max_chars = int(max_chars * 0.9)
    return None, True


def _open_case(tokenizer: PolicyTokenizer, trajectory: Trajectory, instructions: bool, room: int) -> _Case:
    prompt, shortened = fit_prompt(tokenizer, trajectory, instructions, room)
    reason = "no answer" if prompt is not None else "the episode does not fit into the context"
    return _Case(trajectory, prompt, shortened, Rejection(reason))


def _close_case(case: _Case, run_id: str, iteration: int) -> Diagnosis:
    trajectory = case.trajectory
    diagnosis = Diagnosis(
        trajectory_id=trajectory.trajectory_id,
        task_id=trajectory.task.task_id,
        environment=trajectory.task.environment,
        run_id=run_id,
        iteration=iteration,
        policy_version=trajectory.policy_version,
        status=DiagnosisStatus.QUARANTINED,
        raw=_storable(case.raw),
        attempts=case.attempts,
    )
    if isinstance(case.outcome, Rejection):
        return replace(diagnosis, error=case.outcome.reason)
    record = case.outcome
    return replace(
        diagnosis,
        status=DiagnosisStatus.VALID,
        failure_type=record.failure_type,
        root_cause=record.root_cause,
        critical_step=record.critical_step,
        lesson=record.lesson,
        retrieval_query=record.retrieval_query,
    )


def _storable(text: str) -> str:
    """Return the text without lone surrogates and null characters, which UTF-8 and some stores refuse."""
    return text.replace("\0", "").encode("utf-8", "replace").decode("utf-8")
