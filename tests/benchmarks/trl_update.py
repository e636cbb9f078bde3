"""The update beside TRL's, on the same multi-turn batch from the same weights: speed and memory.

A Qwen2 of five million parameters and 16 sequences of 350 to 750 tokens, half of them generated in turns. TRL's
GRPOTrainer computes loss and gradient (`compute_loss`, `dapo` loss, environment tokens masked, no KL), AdamW steps. Its
sampling, data loading and logging are left out; activation checkpointing, its default and slower, is off; its micro
batches hold as many sequences as fit into the tokens of ours. One thread.

Both run in one process, in turn, for the speed; each in a process of its own, for the memory.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from roleagent.config.models import LearnerConfig
from roleagent.learning.learner import Learner
from roleagent.policy.small import PAD, build_small_tokenizer
from roleagent.types import TrainingSequence
from tests.benchmarks.timing import spent

ROUNDS = 5
MICRO_BATCH_TOKENS = 3072
PROMPT = 40
_VOCABULARY = 8192
_MEMORY = (
    "import json, sys; from tests.benchmarks import trl_update as it; it.torch.set_num_threads(1); "
    "print(json.dumps(it.peak(getattr(it, sys.argv[1]))))"
)


def model() -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    shape = {"vocab_size": _VOCABULARY, "hidden_size": 192, "intermediate_size": 768, "num_hidden_layers": 6}
    heads = {"num_attention_heads": 6, "num_key_value_heads": 2, "tie_word_embeddings": True}
    return Qwen2ForCausalLM(Qwen2Config(**shape, **heads))


def batch() -> list[TrainingSequence]:
    """Turns of 20 generated tokens after 20 of the environment; the last token is generated."""
    rng = np.random.default_rng(0)
    sequences = []
    for place in range(16):
        length = PROMPT + 40 * int(rng.integers(8, 18)) + 20
        mask = [at >= PROMPT and (at - PROMPT) % 40 < 20 for at in range(length)]
        advantage = float(rng.normal())
        sequences.append(
            TrainingSequence(
                ids=tuple(rng.integers(6, _VOCABULARY, length).tolist()),
                mask=tuple(mask),
                advantages=tuple(advantage if flag else 0.0 for flag in mask),
                old_logprobs=tuple(-9.0 if flag else 0.0 for flag in mask),
                trajectory_id=str(place),
            )
        )
    return sequences


def ours() -> Callable[[], object]:
    """Return an update of the learner."""
    config = LearnerConfig(learning_rate=1e-5, kl_coefficient=0.0, micro_batch_tokens=MICRO_BATCH_TOKENS)
    learner = Learner(model(), None, config, seed=0)
    sequences = batch()
    return lambda: learner.update(sequences, temperature=1.0, iteration=0)


def theirs() -> Callable[[], object]:
    """Return an update with TRL's loss."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    tokenizer = build_small_tokenizer(["a b"], 400)
    tokenizer.pad_token, tokenizer.eos_token = PAD, tokenizer.convert_ids_to_tokens(4)
    folder = tempfile.mkdtemp()
    sequences = sorted(batch(), key=lambda item: -len(item.ids))
    size = MICRO_BATCH_TOKENS // len(sequences[0].ids)
    parts = [sequences[start : start + size] for start in range(0, len(sequences), size)]
    trainer = GRPOTrainer(
        model=model(),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=len(sequences),
            num_generations=len(sequences),
            loss_type="dapo",
            use_cpu=True,
            bf16=False,
            activation_checkpointing=False,
            report_to=[],
        ),
        train_dataset=Dataset.from_dict({"prompt": ["a"] * len(sequences)}),
        processing_class=tokenizer,
    )
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    tokens = torch.tensor(float(sum(sum(item.mask) for item in sequences)))
    inputs = [_inputs(part, tokens) for part in parts]
    optimizer = torch.optim.AdamW(trainer.model.parameters(), lr=1e-5, weight_decay=0.0, foreach=False, fused=False)

    def update() -> None:
        optimizer.zero_grad(set_to_none=True)
        for part in inputs:
            trainer.accelerator.backward(trainer.compute_loss(trainer.model, part))
        trainer.accelerator.clip_grad_norm_(trainer.model.parameters(), 1.0)
        optimizer.step()

    return update


def _inputs(sequences: list[TrainingSequence], tokens: torch.Tensor) -> dict[str, Any]:
    """A micro batch as TRL holds it: completions padded on the right, environment tokens in the tool mask."""
    width = max(len(item.ids) for item in sequences) - PROMPT
    ids, real, mask, old = (np.zeros((len(sequences), width)) for _ in range(4))
    for row, item in enumerate(sequences):
        length = len(item.ids) - PROMPT
        ids[row, :length], real[row, :length] = item.ids[PROMPT:], 1
        mask[row, :length], old[row, :length] = item.mask[PROMPT:], item.old_logprobs[PROMPT:]
    return {
        "prompt_ids": torch.tensor([item.ids[:PROMPT] for item in sequences]),
        "prompt_mask": torch.ones((len(sequences), PROMPT), dtype=torch.long),
        "completion_ids": torch.from_numpy(ids).long(),
        "completion_mask": torch.from_numpy(real).long(),
        "tool_mask": torch.from_numpy(mask).long(),
        "advantages": torch.tensor([item.advantages[PROMPT] for item in sequences]),
        "old_per_token_logps": torch.from_numpy(old).float(),
        "num_items_in_batch": tokens,
    }


def peak(make: Callable[[], Callable[[], object]]) -> float:
    """Return the bytes that two updates add to the process at their height (Linux)."""
    update = make()
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # forget the height of the imports
    before = _status("VmRSS")
    update()
    update()
    return _status("VmHWM") - before


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(float(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def numbers() -> dict[str, float]:
    """For `make bench`: tokens a CPU second and peak memory, and the ratios ours to TRL's."""
    torch.set_num_threads(1)
    tokens = sum(len(item.ids) for item in batch())
    updates = {"ours": ours(), "theirs": theirs()}
    for update in updates.values():
        update()
    seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
    for turn in range(ROUNDS):
        for name in sorted(updates, reverse=bool(turn % 2)):
            seconds[name].append(spent(updates[name]).cpu)
    memory = {
        name: float(
            subprocess.run(
                [sys.executable, "-c", _MEMORY, name], check=True, capture_output=True, text=True
            ).stdout.splitlines()[-1]
        )
        for name in updates
    }
    return {
        "trl_update_ratio": statistics.median(
            there / here for here, there in zip(seconds["ours"], seconds["theirs"], strict=True)
        ),
        "trl_memory_ratio": memory["ours"] / memory["theirs"],
        "update_beside_trl_tokens_per_cpu_second": tokens / statistics.median(seconds["ours"]),
        "trl_tokens_per_cpu_second": tokens / statistics.median(seconds["theirs"]),
        "update_beside_trl_peak_mb": memory["ours"] / 2**20,
        "trl_peak_mb": memory["theirs"] / 2**20,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(numbers(), indent=1) + "\n")
