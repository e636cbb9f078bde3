"""How near generation comes to what the processor can do, and what is in the way.

Whole rollouts of the preset `quickstart` (64 episodes side by side, environment and prefill included), one thread, CPU
time. The matrices of a token take 2 P operations, P their parameters with the head. The limit is the float32 rate of
large square products in the same run. Two more bounds are told beside it: attention's own operations, and the reading
of keys and values at the memory's copying speed, if each token reads those of its context once.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import torch

from roleagent.rollout.meter import RolloutMeter
from roleagent.types import Trajectory
from tests.benchmarks.generation_case import Case
from tests.benchmarks.timing import spent

ROUNDS = 5
_SQUARES = (512, 1024, 2048)
_COPIED_BYTES = 64 * 2**20


def matrix_parameters(case: Case) -> int:
    """Parameters that a token is multiplied with: all two-dimensional ones, the head once, the embedding not."""
    model = case.policy.model
    head = model.get_output_embeddings().weight
    inner = sum(weight.numel() for name, weight in model.model.layers.named_parameters() if weight.dim() == 2)
    return inner + head.numel()


def contexts(trajectories: Sequence[Trajectory]) -> int:
    """Sum over generated tokens of the tokens before each: what attention looks at to write it."""
    total = 0
    for trajectory in trajectories:
        length = 0
        for step in trajectory.steps:
            length = (length if step.continues else 0) + len(step.context_ids)
            count = len(step.generated_ids)
            total += count * length + count * (count - 1) // 2
            length += count
    return total


def best_rate(amount: float, work: Callable[[], object], repeats: int) -> float:
    """Return `amount` over the CPU seconds of the quickest of several."""
    work()
    quickest = float("inf")
    for _ in range(repeats):
        began = time.thread_time()
        work()
        quickest = min(quickest, time.thread_time() - began)
    return amount / quickest


def matrix_rate() -> float:
    """Float32 operations a CPU second of the best of large square products."""
    rates = []
    for size in _SQUARES:
        a, b = torch.randn(size, size), torch.randn(size, size)
        rates.append(best_rate(2.0 * size**3, lambda a=a, b=b: a @ b, 8))  # type: ignore[misc]
    return max(rates)


def copy_rate() -> float:
    """Bytes a CPU second that are read while a block larger than the caches is copied."""
    source = torch.randn(_COPIED_BYTES // 4)
    target = torch.empty_like(source)
    return best_rate(_COPIED_BYTES, lambda: target.copy_(source), 8)


def numbers() -> dict[str, float]:
    """For `make bench`: shares of the limit, and what bounds them."""
    torch.set_num_threads(1)
    case = Case()
    config = case.policy.model.config
    operations = 2.0 * matrix_parameters(case)
    # Scores and sums of values: 2 products of head_dim a head, a layer and a column.
    attention = 4.0 * config.num_attention_heads * config.head_dim * config.num_hidden_layers
    cache_bytes = 2.0 * 4 * config.num_key_value_heads * config.head_dim * config.num_hidden_layers
    matrices, memory, speeds, decode_shares = [matrix_rate()], [copy_rate()], [], []
    trajectories: list[Trajectory] = []
    for iteration in range(ROUNDS):
        meter = RolloutMeter()
        played: list[list[Trajectory]] = []
        seconds = spent(lambda n=iteration, m=meter, played=played: played.append(case.collect(n, m))).cpu  # type: ignore[misc]
        trajectories = played[0]
        speeds.append(meter.decoded_tokens / seconds)
        decode_shares.append(meter.decode_seconds / meter.total_seconds)
        matrices.append(matrix_rate())
        memory.append(copy_rate())
    tokens = sum(len(step.generated_ids) for trajectory in trajectories for step in trajectory.steps)
    context = contexts(trajectories) / tokens
    limit, speed = max(matrices), statistics.median(speeds)
    return {
        "generation_fraction_of_limit": speed * operations / limit,
        "generation_fraction_with_attention": speed * (operations + attention * context) / limit,
        "generation_cache_bound_tokens_per_second": max(memory) / (cache_bytes * context),
        "generation_cache_fraction": speed * cache_bytes * context / max(memory),
        "generation_rollout_tokens_per_cpu_second": speed,
        "generation_decode_share": statistics.median(decode_shares),
        "generation_context_mean": context,
        "generation_matrix_gflops": limit / 1e9,
        "copy_read_gb_per_second": max(memory) / 1e9,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(numbers(), indent=1) + "\n")
