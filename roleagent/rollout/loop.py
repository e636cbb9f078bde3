"""The multi-turn loop: many episodes side by side, ids in and ids out.

Each lane plays one episode after another:

    reset -> [prefill the context -> decode a turn -> (action complete: call the environment, decode predictions
    meanwhile) -> the environment's reply is the next context] -> record

A lane whose turn is over waits until a share of the batch waits too; then the replies are prefilled in one call,
and new episodes take the place of finished ones. What a lane samples depends on its episode alone: every episode
draws from the stream of (seed, iteration, purpose, task, sample), so the batch's size and order change nothing
beyond the rounding of the model's arithmetic.

An environment that sets `inline = True` is called in the loop's own thread, which costs less than handing over a
step of microseconds. Such a call cannot time out: it is for environments that compute in this process and end.
All others run in a thread pool, where a call that takes too long ends its episode and not the run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from roleagent.errors import ConfigError
from roleagent.policy.sampling import UniformStreams
from roleagent.policy.turns import complete_action, parse_turn, turn_instructions
from roleagent.rollout.context import RememberingTokenizer, clean_text
from roleagent.rollout.environment_pool import Call, EnvironmentPool
from roleagent.rollout.episode import Episode, Turn, read_actions, read_outcome
from roleagent.rollout.meter import RolloutMeter
from roleagent.rollout.turn_batch import TurnBatch
from roleagent.rollout.turn_end import END_OF_TURN, MAY_CLOSE, token_kinds, turn_complete
from roleagent.seeding import generator
from roleagent.types import StopReason

if TYPE_CHECKING:
    from roleagent.environments.base import Environment
    from roleagent.policy.engines.base import Engine
    from roleagent.policy.tokens import PolicyTokenizer
    from roleagent.rollout.settings import RolloutSettings
    from roleagent.types import Task, Trajectory

_log = logging.getLogger(__name__)


def trajectory_id(purpose: str, iteration: int, task_id: str, sample_index: int) -> str:
    """Return the id of an episode: unique in a run, and the same whenever the episode is played again."""
    return f"{purpose}-{iteration:05d}-{task_id}-{sample_index:02d}"


def collect(
    engine: Engine,
    tokenizer: PolicyTokenizer,
    env_factory: Callable[[], Environment],
    tasks: Sequence[tuple[Task, int]],
    settings: RolloutSettings,
    *,
    iteration: int,
    policy_version: int,
    seed: int,
    purpose: str,
    on_progress: Callable[[int, int], None] | None = None,
    meter: RolloutMeter | None = None,
) -> list[Trajectory]:
    """Play one episode for each (task, sample index), and return the trajectories in the same order.

    Args:
        engine: the model; its slots are opened and closed here.
        tokenizer: the model's tokenizer.
        env_factory: makes one environment; it is called at most once a lane, and again after a failure.
        tasks: what to play; each pair once.
        settings: lengths, limits and templates.
        iteration: names the random streams and the trajectories.
        policy_version: written into the trajectories.
        seed: the run's seed.
        purpose: names the random streams and the trajectories, for example "rollout" or "evaluation".
        on_progress: called with (finished episodes, all episodes) after each episode.
        meter: sums up where the time went.

    An episode whose environment fails in its reset, or whose first prompt does not fit, has no steps.

    Raises:
        ConfigError: the environment does not know a task.
        ValueError: a pair is given twice.
    """
    if len({(task.task_id, sample) for task, sample in tasks}) != len(tasks):
        raise ValueError("each (task, sample index) may be played once")
    if not tasks:
        return []
    meter = RolloutMeter() if meter is None else meter
    started = time.perf_counter()
    settings = replace(settings, max_context=min(settings.max_context, engine.max_context))
    names = [trajectory_id(purpose, iteration, task.task_id, sample) for task, sample in tasks]
    rollout = _Rollout(
        engine,
        tokenizer,
        env_factory,
        tasks,
        settings,
        streams=UniformStreams([generator(seed, iteration, purpose, task.task_id, sample) for task, sample in tasks]),
        record=lambda index, episode: episode.trajectory(names[index], iteration, policy_version),
        on_progress=on_progress,
        meter=meter,
    )
    try:
        return rollout.run()
    finally:
        rollout.close()
        meter.total_seconds += time.perf_counter() - started


class _Lane:
    """A place in the batch: the episode that is in it, its environment, and the call that it waits for."""

    __slots__ = ("acted_at", "action", "call", "environment", "episode", "index", "playing")

    def __init__(self, environment: Environment | None) -> None:
        self.environment = environment
        self.episode: Episode | None = None
        self.index = -1  # of the episode, in the order of the tasks
        self.playing = False  # the reset was answered
        self.call: Call | None = None
        self.action: str | None = None  # the action of this turn, once it was sent
        self.acted_at = 0  # tokens of the turn at that moment


class _Rollout:
    def __init__(
        self,
        engine: Engine,
        tokenizer: PolicyTokenizer,
        env_factory: Callable[[], Environment],
        tasks: Sequence[tuple[Task, int]],
        settings: RolloutSettings,
        *,
        streams: UniformStreams,
        record: Callable[[int, Episode], Trajectory],
        on_progress: Callable[[int, int], None] | None,
        meter: RolloutMeter,
    ) -> None:
        self._tokenizer = tokenizer
        self._chat = RememberingTokenizer(tokenizer)
        self._factory = env_factory
        self._tasks = tasks
        self._settings = settings
        self._record = record
        self._on_progress = on_progress
        self._meter = meter
        self._results: dict[int, Trajectory] = {}
        self._next = 0
        first = env_factory()
        self._inline = bool(getattr(first, "inline", False))
        self._listed = settings.context == "step_actions"
        self._system = turn_instructions(first.guide, settings.horizon) if settings.instructions else None
        self._token_kinds = token_kinds(tokenizer, engine.vocab_size)
        count = min(settings.concurrency, len(tasks))
        self._lanes = [_Lane(first if lane == 0 else None) for lane in range(count)]
        self._waiting: set[int] = set()
        self._pool = EnvironmentPool(settings.environment_workers, settings.step_timeout_seconds)
        self._batch = TurnBatch(
            engine,
            streams,
            self._token_kinds.kinds,
            lambda ids: turn_complete(self._token_kinds.text(ids), settings.horizon),
            lanes=count,
            max_context=settings.max_context,
            max_turn_tokens=settings.max_turn_tokens,
            temperature=settings.temperature,
            draft_tokens=settings.draft_tokens,
            share=settings.share,
            meter=meter,
        )

    def run(self) -> list[Trajectory]:
        for lane in range(len(self._lanes)):
            self._start_next(lane)
        while self._waiting or self._batch.decoding:
            if self._refill_due():
                self._refill()
            else:
                self._look(self._batch.step())
        return [self._results[index] for index in range(len(self._tasks))]

    def close(self) -> None:
        self._meter.abandoned_threads += self._pool.abandoned
        self._pool.close()
        self._batch.close()

    # -- decoding

    def _look(self, lanes: Sequence[int]) -> None:
        """See to the lanes whose newest token may have ended an action or the turn."""
        finished = []
        for number in lanes:
            while not (over := self._ends_turn(number)) and self._batch.reveal(number):
                pass
            if over:
                finished.append(number)
        if finished:
            self._batch.finish(finished)

    def _ends_turn(self, number: int) -> bool:
        """Send the lane's action if its newest token completed it; return whether that token ended the turn."""
        ids = self._batch.ids(number)
        kind = self._batch.last_kind(number)
        ended = kind == END_OF_TURN
        complete = False
        if kind == MAY_CLOSE:
            complete = turn_complete(self._token_kinds.text(ids), self._settings.horizon)
            if self._lanes[number].action is None:
                action = complete_action(self._tokenizer.decode(ids))
                if action:
                    self._act(number, action)
        full = self._batch.full(number)
        if not (complete or ended or full):
            return False
        self._finish_turn(number, ids, ended=ended, truncated=full and not (complete or ended))
        return True

    def _finish_turn(self, number: int, ids: list[int], *, ended: bool, truncated: bool) -> None:
        lane = self._lanes[number]
        parsed = parse_turn(self._tokenizer.decode(ids[:-1] if ended else ids), self._settings.horizon)
        if lane.action is None and not parsed.malformed:
            self._act(number, parsed.action)
        if lane.action is not None:
            if parsed.malformed or parsed.action != lane.action:  # what was sent is what counts
                parsed = replace(parsed, action=lane.action, malformed=False)
            self._meter.prediction_tokens += len(ids) - lane.acted_at
        assert lane.episode is not None
        lane.episode.finish_turn(
            Turn(parsed, tuple(ids), tuple(self._batch.logprobs(number)), ended=ended, truncated=truncated)
        )
        self._waiting.add(number)

    # -- environments

    def _act(self, number: int, action: str) -> None:
        """Send the turn's action to the environment."""
        lane = self._lanes[number]
        environment = lane.environment
        assert environment is not None
        lane.action, lane.acted_at = action, self._batch.length(number)
        self._batch.acted(number)
        lane.call = self._submit(lambda: read_outcome(environment.step(action), self._listed))

    def _start_next(self, number: int) -> None:
        """Put the next episode into the lane, if there is one left."""
        if self._next == len(self._tasks):
            return
        lane = self._lanes[number]
        lane.index, lane.playing, lane.action = self._next, False, None
        self._next += 1
        task, sample = self._tasks[lane.index]
        lane.episode = Episode(task, sample, self._settings, self._chat, self._system)
        self._batch.assign(number, lane.index)
        present = lane.environment

        def reset() -> tuple[Environment, str, str, tuple[str, ...]]:
            environment = self._factory() if present is None else present
            goal, observation = environment.reset(task.task_id)
            actions = read_actions(observation) if self._listed else ()
            return environment, clean_text(goal), clean_text(observation.text), actions

        lane.call = self._submit(reset)
        self._waiting.add(number)

    def _submit(self, function: Callable[[], object]) -> Call:
        self._meter.environment_calls += 1
        if not self._inline:
            return self._pool.submit(function)
        started = time.perf_counter()
        call = Call(function).run_inline()
        self._meter.environment_seconds += time.perf_counter() - started
        return call

    # -- between turns

    def _refill_due(self) -> bool:
        """Whether the waiting lanes are worth a prefill: a share of the batch, or all of it."""
        decoding = self._batch.decoding
        if not decoding:
            return True
        share = self._settings.refill_share
        waiting = len(self._waiting)
        if not waiting or waiting < share * (waiting + decoding):
            return False
        self._pool.check()
        now = time.monotonic()
        ready = sum(self._worth_waiting(number, now) for number in self._waiting)
        return ready > 0 and ready >= share * (ready + decoding)

    def _worth_waiting(self, number: int, now: float) -> bool:
        call = self._lanes[number].call
        return call is None or call.finished or now - call.submitted < self._settings.straggler_seconds

    def _refill(self) -> None:
        """Take in the environments' replies, start episodes, and prefill what the model reads next."""
        self._await_environments()
        ready: list[int] = []
        while True:
            answered = [number for number in sorted(self._waiting) if self._answered(number)]
            if not answered:
                break
            for number in answered:
                self._waiting.discard(number)
                if self._advance(number):
                    ready.append(number)
                else:
                    self._start_next(number)
        if ready:
            episodes = [episode for number in ready if (episode := self._lanes[number].episode) is not None]
            self._look(
                self._batch.prefill(
                    ready, [episode.context for episode in episodes], [episode.continues for episode in episodes]
                )
            )

    def _answered(self, number: int) -> bool:
        call = self._lanes[number].call
        return call is None or call.finished

    def _await_environments(self) -> None:
        calls = [call for number in self._waiting if (call := self._lanes[number].call) and not call.finished]
        if not calls:
            return
        started = time.perf_counter()
        self._pool.wait_all(calls, self._settings.straggler_seconds)
        if not self._batch.decoding and len(calls) == len(self._waiting):
            self._pool.wait_any(calls)
        self._meter.environment_seconds += time.perf_counter() - started

    def _advance(self, number: int) -> bool:
        """Carry the environment's answer into the lane's episode; return whether the episode goes on."""
        lane = self._lanes[number]
        episode, call = lane.episode, lane.call
        assert episode is not None
        lane.call = lane.action = None
        if call is None:
            reason = episode.settle(None)
        elif call.timed_out or call.error is not None:
            reason = self._fault(lane, episode, call)
        elif lane.playing:
            reason = episode.settle(call.result)
        else:
            lane.environment, *words = call.result
            reason = episode.begin(*words)
            lane.playing = True
        if reason is None:
            return True
        self._results[lane.index] = self._record(lane.index, episode)
        lane.episode = None
        if self._on_progress is not None:
            self._on_progress(len(self._results), len(self._tasks))
        return False

    def _fault(self, lane: _Lane, episode: Episode, call: Call) -> StopReason:
        """End an episode whose environment failed; the environment is not used again."""
        lane.environment = None
        if isinstance(call.error, ConfigError) and not lane.playing:
            raise call.error
        where = "step" if lane.playing else "reset"
        if call.timed_out:
            seconds = self._settings.step_timeout_seconds
            _log.warning("task %s: no answer to a %s within %g s", episode.task.task_id, where, seconds)
            return episode.fail(StopReason.ENVIRONMENT_TIMEOUT)
        message = " ".join(str(call.error).split())
        _log.warning("task %s: %s raised %s: %s", episode.task.task_id, where, type(call.error).__name__, message)
        return episode.fail(StopReason.ENVIRONMENT_ERROR)
