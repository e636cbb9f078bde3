"""An environment that is learned in seconds, and a policy that plays it well-formed and at random.

A two-step bandit in words: a hall with three doors, behind each a room with three chests. One way of nine leads to the
treasure, and only its end pays, so chance is 1/9 and the first step has to be credited for what the second one found.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from roleagent.environments.base import Observation, Outcome
from roleagent.policy.model import Policy, build_small_model, build_small_tokenizer
from roleagent.policy.tokens import PolicyTokenizer
from roleagent.policy.turns import render_turn
from roleagent.rollout.context import first_user_text
from roleagent.seeding import generator
from roleagent.types import Split, Task

COLOURS = ("red", "green", "blue")
HALL = "You are in a hall."
TREASURE = ("green", "blue")
CHANCE = len(COLOURS) ** -2
MAX_STEPS = 2


class Doors:
    """Every task is the same game under another number. A wrong word counts as a step; two steps are all."""

    name = "doors"
    reward_range = (0.0, 1.0)
    guide = " | ".join(COLOURS)
    inline = True

    def __init__(self) -> None:
        self._room = ""
        self._steps = 0

    def tasks(self, split: Split) -> Sequence[Task]:
        return [Task(f"doors-{split}-{number}", "doors", "treasure", split) for number in range(8)]

    def reset(self, task_id: str) -> tuple[str, Observation]:
        self._room, self._steps = "", 0
        return "find the treasure", Observation(HALL, COLOURS)

    def step(self, action: str) -> Outcome:
        self._steps += 1
        valid = action in COLOURS
        if self._steps < MAX_STEPS:
            self._room = action if valid else ""
            text = f"You are in the {action} room." if valid else HALL
            return Outcome(Observation(text, COLOURS), 0.0, False, False, 0.0, valid)
        won = (self._room, action) == TREASURE
        text = "The chest is full." if won else "The chest is empty."
        return Outcome(Observation(text), float(won), True, won, float(won), valid)


def random_play(index: int) -> list[tuple[str, str]]:
    """(observation, turn) of each step of a player who picks colours at random and predicts well."""
    draw = generator("doors", index)
    environment = Doors()
    _, seen = environment.reset("doors-train-0")
    turns, text = [], seen.text
    for _ in range(MAX_STEPS):
        action = COLOURS[int(draw.integers(len(COLOURS)))]
        outcome = environment.step(action)
        turns.append((text, render_turn("", action, [outcome.observation.text])))
        text = outcome.observation.text
    return turns


def random_policy(steps: int = 60, seed: int = 0) -> Policy:
    """A small Llama that has learned the turn format from random play: every colour is about as likely as another."""
    plays = [random_play(index) for index in range(256)]
    opening = first_user_text("find the treasure", HALL)
    tokenizer = PolicyTokenizer(build_small_tokenizer([opening] + [turn for play in plays for _, turn in play], 400))
    model = build_small_model(
        tokenizer.vocab_size, width=32, layers=2, heads=2, kv_heads=1, intermediate=64, max_context=128, seed=seed
    )
    ids: list[list[int]] = []
    labels: list[list[int]] = []
    for play in plays:
        ids.append([])
        labels.append([])
        for number, (seen, turn) in enumerate(play):
            context = tokenizer.next_user(seen, False) if number else tokenizer.opening(None, opening)
            written = tokenizer.encode_text(turn)
            ids[-1] += context + written
            labels[-1] += [-100] * len(context) + written
    inputs = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in ids], True, 0)
    targets = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in labels], True, -100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model.train()
    for step in range(steps):
        rows = slice(step * 32 % len(plays), step * 32 % len(plays) + 32)
        loss = model(input_ids=inputs[rows], labels=targets[rows]).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    return Policy(model, tokenizer, "doors", 128)
