"""What flows between the rooms: frozen records that every room shares and that import no other room.

Notation follows the paper: a trajectory has steps t = 1..T and T+1 states s_1..s_{T+1}; after choosing action
a_t the model predicts the next H states. Token ids are those that the sampler produced; they are never made
again from text.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Split = Literal["train", "heldout"]


class StopReason(StrEnum):
    """Why an episode ended."""

    SUCCESS = "success"  #: the environment reported success
    FAILURE = "failure"  #: the environment ended the episode without success
    MAX_STEPS = "max_steps"  #: the step limit was reached
    CONTEXT_FULL = "context_full"  #: the next observation and turn would not fit into the model's context
    MALFORMED = "malformed"  #: too many turns without a readable action, one after another
    ENVIRONMENT_TIMEOUT = "environment_timeout"  #: the environment did not answer in time
    ENVIRONMENT_ERROR = "environment_error"  #: the environment raised an error


class DiagnosisStatus(StrEnum):
    """What became of a diagnosis."""

    VALID = "valid"  #: parsed and validated: stored in the bank and used for retrieval
    QUARANTINED = "quarantined"  #: did not parse after a retry: kept with its raw text, never retrieved


@dataclass(frozen=True, slots=True)
class Task:
    """One solvable problem. `task_id` alone decides what is played."""

    task_id: str
    environment: str
    task_type: str
    split: Split


@dataclass(frozen=True, slots=True)
class Step:
    """Step t of a trajectory: the model saw `state`, thought, acted, predicted; the environment paid `reward`.

    The step's tokens are `context_ids` (what was put before the model since its last turn: mask 0) followed by
    `generated_ids` (what the model sampled: mask 1). If `continues` is true they extend the sequence of the
    step before; if not, they begin a sequence of their own (step-independent prompts).
    """

    index: int  #: t, from 1
    state: str  #: s_t, the observation alone: no history, no step counter
    reasoning: str
    action: str  #: the text sent to the environment; "" when the turn was malformed
    predictions: tuple[str, ...]  #: one a horizon, H in all; "" where missing or unparsable
    reward: float  #: r_t as the environment paid it
    valid_action: bool  #: the environment understood the action and it was possible
    malformed: bool  #: no action could be read from the turn
    truncated: bool  #: the turn hit its token limit
    context_ids: tuple[int, ...]
    generated_ids: tuple[int, ...]
    logprobs: tuple[float, ...]  #: log-probability of each generated id under the sampling distribution
    continues: bool


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One episode of one task. All episodes of a task in one iteration form its group."""

    trajectory_id: str
    task: Task
    goal: str  #: the instruction, as the environment words it
    iteration: int
    policy_version: int
    sample_index: int  #: 0..N-1 within the group
    steps: tuple[Step, ...]
    final_state: str  #: s_{T+1}
    success: bool
    score: float  #: R_E, the environment's outcome: 1/0, or its score
    stop_reason: StopReason

    @property
    def states(self) -> tuple[str, ...]:
        """s_1 .. s_{T+1}."""
        return (*(step.state for step in self.steps), self.final_state)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What the model, prompted as the environment, says of a failed trajectory (Agent-In-World)."""

    trajectory_id: str
    task_id: str
    environment: str
    run_id: str
    iteration: int
    policy_version: int
    status: DiagnosisStatus
    failure_type: str = ""
    root_cause: str = ""
    critical_step: int = 0  #: 1..T, where the failure became irreversible; 0 when quarantined
    lesson: str = ""
    retrieval_query: str = ""
    raw: str = ""  #: the model's own words
    attempts: int = 1
    error: str = ""  #: why it was quarantined

    @property
    def record_id(self) -> str:
        """Content hash of (run, iteration, trajectory): writing the same record twice changes nothing."""
        text = f"{self.run_id}\n{self.iteration}\n{self.trajectory_id}"
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class DrawnTask:
    """A task drawn for an iteration, and why."""

    task: Task
    source: Literal["uniform", "relevance"]  #: which part of the mixture drew it
    probability: float  #: p of the task in the distribution at the time of the draw


@dataclass(frozen=True, slots=True)
class ValuePoint:
    """Where the value head reads the state of one step, and what it is taught there."""

    position: int  #: index of the last token before the turn: its hidden state has seen the state and no action
    old: float = 0.0  #: V(s_t) when the advantages were made
    target: float = 0.0  #: R_t that V(s_t) is moved towards


@dataclass(frozen=True, slots=True)
class TrainingSequence:
    """One token sequence with a weight a token: all that the learner knows of an episode.

    All arrays have the sequence's length L. `advantages` and `old_logprobs` are 0 where `mask` is 0.
    """

    ids: tuple[int, ...]
    mask: tuple[bool, ...]  #: the model generated this token
    advantages: tuple[float, ...]
    old_logprobs: tuple[float, ...]
    trajectory_id: str = ""
    values: tuple[ValuePoint, ...] = ()  #: one a step, for an estimator that needs V(s_t)
    group: str = ""  #: its task: the advantages of sequences with the same one were made together
