"""One episode's bookkeeping: turns in, steps out, and the decision whether it goes on. No model, no threads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from roleagent.rollout.context import MALFORMED_REPLY, clean_text, history_ids, opening_ids, step_ids
from roleagent.types import Step, StopReason, Task, Trajectory

if TYPE_CHECKING:
    from roleagent.environments.base import Observation, Outcome
    from roleagent.policy.turns import ParsedTurn
    from roleagent.rollout.context import ChatTokenizer
    from roleagent.rollout.settings import RolloutSettings

#: s_{T+1} of an episode whose environment failed: what it would have been is unknown.
FAULT_STATES = {
    StopReason.ENVIRONMENT_TIMEOUT: "The environment did not answer in time.",
    StopReason.ENVIRONMENT_ERROR: "The environment failed.",
}


@dataclass(frozen=True, slots=True)
class Reply:
    """What a step of the environment gave, checked: texts can be encoded, numbers are finite."""

    observation: str
    reward: float
    done: bool
    success: bool
    score: float
    valid: bool
    actions: tuple[str, ...] = ()  #: possible now; only read for a template that tells them


@dataclass(frozen=True, slots=True)
class Turn:
    """A finished turn: what was sampled, and what was read from it."""

    parsed: ParsedTurn
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    ended: bool  #: the model closed the turn itself
    truncated: bool  #: the turn hit its token limit


def read_actions(observation: Observation) -> tuple[str, ...]:
    """Return the actions that an environment lists, as clean texts."""
    return tuple(clean_text(action) for action in observation.admissible)


def read_outcome(outcome: Outcome, listed: bool = False) -> Reply:
    """Check what an environment returned. With `listed` its list of possible actions is read as well: it costs time.

    Raises TypeError or ValueError when it is not an outcome: the environment broke its contract, and a reward that
    is not finite would spoil the whole update.
    """
    reward, score = float(outcome.reward), float(outcome.score)
    if not (math.isfinite(reward) and math.isfinite(score)):
        raise ValueError(f"reward {reward} or score {score} is not finite")
    observation = clean_text(outcome.observation.text)
    actions = read_actions(outcome.observation) if listed else ()
    return Reply(observation, reward, bool(outcome.done), bool(outcome.success), score, bool(outcome.valid), actions)


class Episode:
    """An episode that is being played. After `begin`, `finish_turn` and `settle` alternate until a reason to stop."""

    def __init__(
        self, task: Task, sample_index: int, settings: RolloutSettings, tokenizer: ChatTokenizer, system: str | None
    ) -> None:
        self.task = task
        self.sample_index = sample_index
        self._settings = settings
        self._tokenizer = tokenizer
        self._system = system
        self._goal = ""
        self._state = ""
        self._actions: tuple[str, ...] = ()
        self._steps: list[Step] = []
        self._seen: list[tuple[str, str]] = []
        self._malformed_run = 0
        self._success = False
        self._score = 0.0
        self._turn: Turn | None = None
        self._length = 0  # tokens of the present sequence
        self._stop: StopReason | None = None
        self.context: list[int] = []  #: ids that go before the model's next turn
        self.continues = False  #: they extend the sequence of the step before

    def begin(self, goal: str, observation: str, actions: tuple[str, ...] = ()) -> StopReason | None:
        """Take over the environment's first words (clean texts); return a reason to stop when even they do not fit."""
        self._goal, self._state, self._actions = goal, observation, actions
        return self._prepare(opening_ids(self._tokenizer, self._system, goal, observation, actions), continues=False)

    def finish_turn(self, turn: Turn) -> None:
        """Take over the model's turn. Its effect is told by `settle` or `fail`."""
        self._turn = turn
        self._length += len(turn.ids)

    def settle(self, reply: Reply | None) -> StopReason | None:
        """Finish the step with the environment's reply (None: the turn was malformed, nobody was asked).

        Returns the reason to stop, or None after the next context was prepared.
        """
        turn = self._record(reply)
        if reply is None:
            self._malformed_run += 1
            self._state = MALFORMED_REPLY
        else:
            self._malformed_run = 0
            self._state, self._actions = reply.observation, reply.actions
            self._success, self._score = reply.success, reply.score
            if reply.done:
                return self._end(StopReason.SUCCESS if reply.success else StopReason.FAILURE)
        if self._malformed_run >= self._settings.max_malformed:
            return self._end(StopReason.MALFORMED)
        if len(self._steps) >= self._settings.max_steps:
            return self._end(StopReason.MAX_STEPS)
        if self._settings.context != "history":
            ids = step_ids(
                self._tokenizer,
                self._system,
                self._goal,
                self._seen,
                self._state,
                self._settings.window,
                self._actions,
            )
            return self._prepare(ids, continues=False)
        return self._prepare(history_ids(self._tokenizer, self._state, turn.ended), continues=True)

    def fail(self, reason: StopReason) -> StopReason:
        """End the episode: the environment gave no answer, to the reset or to the last action."""
        if self._turn is not None:
            self._record(None)
        self._state = FAULT_STATES[reason]
        return self._end(reason)

    def trajectory(self, trajectory_id: str, iteration: int, policy_version: int) -> Trajectory:
        """Return the record of an episode that has ended."""
        if self._stop is None:
            raise RuntimeError("the episode has not ended")
        return Trajectory(
            trajectory_id=trajectory_id,
            task=self.task,
            goal=self._goal,
            iteration=iteration,
            policy_version=policy_version,
            sample_index=self.sample_index,
            steps=tuple(self._steps),
            final_state=self._state,
            success=self._success,
            score=self._score,
            stop_reason=self._stop,
        )

    def _record(self, reply: Reply | None) -> Turn:
        turn = self._turn
        if turn is None:
            raise RuntimeError("no turn to settle")
        parsed = turn.parsed
        self._steps.append(
            Step(
                index=len(self._steps) + 1,
                state=self._state,
                reasoning=parsed.reasoning,
                action=parsed.action,
                # The world does not move on a malformed turn, so there is no next state to predict.
                predictions=("",) * len(parsed.predictions) if parsed.malformed else parsed.predictions,
                reward=0.0 if reply is None else reply.reward,
                valid_action=reply is not None and reply.valid,
                malformed=parsed.malformed,
                truncated=turn.truncated,
                context_ids=tuple(self.context),
                generated_ids=turn.ids,
                logprobs=turn.logprobs,
                continues=self.continues,
            )
        )
        self._seen.append((self._state, parsed.action))
        self._turn = None
        return turn

    def _prepare(self, ids: Sequence[int], *, continues: bool) -> StopReason | None:
        length = len(ids) + (self._length if continues else 0)
        if length + self._settings.max_turn_tokens > self._settings.max_context:
            return self._end(StopReason.CONTEXT_FULL)
        self.context, self.continues, self._length = list(ids), continues, length
        return None

    def _end(self, reason: StopReason) -> StopReason:
        self._stop = reason
        return reason
