"""Rollouts with real models: what is recorded is what a full forward pass gives, however episodes are batched."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from roleagent.environments.base import Observation, Outcome
from roleagent.environments.household.demonstrations import demonstrate
from roleagent.environments.registry import make_environment
from roleagent.policy.engines.base import Engine
from roleagent.policy.engines.factory import EngineKind, make_engine
from roleagent.policy.engines.llama_engine import LlamaEngine
from roleagent.policy.model import Policy, build_small_model, build_small_tokenizer
from roleagent.policy.sampling import sample
from roleagent.policy.tokens import PolicyTokenizer
from roleagent.policy.turns import render_turn
from roleagent.rollout.context import first_user_text
from roleagent.rollout.loop import collect
from roleagent.rollout.meter import RolloutMeter
from roleagent.rollout.metrics import rollout_metrics
from roleagent.rollout.records import read_trajectories, write_trajectories
from roleagent.rollout.settings import RolloutSettings
from roleagent.seeding import generator
from roleagent.types import Split, StopReason, Task, Trajectory

SEED, ITERATION, PURPOSE = 11, 4, "rollout"
SETTINGS = RolloutSettings(
    horizon=1, max_steps=6, max_turn_tokens=40, max_context=400, concurrency=8, instructions=False
)
LIMIT = 5


class Corridor:
    """Rooms in a row; the task `corridor-k` is to reach room k. West of room 0 is a wall."""

    name = "corridor"
    reward_range = (0.0, 1.0)
    guide = "go east | go west"
    inline = True

    def __init__(self) -> None:
        self.target = self.room = 0

    def tasks(self, split: Split) -> Sequence[Task]:
        return [Task(f"corridor-{k}", "corridor", "walk", split) for k in range(1, LIMIT)]

    def reset(self, task_id: str) -> tuple[str, Observation]:
        self.target, self.room = int(task_id.split("-")[1]), 0
        return f"reach room {self.target}", Observation("You are in room 0.")

    def step(self, action: str) -> Outcome:
        move = {"go east": 1, "go west": -1}.get(action, 0)
        if not move or self.room + move < 0:
            return Outcome(Observation("Nothing happens."), 0.0, False, False, 0.0, False)
        self.room += move
        won = self.room == self.target
        return Outcome(Observation(f"You are in room {self.room}."), float(won), won, won, float(won), True)


class ThreadedCorridor(Corridor):
    """The same, called in threads."""

    inline = False


def walks(count: int) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Goals, and what a walker who sometimes errs sees and writes."""
    for number in range(count):
        draw = generator("walks", number)
        environment = Corridor()
        goal, seen = environment.reset(f"corridor-{draw.integers(1, LIMIT)}")
        turns, text, done = [], seen.text, False
        while not done and len(turns) < 6:
            action = "go east" if draw.random() < 0.7 else "go west"
            outcome = environment.step(action)
            turns.append((text, render_turn("we walk", action, [outcome.observation.text])))
            text, done = outcome.observation.text, outcome.done
        yield goal, turns


@pytest.fixture(scope="module")
def walker() -> Policy:
    """A tiny model that has learned the turn format: some seconds of training."""
    torch.set_num_threads(1)
    texts = [text for goal, turns in walks(50) for text in (first_user_text(goal, "Nothing happens."), turns[0][1])]
    tokenizer = PolicyTokenizer(build_small_tokenizer(texts, 420))
    model = build_small_model(
        tokenizer.vocab_size, width=48, layers=2, heads=2, kv_heads=1, intermediate=96, max_context=512
    )
    sequences = []
    for goal, turns in walks(400):
        ids: list[int] = []
        for number, (seen, turn) in enumerate(turns):
            ids += tokenizer.next_user(seen, False) if number else tokenizer.opening(None, first_user_text(goal, seen))
            ids += tokenizer.encode_text(turn)
        sequences.append(torch.tensor(ids))
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3)
    model.train()
    for step in range(80):
        batch = torch.nn.utils.rnn.pad_sequence(
            [sequences[(step * 8 + row) % len(sequences)] for row in range(8)], True, -100
        )
        loss = model(input_ids=batch.clamp(min=0), labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    return Policy(model, tokenizer, "walker", 512)


TASKS = [(task, sample_index) for task in Corridor().tasks("train") for sample_index in range(4)]


def play(
    policy: Policy,
    settings: RolloutSettings = SETTINGS,
    *,
    kind: EngineKind = "llama",
    factory: Callable[[], Corridor] = Corridor,
    engine: Engine | None = None,
    meter: RolloutMeter | None = None,
) -> list[Trajectory]:
    return collect(
        engine or make_engine(policy, kind),
        policy.tokenizer,
        factory,
        TASKS,
        settings,
        iteration=ITERATION,
        policy_version=3,
        seed=SEED,
        purpose=PURPOSE,
        meter=meter,
    )


def sequences_of(trajectory: Trajectory) -> Iterator[tuple[list[int], list[bool], list[float]]]:
    """Ids, mask and recorded log-probs of each sequence of an episode."""
    ids: list[int] = []
    mask: list[bool] = []
    logprobs: list[float] = []
    for step in trajectory.steps:
        if not step.continues and ids:
            yield ids, mask, logprobs
            ids, mask, logprobs = [], [], []
        ids += [*step.context_ids, *step.generated_ids]
        mask += [False] * len(step.context_ids) + [True] * len(step.generated_ids)
        logprobs += [*[0.0] * len(step.context_ids), *step.logprobs]
    if ids:
        yield ids, mask, logprobs


def assert_identity(policy: Policy, trajectories: list[Trajectory], temperature: float) -> int:
    """Sample again from full, uncached forward passes with the episode's own stream; return the tokens compared."""
    compared = 0
    for trajectory in trajectories:
        stream = generator(SEED, ITERATION, PURPOSE, trajectory.task.task_id, trajectory.sample_index)
        for ids, mask, recorded in sequences_of(trajectory):
            with torch.inference_mode():
                logits = policy.model(input_ids=torch.tensor([ids])).logits[0]
            places = [place for place, generated in enumerate(mask) if generated]
            drawn, logprobs = sample(logits[[place - 1 for place in places]], temperature, stream.random(len(places)))
            assert drawn.tolist() == [ids[place] for place in places]
            np.testing.assert_allclose(logprobs.numpy(), [recorded[place] for place in places], atol=2e-4)
            compared += len(places)
    return compared


@pytest.mark.parametrize("kind", ["llama", "transformers"])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_records_equal_a_full_forward(walker: Policy, kind: EngineKind, temperature: float) -> None:
    trajectories = play(walker, replace(SETTINGS, temperature=temperature), kind=kind)
    assert assert_identity(walker, trajectories, temperature) > 500
    metrics = rollout_metrics(trajectories)
    assert metrics["success_rate"] > 0, "the walker acts: without it this test would be empty"
    assert metrics["malformed_share"] < 0.5


def test_records_of_step_prompts_equal_a_full_forward(walker: Policy) -> None:
    trajectories = play(walker, replace(SETTINGS, context="step", window=1))
    assert assert_identity(walker, trajectories, 1.0) > 300
    assert not any(step.continues for trajectory in trajectories for step in trajectory.steps)


def test_result_does_not_depend_on_the_batch(walker: Policy) -> None:
    one_by_one = play(walker, replace(SETTINGS, concurrency=1))
    for settings, factory in (
        (SETTINGS, Corridor),
        (replace(SETTINGS, concurrency=3, refill_share=1.0), Corridor),
        (replace(SETTINGS, concurrency=16, refill_share=0.05), ThreadedCorridor),
    ):
        batched = play(walker, settings, factory=factory)
        for alone, together in zip(one_by_one, batched, strict=True):
            for first, second in zip(alone.steps, together.steps, strict=True):
                np.testing.assert_allclose(first.logprobs, second.logprobs, atol=2e-4)
                assert replace(first, logprobs=()) == replace(second, logprobs=())
            assert replace(alone, steps=()) == replace(together, steps=())


def test_the_same_call_gives_the_same_bytes(walker: Policy) -> None:
    first, second = (write_trajectories(play(walker)) for _ in range(2))
    assert first == second
    assert write_trajectories(read_trajectories(first)) == first


def test_another_seed_iteration_or_purpose_plays_differently(walker: Policy) -> None:
    engine = make_engine(walker)

    def ids(seed: int, iteration: int, purpose: str) -> list[tuple[int, ...]]:
        played = collect(
            engine,
            walker.tokenizer,
            Corridor,
            TASKS,
            SETTINGS,
            iteration=iteration,
            policy_version=0,
            seed=seed,
            purpose=purpose,
        )
        return [step.generated_ids for trajectory in played for step in trajectory.steps]

    variants = [ids(0, 0, "rollout"), ids(1, 0, "rollout"), ids(0, 1, "rollout"), ids(0, 0, "evaluation")]
    assert all(first != second for place, first in enumerate(variants) for second in variants[:place])


def test_recorded_actions_lead_to_the_recorded_states(walker: Policy) -> None:
    for trajectory in play(walker):
        environment = Corridor()
        goal, seen = environment.reset(trajectory.task.task_id)
        assert (trajectory.goal, trajectory.steps[0].state) == (goal, seen.text)
        for step, after in zip(trajectory.steps, trajectory.states[1:], strict=True):
            if step.malformed:
                continue
            outcome = environment.step(step.action)
            assert (after, step.reward, step.valid_action) == (outcome.observation.text, outcome.reward, outcome.valid)


class CountingEngine(LlamaEngine):
    """Counts the tokens that it is given and not told to forget, and keeps what its slots hold."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy.model)
        self.tokens = self.forgotten = self.forks = 0
        self.held: dict[int, list[int]] = {}
        self.closed: list[list[int]] = []
        self.taken_back: dict[int, int] = {}  # the first token that a slot had to forget before this pass
        self.repeated = 0  # times that it came back within a turn

    def open(self, count: int, max_length: int) -> list[int]:
        slots = super().open(count, max_length)
        self.held.update((slot, []) for slot in slots)
        return slots

    def verify(self, slots: Sequence[int], ids: Sequence[Sequence[int]], tails: Sequence[int]) -> torch.Tensor:
        self._read(slots, ids, tails)
        return super().verify(slots, ids, tails)

    def step(self, slots: Sequence[int], token_ids: Sequence[int] | torch.Tensor) -> torch.Tensor:
        self._read(slots, [[int(token)] for token in token_ids], [1] * len(slots))
        return super().step(slots, token_ids)

    def _read(self, slots: Sequence[int], ids: Sequence[Sequence[int]], tails: Sequence[int]) -> None:
        for slot, row, tail in zip(slots, ids, tails, strict=True):
            self.held[slot] += row
            self.tokens += len(row)
            self.repeated += len(row) == tail and self.taken_back.get(slot) == row[0]
        self.taken_back.clear()

    def truncate(self, slots: Sequence[int], lengths: Sequence[int]) -> None:
        super().truncate(slots, lengths)
        for slot, length in zip(slots, lengths, strict=True):
            if rest := self.held[slot][length:]:
                self.taken_back[slot] = rest[0]
                self.tokens -= len(rest)
                self.forgotten += len(rest)
                del self.held[slot][length:]

    def fork(self, slot: int, length: int) -> int:
        new = super().fork(slot, length)
        self.held[new] = self.held[slot][:length]
        self.forks += 1
        return new

    def close(self, slots: Sequence[int]) -> None:
        super().close(slots)
        self.closed += [self.held.pop(slot) for slot in slots]


def read_once(walker: Policy, draft_tokens: int) -> CountingEngine:
    """Play without sharing, and check that what stays in the slots is every episode's tokens but the last, once."""
    engine, meter = CountingEngine(walker), RolloutMeter()
    settings = replace(SETTINGS, draft_tokens=draft_tokens, share=False)
    trajectories = play(walker, settings, engine=engine, meter=meter)
    assert engine.forks == 0
    assert 0 < meter.prediction_tokens < meter.decoded_tokens
    left = 0  # guesses behind the end of an episode, which nobody takes back
    closed = sorted(engine.closed)
    for ids in sorted(ids for trajectory in trajectories for ids, _, _ in sequences_of(trajectory)):
        found = next(content for content in closed if content[: len(ids) - 1] == ids[:-1])
        closed.remove(found)
        left += len(found) - (len(ids) - 1)
    assert not closed
    assert engine.tokens - left == int(rollout_metrics(trajectories)["tokens_total"]) - len(trajectories)
    return engine


def test_no_token_is_read_twice(walker: Policy) -> None:
    """What stays. Wrong guesses are forgotten, and a right one at the end of a turn, which the next context follows."""
    engine = read_once(walker, draft_tokens=24)
    assert engine.forgotten > 0
    assert engine.repeated == 0


def test_no_token_is_read_twice_without_guesses(walker: Policy) -> None:
    assert read_once(walker, draft_tokens=0).forgotten == 0


def read_together(trajectory: Trajectory) -> Iterator[tuple[object, ...]]:
    """Names of what the engine reads: a context is read whole, with the last token of the turn before it."""
    ids: tuple[int, ...] = ()
    for step in trajectory.steps:
        before = ids[:-1] if step.continues else ()
        ids = (ids if step.continues else ()) + step.context_ids
        yield from ((ids, place) for place in range(len(ids) - len(before)))
        yield from ((ids + step.generated_ids[:end],) for end in range(1, len(step.generated_ids)))
        ids += step.generated_ids


@pytest.mark.parametrize("draft_tokens", [0, 24])
def test_what_episodes_have_in_common_is_read_once(walker: Policy, draft_tokens: int) -> None:
    """All episodes side by side, each beginning of a sequence once, however many episodes have it."""
    engine = CountingEngine(walker)
    settings = replace(SETTINGS, draft_tokens=draft_tokens, concurrency=len(TASKS))
    trajectories = play(walker, settings, engine=engine)
    sequences = [ids for trajectory in trajectories for ids, _, _ in sequences_of(trajectory)]
    beginnings = {tuple(ids[:end]) for ids in sequences for end in range(1, len(ids))}
    read = engine.tokens
    for content in engine.closed:  # guesses behind the end of an episode, which nobody takes back
        read -= sum(tuple(content[:end]) not in beginnings for end in range(1, len(content) + 1))
    expected = len({name for trajectory in trajectories for name in read_together(trajectory)})
    assert read == expected < 0.8 * sum(len(ids) - 1 for ids in sequences)
    assert len(engine.closed) == len({tuple(ids[:-1]) for ids in sequences})
    assert engine.forks > 0


@pytest.mark.parametrize("kind", ["llama", "transformers"])
def test_sharing_changes_nothing_that_is_sampled(walker: Policy, kind: EngineKind) -> None:
    shared = play(walker, kind=kind)
    alone = play(walker, replace(SETTINGS, share=False), kind=kind)
    gaps: list[float] = []
    for one, other in zip(shared, alone, strict=True):
        assert one.final_state == other.final_state
        for first, second in zip(one.steps, other.steps, strict=True):
            assert replace(first, logprobs=()) == replace(second, logprobs=())
            gaps += np.abs(np.subtract(first.logprobs, second.logprobs)).tolist()
    assert max(gaps) < 5e-5


class ExpertEngine:
    """Writes the turns of household demonstrations, found by the conversation's beginning."""

    def __init__(self, tokenizer: PolicyTokenizer, turns: dict[str, list[str]]) -> None:
        self.tokenizer, self.turns = tokenizer, turns
        self.vocab_size, self.max_context, self.device = tokenizer.vocab_size, 40_000, torch.device("cpu")
        self.plan: dict[int, list[str]] = {}
        self.rest: dict[int, list[int]] = {}

    def open(self, count: int, max_length: int) -> list[int]:
        slots = list(range(len(self.plan), len(self.plan) + count))
        self.plan.update((slot, []) for slot in slots)
        return slots

    def close(self, slots: Sequence[int]) -> None:
        for slot in slots:
            del self.rest[slot]

    def truncate(self, slots: Sequence[int], lengths: Sequence[int]) -> None:
        """Nothing: it holds no tokens."""

    def fork(self, slot: int, length: int) -> int:
        raise AssertionError("no two episodes are alike here")

    def extend(self, slots: Sequence[int], ids: Sequence[Sequence[int]]) -> torch.Tensor:
        for slot, row in zip(slots, ids, strict=True):
            if not self.plan[slot]:
                self.plan[slot] = list(self.turns[self.tokenizer.decode(row)])
            self.rest[slot] = self.tokenizer.encode_text(self.plan[slot].pop(0))
        return self._logits(slots)

    def step(self, slots: Sequence[int], token_ids: Sequence[int] | torch.Tensor) -> torch.Tensor:
        return self._logits(slots)

    def _logits(self, slots: Sequence[int]) -> torch.Tensor:
        logits = torch.full((len(slots), self.vocab_size), -1e4)
        for row, slot in enumerate(slots):
            logits[row, self.rest[slot].pop(0)] = 0.0
        return logits


def test_the_households_expert_wins_through_the_loop(walker: Policy) -> None:
    tasks = make_environment("household", level="small", train_tasks=24, heldout_tasks=1).tasks("train")
    demonstrations = {task.task_id: demonstrate(task.task_id, max_steps=40) for task in tasks}
    turns = {
        first_user_text(demo.goal, demo.steps[0].state): [
            render_turn(step.reasoning, step.action, [step.next_state]) for step in demo.steps
        ]
        for demo in demonstrations.values()
    }
    played = collect(
        ExpertEngine(walker.tokenizer, turns),  # type: ignore[arg-type]
        walker.tokenizer,
        lambda: make_environment("household", level="small", train_tasks=24, heldout_tasks=1),
        [(task, 0) for task in tasks],
        replace(SETTINGS, max_steps=40, max_turn_tokens=1000, max_context=40_000, concurrency=7),
        iteration=0,
        policy_version=0,
        seed=0,
        purpose="rollout",
    )
    for trajectory in played:
        demo = demonstrations[trajectory.task.task_id]
        assert trajectory.stop_reason is StopReason.SUCCESS
        assert [(step.state, step.action) for step in trajectory.steps] == [
            (step.state, step.action) for step in demo.steps
        ]
        assert trajectory.final_state == demo.steps[-1].next_state
        assert all(
            step.predictions == (after,) for step, after in zip(trajectory.steps, trajectory.states[1:], strict=True)
        )
