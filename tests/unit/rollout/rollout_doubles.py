"""Doubles for the rollout tests: a scripted engine, a corridor, two tokenizers, and a way to play them."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Sequence

import pytest
import torch

from roleagent.environments.base import Observation, Outcome
from roleagent.policy.small import CHAT_TEMPLATE, build_small_tokenizer
from roleagent.policy.tokens import PolicyTokenizer
from roleagent.policy.turns import render_turn
from roleagent.rollout.loop import collect
from roleagent.rollout.meter import RolloutMeter
from roleagent.rollout.settings import RolloutSettings
from roleagent.types import Split, Task, Trajectory

SETTINGS = RolloutSettings(
    horizon=1, max_steps=10, max_turn_tokens=120, max_context=2000, concurrency=4, instructions=False
)
Script = Callable[[str, int], str | Sequence[int]]
TEXTS = [
    "Your task is to: reach room 3\nYou are in room 0.",
    render_turn("on we go", "go east", ["You are in room 1."]),
]


@functools.cache
def whole_tags() -> PolicyTokenizer:
    """A tokenizer with one token a tag."""
    return PolicyTokenizer(build_small_tokenizer(TEXTS * 20, 420))


@functools.cache
def split_tags() -> PolicyTokenizer:
    """A tokenizer whose tokens are bytes: a tag is many tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return PolicyTokenizer(
        PreTrainedTokenizerFast(
            tokenizer_object=backend,
            pad_token="<|pad|>",
            eos_token="<|end|>",
            additional_special_tokens=["<|system|>", "<|user|>", "<|assistant|>"],
            chat_template=CHAT_TEMPLATE,
            clean_up_tokenization_spaces=False,
        )
    )


TOKENIZERS = [pytest.param(whole_tags, id="whole-tags"), pytest.param(split_tags, id="split-tags")]


class ScriptedEngine:
    """Gives all probability to the tokens of `script(text of the slot, turn in the slot)`.

    It fails when a turn is decoded beyond its script, or when a token is not the one that it gave last.
    """

    def __init__(
        self, tokenizer: PolicyTokenizer, script: Callable[[str, int], str | Sequence[int]], max_context: int = 4096
    ) -> None:
        self.tokenizer = tokenizer
        self.script = script
        self.vocab_size = tokenizer.vocab_size
        self.max_context = max_context
        self.device = torch.device("cpu")
        self.held: dict[int, list[int]] = {}
        self.rest: dict[int, list[int]] = {}
        self.turns: dict[int, int] = {}
        self.opened = self.closed = self.steps = self.prefilled = self.largest = 0

    def open(self, count: int, max_length: int) -> list[int]:
        slots = list(range(self.opened, self.opened + count))
        self.opened += count
        for slot in slots:
            self.held[slot], self.turns[slot] = [], 0
        return slots

    def extend(self, slots: Sequence[int], ids: Sequence[Sequence[int]]) -> torch.Tensor:
        for slot, new in zip(slots, ids, strict=True):
            self.held[slot] += new
            self.prefilled += len(new)
            self.turns[slot] += 1
            reply = self.script(self.tokenizer.decode(self.held[slot]), self.turns[slot])
            self.rest[slot] = self.tokenizer.encode_text(reply) if isinstance(reply, str) else list(reply)
        return self._logits(slots)

    def step(self, slots: Sequence[int], token_ids: Sequence[int] | torch.Tensor) -> torch.Tensor:
        self.steps += 1
        self.largest = max(self.largest, len(slots))
        for slot, token in zip(slots, [int(token) for token in token_ids], strict=True):
            self.held[slot].append(token)
        return self._logits(slots)

    def _logits(self, slots: Sequence[int]) -> torch.Tensor:
        logits = torch.full((len(slots), self.vocab_size), -1e4)
        for row, slot in enumerate(slots):
            if not self.rest[slot]:
                raise AssertionError(f"decoded beyond the script: {self.tokenizer.decode(self.held[slot])}")
            logits[row, self.rest[slot].pop(0)] = 0.0
        return logits

    def truncate(self, slots: Sequence[int], lengths: Sequence[int]) -> None:
        for slot, length in zip(slots, lengths, strict=True):
            assert length <= len(self.held[slot])
            del self.held[slot][length:]

    def fork(self, slot: int, length: int) -> int:
        (new,) = self.open(1, self.max_context)
        assert length <= len(self.held[slot])
        self.held[new], self.turns[new] = self.held[slot][:length], self.turns[slot]
        return new

    def length(self, slot: int) -> int:
        return len(self.held[slot])

    def close(self, slots: Sequence[int]) -> None:
        for slot in slots:
            del self.held[slot]
        self.closed += len(slots)

    def load_weights(self, weights: object) -> None:
        raise NotImplementedError

    def snapshot(self) -> ScriptedEngine:
        raise NotImplementedError


def task(target: int = 3, name: str = "") -> Task:
    return Task(name or f"corridor-{target}", "corridor", "walk", "train")


class Corridor:
    """Rooms in a row; the task `corridor-k` is to reach room k. `on_step` gets each action before it is done."""

    name = "corridor"
    reward_range = (0.0, 1.0)
    guide = "go east | go west | wait | give up"
    inline = True

    def __init__(self, on_step: Callable[[str], object] | None = None, text: str = "") -> None:
        self.on_step = on_step
        self.text = text
        self.target = self.room = 0
        self.actions: list[str] = []

    def tasks(self, split: Split) -> Sequence[Task]:
        return [task(target) for target in range(1, 9)]

    def reset(self, task_id: str) -> tuple[str, Observation]:
        self.target, self.room = int(task_id.split("-")[1]), 0
        return f"reach room {self.target}", self.observation()

    def observation(self) -> Observation:
        return Observation(f"You are in room {self.room}.{self.text}")

    def step(self, action: str) -> Outcome:
        self.actions.append(action)
        if self.on_step is not None:
            self.on_step(action)
        if action == "give up":
            return Outcome(self.observation(), 0.0, True, False, 0.0, True)
        move = {"go east": 1, "go west": -1, "wait": 0}.get(action)
        if move is None:
            return Outcome(Observation("Nothing happens."), 0.0, False, False, 0.0, False)
        self.room += move
        won = self.room == self.target
        return Outcome(self.observation(), float(won), won, won, float(won), True)


class ThreadedCorridor(Corridor):
    """The same, called in threads."""

    inline = False


class Stuck(ThreadedCorridor):
    """Never answers the action `wait`, until the test is over."""

    released = threading.Event()

    def step(self, action: str) -> Outcome:
        if action == "wait":
            self.released.wait(30)
        return super().step(action)


class Slow(ThreadedCorridor):
    """Takes a while for each step."""

    def step(self, action: str) -> Outcome:
        time.sleep(0.05)
        return super().step(action)


def east(text: str, turn: int) -> str:
    """The script of an agent that walks east and predicts well."""
    room = int(text.rsplit("You are in room ", 1)[1].split(".")[0])
    return render_turn("on we go", "go east", [f"You are in room {room + 1}."])


def play(
    script: Script,
    *,
    factory: Callable[[], Corridor] = Corridor,
    tasks: Sequence[tuple[Task, int]] = ((task(3), 0),),
    settings: RolloutSettings = SETTINGS,
    tokenizer: PolicyTokenizer | None = None,
    engine: ScriptedEngine | None = None,
    meter: RolloutMeter | None = None,
) -> list[Trajectory]:
    tokenizer = tokenizer or whole_tags()
    engine = engine or ScriptedEngine(tokenizer, script)
    played = collect(
        engine,
        tokenizer,
        factory,
        tasks,
        settings,
        iteration=2,
        policy_version=7,
        seed=1,
        purpose="rollout",
        meter=meter,
    )
    assert engine.opened == engine.closed, "every slot is given back"
    return played


def walk(action: str) -> Script:
    return lambda text, turn: render_turn("", action, ["I see"])
