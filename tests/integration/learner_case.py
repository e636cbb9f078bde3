"""A tiny model and a seeded batch for the learner's tests. Run as a script, it is one rank of a distributed update."""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from roleagent.config.models import LearnerConfig
from roleagent.learning.learner import Learner
from roleagent.types import TrainingSequence, ValuePoint

VOCABULARY = 37


def tiny_model(seed: int = 0, *, tied: bool = True, family: str = "llama") -> PreTrainedModel:
    torch.manual_seed(seed)
    shape = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "tie_word_embeddings": tied,
        # Larger than usual, so that a token's probability really depends on what stands before it.
        "initializer_range": 0.2,
    }
    if family == "qwen2":
        return Qwen2ForCausalLM(Qwen2Config(**shape))
    return LlamaForCausalLM(LlamaConfig(**shape))


def random_sequences(count: int, seed: int = 0, *, shortest: int = 6, longest: int = 40) -> list[TrainingSequence]:
    """Sequences of turns; two of every three trajectories have one sequence, the third has two."""
    rng = np.random.default_rng(seed)
    sequences = []
    for place in range(count):
        length = int(rng.integers(shortest, longest))
        mask = rng.random(length) < 0.5
        mask[0], mask[-1] = False, True
        sequences.append(
            TrainingSequence(
                ids=tuple(rng.integers(0, VOCABULARY, length).tolist()),
                mask=tuple(mask.tolist()),
                advantages=tuple(np.where(mask, rng.normal(), 0.0).tolist()),
                old_logprobs=tuple(np.where(mask, rng.normal(-3.6, 0.4, length), 0.0).tolist()),
                trajectory_id=f"t{place * 3 // 4}",
            )
        )
    return sequences


def with_values(sequences: list[TrainingSequence], seed: int = 0) -> list[TrainingSequence]:
    """The same with a step's value asked for wherever a turn begins."""
    rng = np.random.default_rng(seed)
    return [
        dataclasses.replace(
            sequence,
            values=tuple(
                ValuePoint(place, float(rng.normal(scale=0.1)), float(rng.normal()))
                for place, (here, following) in enumerate(itertools.pairwise(sequence.mask))
                if following and not here
            ),
        )
        for sequence in sequences
    ]


#: name -> sequences in the batch, and what differs from the common configuration
RANK_CASES: dict[str, tuple[int, dict[str, float | str]]] = {
    # Many micro batches, and not the same number on both ranks.
    "recorded": (11, {"micro_batch_tokens": 64}),
    "recomputed": (11, {"micro_batch_tokens": 64, "old_logprobs": "recomputed"}),
    # One sequence in a minibatch: one of two ranks has nothing to do and must still take part.
    "idle-rank": (2, {"micro_batch_tokens": 16384}),
    # Sums over sequences and steps are those of all ranks, too.
    "values": (5, {"micro_batch_tokens": 64, "aggregation": "sequence", "ratio": "sequence", "value_coefficient": 0.5}),
}


def run_case(name: str, output: Path, accelerator: Accelerator | None = None) -> dict[str, float]:
    """Three updates of two passes and two optimizer steps each, the last one after a save and a load.

    Saves the result and returns the last metrics.
    """
    count, options = RANK_CASES[name]
    common = {"learning_rate": 1e-3, "kl_coefficient": 0.05, "minibatches": 2, "epochs": 2}
    config = LearnerConfig.model_validate(common | options)
    learner = Learner(tiny_model(1), tiny_model(2), config, seed=5, accelerator=accelerator)
    prepare = with_values if config.value_coefficient else list
    for iteration in range(2):
        learner.update(prepare(random_sequences(count, iteration)), temperature=0.9, iteration=iteration)
    learner.save(output)
    learner = Learner(tiny_model(7), tiny_model(2), config, seed=5, accelerator=accelerator)
    learner.load(output)
    metrics = learner.update(prepare(random_sequences(count, 2)), temperature=0.9, iteration=2)
    learner.save(output)
    if learner.is_main_process:
        (output / "metrics.json").write_text(json.dumps(metrics), encoding="utf-8")
    return metrics


def sharding_accelerator() -> Accelerator:
    """FSDP2 over gloo. Accelerate offers FSDP for accelerators only, so its choice is overruled by hand."""
    accelerator = Accelerator(cpu=True)
    accelerator.state._shared_state["distributed_type"] = DistributedType.FSDP
    accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
        reshard_after_forward=True,
        cpu_ram_efficient_loading=False,
    )
    return accelerator


if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in RANK_CASES:
        run_case(case, Path(sys.argv[1]) / case)
    run_case("recorded", Path(sys.argv[1]) / "sharded", sharding_accelerator())
