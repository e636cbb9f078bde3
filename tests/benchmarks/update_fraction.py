"""How near the policy update comes to the machine's matrix rate: one thread, the quickstart's policy and batch shape.

    fraction = 6 P operations a token / (CPU seconds of an update x matrix rate)

`P T` counts every matrix of the layers for each of the T input tokens, and the head for the generated tokens alone: 2
operations a parameter forwards, 4 backwards. Embeddings, norms and biases count nothing. The rate is the best of large
square float32 products of the same process, made between the updates. Two more numbers are of the same seconds: with
causal attention counted too (2 products forwards, 4 backwards, over the pairs that are not masked), and the operations
that are really made, where the last layer leaves out the tokens that nobody asks for.

Two groups of eight episodes of 8 to 20 turns, 60 tokens a turn of which 35 are generated, after 80 of the beginning.
"""

from __future__ import annotations

import json
import statistics
import sys
from typing import TYPE_CHECKING

import numpy as np
import torch

from roleagent.config.models import LearnerConfig
from roleagent.learning.learner import Learner
from roleagent.policy.small import build_small_model
from roleagent.types import TrainingSequence
from tests.benchmarks.timing import spent

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ROUNDS = 5
SIDES = (1024, 2048)
PROMPT, GENERATED, ENVIRONMENT = 80, 35, 25
_VOCABULARY = 1024


def batch(groups: int = 2, members: int = 8) -> list[TrainingSequence]:
    """Episodes whose last token is generated; those of a group begin alike."""
    rng = np.random.default_rng(0)
    sequences = []
    for group in range(groups):
        prompt = rng.integers(6, _VOCABULARY, PROMPT).tolist()
        for member in range(members):
            mask = [False] * PROMPT + ([True] * GENERATED + [False] * ENVIRONMENT) * int(rng.integers(8, 21))
            mask = mask[:-ENVIRONMENT]
            advantage = float(rng.normal())
            sequences.append(
                TrainingSequence(
                    ids=(*prompt, *rng.integers(6, _VOCABULARY, len(mask) - PROMPT).tolist()),
                    mask=tuple(mask),
                    advantages=tuple(advantage if flag else 0.0 for flag in mask),
                    old_logprobs=tuple(-6.9 if flag else 0.0 for flag in mask),
                    trajectory_id=f"{group}-{member}",
                    group=str(group),
                )
            )
    return sequences


def operations(model: PreTrainedModel, sequences: list[TrainingSequence]) -> tuple[float, float, float]:
    """Return floating-point operations of an update: of the matrices, with attention, and those really made."""
    config = model.config
    tokens = sum(len(item.ids) - 1 for item in sequences)
    scored = sum(sum(item.mask) for item in sequences)
    head = float(model.get_output_embeddings().weight.numel() * scored)
    layers = [dict(layer.named_parameters()) for layer in model.base_model.layers]
    sizes = [{name: item.numel() for name, item in layer.items() if item.dim() == 2} for layer in layers]
    matrices = sum(sum(layer.values()) for layer in sizes) * tokens + head
    spared = sum(size for name, size in sizes[-1].items() if "k_proj" not in name and "v_proj" not in name)
    seen = [np.arange(1, len(item.ids)) for item in sequences]  # keys that each token sees, itself included
    pairs = float(sum(item.sum() for item in seen))
    asked = float(sum(keys[np.asarray(item.mask[1:])].sum() for keys, item in zip(seen, sequences, strict=True)))
    width = 2.0 * config.num_attention_heads * config.head_dim
    attention = width * pairs * len(layers)
    made = matrices - spared * (tokens - scored) + attention - width * (pairs - asked)
    return 6 * matrices, 6 * (matrices + attention), 6 * made


def numbers(rounds: int = ROUNDS) -> dict[str, float]:
    """For `make bench`: the fractions, the rate in GFLOP a second, tokens a CPU second."""
    torch.set_num_threads(1)
    model = build_small_model(_VOCABULARY, max_context=1536)
    sequences = batch()
    counts = operations(model, sequences)
    config = LearnerConfig(learning_rate=1e-5, kl_coefficient=0.0, micro_batch_tokens=2048)
    learner = Learner(model, None, config, seed=0)
    squares = [torch.randn(side, side) for side in SIDES]
    seconds: list[float] = []
    metrics: list[dict[str, float]] = []
    rate = 0.0
    for turn in range(-1, rounds):  # the first warms up
        for square in squares:
            rate = max(rate, 2.0 * len(square) ** 3 / spent(lambda square=square: square @ square).cpu)
        took = spent(lambda: metrics.append(learner.update(sequences, temperature=1.0, iteration=0))).cpu
        seconds += [took] * (turn >= 0)
    limit = statistics.median(seconds) * rate
    return {
        "update_fraction_of_limit": counts[0] / limit,
        "update_fraction_with_attention": counts[1] / limit,
        "update_fraction_made": counts[2] / limit,
        "update_matrix_gflops": rate / 1e9,
        "update_quickstart_tokens_per_cpu_second": metrics[-1]["update/tokens"] / statistics.median(seconds),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(numbers(), indent=1) + "\n")
