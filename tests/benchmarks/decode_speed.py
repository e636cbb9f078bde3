"""Tokens a second of the engines on a policy of one million parameters, at contexts of about 500 tokens.

Run it with `python -m tests.benchmarks.decode_speed [threads]`. The best step of many is reported, which is least
disturbed by other processes, and the CPU time a token, which counts both.
"""

from __future__ import annotations

import logging
import sys
import time

from roleagent.policy.threads import limit_spinning

limit_spinning()

import numpy as np  # noqa: E402
import torch  # noqa: E402

from roleagent.policy.engines.base import Engine  # noqa: E402
from roleagent.policy.engines.llama_engine import LlamaEngine  # noqa: E402
from roleagent.policy.engines.transformers_engine import TransformersEngine  # noqa: E402
from roleagent.policy.sampling import sample  # noqa: E402
from roleagent.policy.small import build_small_model  # noqa: E402

VOCAB, CONTEXT, NEW = 2000, 485, 25
log = logging.getLogger("decode_speed")


def measure(name: str, engine: Engine, batch: int, steps: int) -> float:
    """Prefill, decode, prefill once more; report, and return CPU microseconds a decoded token."""
    rng = np.random.default_rng(0)
    slots = engine.open(batch, CONTEXT + 2 * NEW + steps + 10)

    def prefill(length: int) -> float:
        ids = [rng.integers(0, VOCAB, size=length + index % 10).tolist() for index in range(batch)]
        started = time.perf_counter()
        engine.extend(slots, ids)
        return sum(map(len, ids)) / (time.perf_counter() - started)

    first = prefill(CONTEXT)
    best, cpu = float("inf"), time.process_time()
    tokens = torch.zeros(batch, dtype=torch.long)
    for _ in range(steps):
        started = time.perf_counter()
        tokens, _ = sample(engine.step(slots, tokens), 1.0, rng.random(batch))
        best = min(best, time.perf_counter() - started)
    cpu = (time.process_time() - cpu) / (steps * batch) * 1e6
    more = prefill(NEW)
    log.info(
        "%-12s batch %3d: decode %6.0f tok/s (%.2f ms a step, %.0f us CPU a token), prefill %6.0f, with context %6.0f",
        *(name, batch, batch / best, best * 1e3, cpu, first, more),
    )
    engine.close(slots)
    return cpu


def numbers() -> dict[str, float]:
    """For `make bench`: CPU microseconds a token at batch 64, of the own engine and of a general one."""
    torch.set_num_threads(1)
    model = build_small_model(VOCAB)
    return {
        "decode_us_a_token": measure("llama", LlamaEngine(model), 64, 40),
        "decode_transformers_us_a_token": measure("transformers", TransformersEngine(model), 64, 8),
    }


def main() -> None:
    """Measure both engines at three batch sizes."""
    torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    model = build_small_model(VOCAB)
    log.info("%d parameters, %d threads", sum(weight.numel() for weight in model.parameters()), torch.get_num_threads())
    for batch in (8, 64, 200):
        measure("llama", LlamaEngine(model), batch, 60)
    for batch in (8, 64):
        measure("transformers", TransformersEngine(model), batch, 10)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    main()
