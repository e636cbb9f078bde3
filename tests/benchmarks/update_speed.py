"""Speed of the policy update on CPU: `python -m tests.benchmarks.update_speed --threads 2 --micro-batch-tokens 2048`.

A Llama of one million parameters (width 128, 4 layers, 4 heads over 2 key-value heads, 700 tokens, tied) and 64
sequences of 350 to 750 tokens, half of them generated. CPU seconds count all threads: on a machine that is busy with
other work they say more than wall seconds.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from roleagent.config.models import LearnerConfig
from roleagent.learning.learner import Learner
from roleagent.types import TrainingSequence
from tests.benchmarks.timing import median_cpu


def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    shape = {"vocab_size": 700, "hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 4}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True}
    return LlamaForCausalLM(LlamaConfig(**shape, **heads))


def batch(count: int) -> list[TrainingSequence]:
    """Turns of 22 generated tokens after 20 of context; recorded log-probs near those of the fresh model."""
    rng = np.random.default_rng(0)
    sequences = []
    for place in range(count):
        length = int(rng.integers(350, 750))
        mask = [at >= 40 and at % 42 < 22 for at in range(length)]
        sequences.append(
            TrainingSequence(
                ids=tuple(rng.integers(0, 700, length).tolist()),
                mask=tuple(mask),
                advantages=tuple(0.5 if flag else 0.0 for flag in mask),
                old_logprobs=tuple(-6.55 if flag else 0.0 for flag in mask),
                trajectory_id=str(place),
            )
        )
    return sequences


def numbers() -> dict[str, float]:
    """For `make bench`: tokens a CPU second of an update of 24 sequences, with and without a reference model."""
    torch.set_num_threads(1)
    sequences = batch(24)
    found = {}
    for name, kl in (("update_plain", 0.0), ("update_with_reference", 0.01)):
        config = LearnerConfig(learning_rate=3e-4, kl_coefficient=kl, micro_batch_tokens=2048)
        learner = Learner(model(), model() if kl else None, config, seed=0, dtype="float32")
        tokens: list[float] = []

        def update(iteration: int, learner: Learner = learner, tokens: list[float] = tokens) -> None:
            tokens.append(learner.update(sequences, temperature=1.0, iteration=iteration)["update/tokens"])

        seconds = median_cpu(3, update)
        found[f"{name}_tokens_per_cpu_second"] = tokens[0] / seconds
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--micro-batch-tokens", type=int, nargs="+", default=[1024, 2048, 4096, 16384])
    parser.add_argument("--kl", type=float, nargs="+", default=[0.0])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--updates", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    sequences = batch(arguments.sequences)
    for kl in arguments.kl:
        for bound in arguments.micro_batch_tokens:
            config = LearnerConfig(learning_rate=3e-4, kl_coefficient=kl, micro_batch_tokens=bound)
            learner = Learner(model(), model() if kl else None, config, seed=0, dtype=arguments.dtype)
            wall, cpu = [], []
            for iteration in range(arguments.updates):
                began = time.process_time()
                metrics = learner.update(sequences, temperature=1.0, iteration=iteration)
                cpu.append(time.process_time() - began)
                wall.append(metrics["update/seconds"])
            tokens = metrics["update/tokens"]
            sys.stdout.write(
                f"kl {kl:g}, micro batch {bound:>5}: {tokens:.0f} tokens, {min(wall):.2f} s, {tokens / min(wall):.0f} "
                f"tok/s; {min(cpu):.2f} CPU s, {tokens / min(cpu):.0f} tok/CPU s; "
                f"padding {metrics['update/padding_share']:.1%}; "
                f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
