"""What the rollout loop itself costs: 64 household episodes, the model replaced by the expert's turns.

Run it with `python -m tests.benchmarks.rollout_overhead`. Engine, sampling and environment are taken out of the time;
what is left, a token, is the loop: bookkeeping, finding the ends of turns, decoding and parsing text, building records.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import torch

from roleagent.environments.household.demonstrations import demonstrate
from roleagent.environments.registry import make_environment
from roleagent.policy.model import build_small_tokenizer
from roleagent.policy.tokens import PolicyTokenizer
from roleagent.policy.turns import render_turn
from roleagent.rollout.context import first_user_text
from roleagent.rollout.loop import collect
from roleagent.rollout.meter import RolloutMeter
from roleagent.rollout.metrics import rollout_metrics
from roleagent.rollout.settings import RolloutSettings

EPISODES = 64
REPEATS = 5
log = logging.getLogger("rollout_overhead")


class ExpertEngine:
    """Writes prepared turns, found by the conversation's beginning."""

    device = torch.device("cpu")

    def __init__(self, vocab_size: int, turns: dict[tuple[int, ...], list[list[int]]]) -> None:
        self.vocab_size, self.max_context, self.turns = vocab_size, 1 << 20, turns
        self.plan: dict[int, list[list[int]]] = {}
        self.rest: dict[int, list[int]] = {}
        self.opened = 0

    def open(self, count: int, max_length: int) -> list[int]:
        self.opened += count
        return list(range(self.opened - count, self.opened))

    def truncate(self, slots: Sequence[int], lengths: Sequence[int]) -> None:
        """Nothing: it holds no tokens."""

    def fork(self, slot: int, length: int) -> int:
        """Nothing is shared here."""
        raise AssertionError("no two lanes share a slot")

    def close(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self.plan.pop(slot, None)

    def extend(self, slots: Sequence[int], ids: Sequence[Sequence[int]]) -> torch.Tensor:
        for slot, row in zip(slots, ids, strict=True):
            if slot not in self.plan:
                self.plan[slot] = list(self.turns[tuple(row)])
            self.rest[slot] = self.plan[slot].pop(0)[::-1]
        return self.step(slots, ())

    def step(self, slots: Sequence[int], token_ids: object) -> torch.Tensor:
        logits = torch.full((len(slots), self.vocab_size), -1e4)
        logits[torch.arange(len(slots)), torch.tensor([self.rest[slot].pop() for slot in slots])] = 0.0
        return logits


def numbers() -> dict[str, float]:
    """For `make bench`: CPU microseconds a token that the loop itself takes, and of a call of the environment."""
    best = measure()
    return {
        "rollout_loop_us_a_token": best["loop_microseconds_a_token"],
        "rollout_environment_us_a_call": best["environment_microseconds_a_call"],
    }


def main() -> None:
    """Measure and report."""
    for name, value in measure().items():
        log.info("%-34s %10.2f", name, value)


def measure() -> dict[str, float]:
    """Return the numbers of the repeat in which the loop took least."""
    torch.set_num_threads(1)
    time.perf_counter = time.thread_time  # the meter then counts CPU time, whatever else the machine does
    tasks = make_environment("household").tasks("train")[:EPISODES]
    demonstrations = [demonstrate(task.task_id, max_steps=50) for task in tasks]
    texts = [
        [render_turn(step.reasoning, step.action, [step.next_state]) for step in demo.steps] for demo in demonstrations
    ]
    openings = [first_user_text(demo.goal, demo.steps[0].state) for demo in demonstrations]
    tokenizer = PolicyTokenizer(build_small_tokenizer([*openings, *(text for turn in texts for text in turn)], 2000))
    turns = {
        tuple(tokenizer.opening(None, opening)): [tokenizer.encode_text(text) for text in episode]
        for opening, episode in zip(openings, texts, strict=True)
    }
    settings = RolloutSettings(
        horizon=1,
        max_steps=50,
        max_turn_tokens=300,
        max_context=100_000,
        concurrency=EPISODES,
        instructions=False,
        share=False,
    )
    best: dict[str, float] = {}
    for repeat in range(REPEATS):
        meter = RolloutMeter()
        trajectories = collect(
            ExpertEngine(tokenizer.vocab_size, turns),  # type: ignore[arg-type]
            tokenizer,
            lambda: make_environment("household"),
            [(task, 0) for task in tasks],
            settings,
            iteration=repeat,
            policy_version=0,
            seed=0,
            purpose="benchmark",
            meter=meter,
        )
        spent = meter.prefill_seconds + meter.decode_seconds + meter.environment_seconds
        loop = (meter.total_seconds - spent) / meter.decoded_tokens * 1e6
        metrics = rollout_metrics(trajectories)
        found = {
            "loop_microseconds_a_token": loop,
            "turn_tokens_mean": metrics["turn_tokens_mean"],
            "decode_batch_mean": meter.decoded_tokens / meter.decode_steps,
            "environment_microseconds_a_call": meter.environment_seconds / meter.environment_calls * 1e6,
            "success_rate": metrics["success_rate"],
        }
        if not best or loop < best["loop_microseconds_a_token"]:
            best = found
    return best


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    main()
