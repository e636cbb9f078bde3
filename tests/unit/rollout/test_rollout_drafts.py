"""Turns written with guesses and without them are the same turns, bit by bit, when the engine does not round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from rollout_doubles import SETTINGS, TOKENIZERS, Corridor, ThreadedCorridor, task

from roleagent.policy.engines.base import VerifyingEngine
from roleagent.policy.tokens import PolicyTokenizer
from roleagent.policy.turns import render_turn
from roleagent.rollout.loop import collect
from roleagent.rollout.meter import RolloutMeter
from roleagent.rollout.records import write_trajectories
from roleagent.rollout.settings import RolloutSettings
from roleagent.rollout.turn_end import turn_complete
from roleagent.types import Trajectory

STRAY = 2e-4  # weight of a token that never follows, beside 1 for each time that one does
TASKS = [(task(target), sample) for target in (1, 2, 3) for sample in range(4)]


class ShortSightedEngine:
    """The next token depends on the turn's last two (bytes: eight), as in the corridor; rarely it is any token.

    It fails where it is given a token behind the end of a turn, or behind its limit.
    """

    def __init__(self, tokenizer: PolicyTokenizer, settings: RolloutSettings) -> None:
        self._tokenizer, self._settings = tokenizer, settings
        self.vocab_size, self.max_context, self.device = tokenizer.vocab_size, 4096, torch.device("cpu")
        self._order = 2 if tokenizer.vocab_size > 300 else 8
        rows: dict[tuple[int, ...], torch.Tensor] = {}
        for room in range(4):
            for action in ("go east", "go west", "look"):
                text = render_turn("on we go", action, [f"You are in room {room}."])
                turn = [*[-1] * self._order, *tokenizer.encode_text(text)]
                for place in range(self._order, len(turn)):
                    key = tuple(turn[place - self._order : place])
                    rows.setdefault(key, torch.full((self.vocab_size,), STRAY))[turn[place]] += 1
        self._logits = {key: row.log() for key, row in rows.items()}
        self._unknown = torch.zeros(self.vocab_size)
        self.held: dict[int, list[int]] = {}
        self.begun: dict[int, int] = {}  # where the slot's turn begins
        self.passes = self.opened = 0

    def open(self, count: int, max_length: int) -> list[int]:
        slots = list(range(self.opened, self.opened + count))
        self.opened += count
        self.held.update((slot, []) for slot in slots)
        return slots

    def extend(self, slots: Sequence[int], ids: Sequence[Sequence[int]]) -> torch.Tensor:
        return self.verify(slots, ids, [1] * len(slots))

    def step(self, slots: Sequence[int], token_ids: Sequence[int] | torch.Tensor) -> torch.Tensor:
        return self.verify(slots, [[int(token)] for token in token_ids], [1] * len(slots))

    def verify(self, slots: Sequence[int], ids: Sequence[Sequence[int]], tails: Sequence[int]) -> torch.Tensor:
        self.passes += 1
        logits = []
        for slot, row, tail in zip(slots, ids, tails, strict=True):
            if len(row) > tail:  # a context: a turn begins behind it
                self.begun[slot] = len(self.held[slot]) + len(row) - tail + 1
            self.held[slot] += row
            read = self.held[slot][self.begun[slot] :]
            assert len(read) < self._settings.max_turn_tokens
            assert not turn_complete(self._tokenizer.decode(read[:-1]), self._settings.horizon)
            assert self._tokenizer.stop_ids.isdisjoint(read[:-1])
            turn = [*[-1] * self._order, *self.held[slot][self.begun[slot] :]]
            for end in range(len(turn) - tail + 1, len(turn) + 1):
                logits.append(self._logits.get(tuple(turn[end - self._order : end]), self._unknown))
        return torch.stack(logits)

    def truncate(self, slots: Sequence[int], lengths: Sequence[int]) -> None:
        for slot, length in zip(slots, lengths, strict=True):
            assert 0 <= length <= len(self.held[slot])
            del self.held[slot][length:]

    def fork(self, slot: int, length: int) -> int:
        (new,) = self.open(1, self.max_context)
        assert length <= len(self.held[slot])
        self.held[new], self.begun[new] = self.held[slot][:length], self.begun[slot]
        return new

    def length(self, slot: int) -> int:
        return len(self.held[slot])

    def close(self, slots: Sequence[int]) -> None:
        for slot in slots:
            del self.held[slot]

    def load_weights(self, weights: object) -> None:
        raise NotImplementedError

    def snapshot(self) -> ShortSightedEngine:
        raise NotImplementedError


def play(
    tokenizer: PolicyTokenizer,
    settings: RolloutSettings,
    seed: int,
    factory: Callable[[], Corridor] = Corridor,
) -> tuple[list[Trajectory], int, RolloutMeter]:
    engine, meter = ShortSightedEngine(tokenizer, settings), RolloutMeter()
    assert isinstance(engine, VerifyingEngine)
    played = collect(
        engine,
        tokenizer,
        factory,
        TASKS,
        settings,
        iteration=0,
        policy_version=0,
        seed=seed,
        purpose="rollout",
        meter=meter,
    )
    assert not engine.held, "every slot is given back"
    return played, engine.passes, meter


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.0},
        {"horizon": 0, "max_turn_tokens": 70, "draft_tokens": 127},
        {"horizon": 2, "context": "step", "draft_tokens": 1},
        {"max_turn_tokens": 1},
        {"concurrency": 1, "max_steps": 2},
        {"max_context": 400},
    ],
)
def test_guesses_change_no_bit(tokenizer: Callable[[], PolicyTokenizer], options: dict[str, object]) -> None:
    settings = replace(SETTINGS, **{"max_turn_tokens": 150, "max_steps": 4, **options})
    plain, passes, _ = play(tokenizer(), replace(settings, draft_tokens=0), 3)
    drafted, fewer, meter = play(tokenizer(), settings, 3)
    assert write_trajectories(drafted) == write_trajectories(plain)
    if settings.max_turn_tokens == 1:
        assert fewer == passes
    else:
        assert fewer < passes
    assert meter.decoded_tokens == sum(len(step.generated_ids) for played in plain for step in played.steps)


def test_in_threads_too() -> None:
    """The environment's answers come when they come; what is sampled does not depend on it."""
    inline, _, _ = play(TOKENIZERS[0].values[0](), SETTINGS, 5)
    threaded, _, _ = play(TOKENIZERS[0].values[0](), SETTINGS, 5, ThreadedCorridor)
    assert write_trajectories(inline) == write_trajectories(threaded)
