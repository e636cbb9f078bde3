"""The update beside TRL's, on the same multi-turn batch from the same weights: speed and memory.

Two batches:

- `episodes`: what the quickstart policy plays in four homes, eight episodes each; those of a home begin alike.
- `unlike`: a Qwen2 of five million parameters and 16 sequences of 350 to 750 random tokens, half of them generated in
  turns. No two have a beginning in common.

TRL's GRPOTrainer computes loss and gradient (`compute_loss`, `dapo` loss, environment tokens masked, no KL), AdamW
steps. Its sampling, data loading and logging are left out; activation checkpointing, its default and slower, is off.
Each side has the micro batches that suit it best, of those that were tried. One thread.

Both run in one process, in turn, for the speed; each in a process of its own, for the memory.
"""

from __future__ import annotations

import copy
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from roleagent.config.models import LearnerConfig
from roleagent.learning.learner import Learner
from roleagent.learning.packing import to_sequences
from roleagent.policy.small import PAD, build_small_tokenizer
from roleagent.types import TrainingSequence
from tests.benchmarks.generation_case import Case
from tests.benchmarks.timing import spent

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ROUNDS = 5
_VOCABULARY = 8192
_PROMPT = 40
_MEMORY = (
    "import json, sys; from tests.benchmarks import trl_update as it; it.torch.set_num_threads(1); "
    "print(json.dumps(it.peak(getattr(it, sys.argv[1]), it.CASES[sys.argv[2]]())))"
)


class Batch(NamedTuple):
    """Weights, and what they are trained on."""

    model: PreTrainedModel
    sequences: list[TrainingSequence]
    temperature: float
    our_tokens: int  #: of a micro batch of ours
    their_tokens: int  #: of a micro batch of TRL's, padding included


def unlike() -> Batch:
    """Turns of 20 generated tokens after 20 of the environment; the last token is generated."""
    torch.manual_seed(0)
    shape = {"vocab_size": _VOCABULARY, "hidden_size": 192, "intermediate_size": 768, "num_hidden_layers": 6}
    heads = {"num_attention_heads": 6, "num_key_value_heads": 2, "tie_word_embeddings": True}
    rng = np.random.default_rng(0)
    sequences = []
    for place in range(16):
        length = _PROMPT + 40 * int(rng.integers(8, 18)) + 20
        mask = [at >= _PROMPT and (at - _PROMPT) % 40 < 20 for at in range(length)]
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
    return Batch(Qwen2ForCausalLM(Qwen2Config(**shape, **heads)), sequences, 1.0, 1536, 3072)


def episodes() -> Batch:
    """Whole episodes, with an advantage drawn for each."""
    case = Case(tasks=4)
    trajectories = case.collect(0)
    rng = np.random.default_rng(0)
    advantages = {run.trajectory_id: np.full(len(run.steps), rng.normal()) for run in trajectories}
    return Batch(case.policy.model, to_sequences(trajectories, advantages), case.settings.temperature, 2048, 2048)


CASES: dict[str, Callable[[], Batch]] = {"episodes": episodes, "unlike": unlike}


def ours(batch: Batch) -> Callable[[], object]:
    """Return an update of the learner."""
    config = LearnerConfig(learning_rate=1e-5, kl_coefficient=0.0, micro_batch_tokens=batch.our_tokens)
    learner = Learner(copy.deepcopy(batch.model), None, config, seed=0)
    return lambda: learner.update(batch.sequences, temperature=batch.temperature, iteration=0)


def theirs(batch: Batch) -> Callable[[], object]:
    """Return an update with TRL's loss."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    tokenizer = build_small_tokenizer(["a b"], 400)
    tokenizer.pad_token, tokenizer.eos_token = PAD, tokenizer.convert_ids_to_tokens(4)
    folder = tempfile.mkdtemp()
    sequences = sorted(batch.sequences, key=lambda item: -len(item.ids))
    size = batch.their_tokens // len(sequences[0].ids)
    parts = [sequences[start : start + size] for start in range(0, len(sequences), size)]
    trainer = GRPOTrainer(
        model=copy.deepcopy(batch.model),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=len(sequences),
            num_generations=len(sequences),
            loss_type="dapo",
            temperature=batch.temperature,
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
    begins = [item.mask.index(True) for item in sequences]
    before = max(begins)
    width = max(len(item.ids) - begin for item, begin in zip(sequences, begins, strict=True))
    prompt, seen = (np.zeros((len(sequences), before)) for _ in range(2))
    ids, real, mask, old = (np.zeros((len(sequences), width)) for _ in range(4))
    for row, (item, begin) in enumerate(zip(sequences, begins, strict=True)):
        length = len(item.ids) - begin
        prompt[row, before - begin :], seen[row, before - begin :] = item.ids[:begin], 1
        ids[row, :length], real[row, :length] = item.ids[begin:], 1
        mask[row, :length], old[row, :length] = item.mask[begin:], item.old_logprobs[begin:]
    return {
        "prompt_ids": torch.from_numpy(prompt).long(),
        "prompt_mask": torch.from_numpy(seen).long(),
        "completion_ids": torch.from_numpy(ids).long(),
        "completion_mask": torch.from_numpy(real).long(),
        "tool_mask": torch.from_numpy(mask).long(),
        "advantages": torch.tensor(
            [item.advantages[begin] for item, begin in zip(sequences, begins, strict=True)], dtype=torch.float32
        ),
        "old_per_token_logps": torch.from_numpy(old).float(),
        "num_items_in_batch": tokens,
    }


def peak(make: Callable[[Batch], Callable[[], object]], batch: Batch) -> float:
    """Return the bytes that two updates add to the process at their height (Linux)."""
    update = make(batch)
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # forget the height of the imports
    before = _status("VmRSS")
    update()
    update()
    return _status("VmHWM") - before


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(float(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def measure(name: str) -> dict[str, float]:
    """Tokens a CPU second and peak bytes of both sides, and the ratios ours to TRL's."""
    batch = CASES[name]()
    tokens = sum(len(item.ids) for item in batch.sequences)
    updates = {"ours": ours(batch), "theirs": theirs(batch)}
    for update in updates.values():
        update()
    seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
    for turn in range(ROUNDS):
        for side in sorted(updates, reverse=bool(turn % 2)):
            seconds[side].append(spent(updates[side]).cpu)
    memory = {
        side: float(
            subprocess.run(
                [sys.executable, "-c", _MEMORY, side, name], check=True, capture_output=True, text=True
            ).stdout.splitlines()[-1]
        )
        for side in updates
    }
    return {
        "ratio": statistics.median(
            there / here for here, there in zip(seconds["ours"], seconds["theirs"], strict=True)
        ),
        "memory": memory["ours"] / memory["theirs"],
        "our_tokens": tokens / statistics.median(seconds["ours"]),
        "their_tokens": tokens / statistics.median(seconds["theirs"]),
        "our_peak": memory["ours"] / 2**20,
        "their_peak": memory["theirs"] / 2**20,
    }


def numbers() -> dict[str, float]:
    """For `make bench`: both batches."""
    torch.set_num_threads(1)
    apart, real = measure("unlike"), measure("episodes")
    return {
        "trl_update_ratio": apart["ratio"],
        "trl_memory_ratio": apart["memory"],
        "update_beside_trl_tokens_per_cpu_second": apart["our_tokens"],
        "trl_tokens_per_cpu_second": apart["their_tokens"],
        "update_beside_trl_peak_mb": apart["our_peak"],
        "trl_peak_mb": apart["their_peak"],
        "trl_update_episodes_ratio": real["ratio"],
        "trl_memory_episodes_ratio": real["memory"],
        "update_beside_trl_episodes_tokens_per_cpu_second": real["our_tokens"],
        "trl_episodes_tokens_per_cpu_second": real["their_tokens"],
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(numbers(), indent=1) + "\n")
