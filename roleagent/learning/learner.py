"""The policy update: sequences with a weight a token go in, better weights and metrics come out.

The learner knows no reward, no estimator and no environment. It runs through Accelerate, so one process on a CPU
and several on GPUs use the same code: every rank is handed the whole batch, takes its share of each minibatch and
divides by the generated tokens of the whole of it, so the result does not depend on the number of ranks.

Two things are simplified. The learning rate is constant. Parameters are kept in float32; with bfloat16 only the
matrix products of the forward and backward pass are in bfloat16 (autocast).
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor, nn

from roleagent.config.models import LearnerConfig
from roleagent.errors import ConfigError, DataQualityError, StorageError
from roleagent.learning import loss as losses
from roleagent.learning.optimizer_state import (
    full,
    like,
    load_optimizer,
    optimizer_tensors,
    read_json,
    read_tensors,
    write_optimizer,
)
from roleagent.learning.packing import MicroBatch, generated_tokens, micro_batches, minibatches, rank_share
from roleagent.learning.scorer import TokenScorer
from roleagent.learning.update_metrics import UpdateMetrics
from roleagent.types import TrainingSequence

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel

_FORMAT = "roleagent-learner-1"


class Learner:
    """Owns the trained weights and AdamW's state.

    Args:
        model: a causal LM; its parameters are trained in place and turned to float32 if they are not.
        reference_model: the frozen initial policy; needed exactly when `config.kl_coefficient` > 0.
        config: knobs of the update.
        seed: the run's seed; it decides the split into minibatches.
        accelerator: from the launcher; by default one for the device that the model is on.
        dtype: type of the matrix products.

    Raises:
        ConfigError: a KL term is asked for without a reference model, or the reference is the model itself.
        PolicyError: the model computes its logits in a way the learner cannot reproduce.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        reference_model: PreTrainedModel | None,
        config: LearnerConfig,
        seed: int,
        accelerator: Accelerator | None = None,
        *,
        dtype: Literal["float32", "bfloat16"] = "float32",
    ) -> None:
        from accelerate import Accelerator

        if config.kl_coefficient > 0 and reference_model is None:
            raise ConfigError("learner.kl_coefficient is above 0 but there is no reference model; set it to 0")
        if reference_model is model:
            raise ConfigError("the reference model must be a copy of its own; it is frozen while the policy moves")
        self.config = config
        self.seed = seed
        self.updates = 0  #: calls of `update` so far
        self.optimizer_steps = 0  #: AdamW steps so far
        self._accelerator = accelerator or Accelerator(cpu=model.device.type == "cpu")
        self._model: PreTrainedModel = model.float()  # type: ignore[no-untyped-call]
        scorer = TokenScorer(self._model, dtype)
        optimizer = torch.optim.AdamW(
            scorer.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay, foreach=False, fused=False
        )
        self._scorer, self._optimizer = self._accelerator.prepare(scorer, optimizer)
        self._reference: TokenScorer | None = None
        if config.kl_coefficient > 0 and reference_model is not None:
            self._reference = TokenScorer(reference_model.requires_grad_(False), dtype).to(self._accelerator.device)

    @property
    def model(self) -> PreTrainedModel:
        """The trained model, outside of any wrapper."""
        return self._model

    @property
    def is_main_process(self) -> bool:
        """True on the one rank that writes files."""
        return bool(self._accelerator.is_main_process)

    def update(self, sequences: Sequence[TrainingSequence], *, temperature: float, iteration: int) -> dict[str, float]:
        """Train on one batch: `epochs` passes of `minibatches` optimizer steps each.

        Args:
            sequences: the whole batch, the same on every rank.
            temperature: at which the sequences were sampled.
            iteration: names the draw of the minibatches.

        Returns:
            The metrics of `UpdateMetrics`, and `update/learning_rate`, `update/seconds`, `update/tokens_per_second`.

        Raises:
            DataQualityError: there is no generated token in the batch.
        """
        started = time.perf_counter()
        sequences = [sequence for sequence in sequences if any(sequence.mask)]
        if not sequences:
            raise DataQualityError("the batch holds no generated token; there is nothing to train on")
        config = self.config
        shares = minibatches(sequences, config.minibatches, seed=self.seed, iteration=iteration)
        metrics = UpdateMetrics(self._accelerator.device)
        run = _Run(sequences, temperature, metrics, keep=config.epochs > 1)
        if config.old_logprobs == "recomputed" and config.epochs * len(shares) > 1:
            self._recompute(run, shares)
        for _ in range(config.epochs):
            for share in shares:
                self._step(run, share)
        self.updates += 1
        result = metrics.result(self._accelerator)
        result["update/learning_rate"] = config.learning_rate
        result["update/seconds"] = time.perf_counter() - started
        result["update/tokens_per_second"] = result["update/tokens"] / max(result["update/seconds"], 1e-9)
        return result

    def _step(self, run: _Run, share: Sequence[int]) -> None:
        """One optimizer step on a minibatch, given as positions in the batch."""
        tokens = generated_tokens(run.sequences[index] for index in share)
        active = [index for index in share if self._has_signal(run.sequences[index])]
        run.metrics.add_minibatch(tokens, skipped=tokens - generated_tokens(run.sequences[index] for index in active))
        if not active:
            return
        # Accelerate averages gradients over ranks; the loss is a sum over ranks.
        scale = self._accelerator.num_processes / tokens
        self._optimizer.zero_grad(set_to_none=True)
        for batch, last in self._rounds(run.sequences, active):
            accumulate = contextlib.nullcontext() if last else self._accelerator.no_sync(self._scorer)
            with accumulate:
                total = self._loss(run, batch) if batch else self._nothing()
                self._accelerator.backward(total * scale)
        norm = self._accelerator.clip_grad_norm_(self._scorer.parameters(), self.config.max_grad_norm)
        if run.metrics.add_gradient(float(full(cast("Tensor", norm)))):
            self._optimizer.step()
            self.optimizer_steps += 1
            run.untouched = False

    def _loss(self, run: _Run, batch: MicroBatch) -> Tensor:
        """Sum of the loss over a micro batch's generated tokens."""
        config = self.config
        scores = self._score(run, batch, self._scorer)
        recorded = self._tensor(batch.old_logprobs)
        first = run.first(batch, scores.logprobs)
        if config.old_logprobs == "recomputed":
            old, weight = first, losses.importance_weight(recorded, first, config.importance_cap)
        else:
            old, weight = losses.recorded_old(recorded, first, config.importance_cap), None
        surrogate = losses.clipped_surrogate(
            scores.logprobs, old, self._tensor(batch.advantages), config.clip_low, config.clip_high, weight
        )
        policy = surrogate.loss.sum()
        total = policy
        kl = None
        if self._reference is not None:
            kl = losses.k3(scores.logprobs, self._reference_logprobs(run, batch)).sum()
            total = total + config.kl_coefficient * kl
        if config.entropy_coefficient > 0:
            total = total - config.entropy_coefficient * scores.entropy.sum()
        run.metrics.add(batch, total, policy, kl, scores, surrogate)
        if run.untouched:
            run.metrics.add_mismatch(scores.logprobs, recorded, config.importance_cap)
        return total

    def _score(self, run: _Run, batch: MicroBatch, scorer: nn.Module) -> losses.TokenScores:
        scores = scorer(
            self._tensor(batch.input_ids),
            self._tensor(batch.positions),
            self._tensor(batch.targets),
            run.temperature,
            entropy_gradient=self.config.entropy_coefficient > 0,
        )
        return losses.TokenScores(*scores)

    def _reference_logprobs(self, run: _Run, batch: MicroBatch) -> Tensor:
        found = run.recall(run.references, batch)
        if found is None:
            with torch.no_grad():
                found = self._score(run, batch, cast("TokenScorer", self._reference)).logprobs
            run.remember(run.references, batch, found)
        return found

    def _recompute(self, run: _Run, shares: Sequence[Sequence[int]]) -> None:
        """Score the whole batch with the weights of the start of the update, without gradient."""
        run.keep = True
        for share in shares:
            active = [index for index in share if self._has_signal(run.sequences[index])]
            for batch, _ in self._rounds(run.sequences, active):
                with torch.no_grad():
                    if batch is None:
                        self._nothing()
                    else:
                        run.remember(run.firsts, batch, self._score(run, batch, self._scorer).logprobs)

    def _has_signal(self, sequence: TrainingSequence) -> bool:
        """Without KL and entropy terms a sequence of zero advantages has a zero gradient: it need not be computed."""
        return self.config.kl_coefficient > 0 or self.config.entropy_coefficient > 0 or any(sequence.advantages)

    def _rounds(
        self, sequences: Sequence[TrainingSequence], indices: Sequence[int]
    ) -> Iterator[tuple[MicroBatch | None, bool]]:
        """This rank's micro batches of a minibatch, and whether it is the last one.

        Every rank must run the model equally often, or the others wait for ever: a rank with fewer micro batches
        gets None at the end.
        """
        ranks = rank_share(sequences, indices, self._accelerator.num_processes)
        plans = [micro_batches(sequences, self.config.micro_batch_tokens, rank) for rank in ranks]
        rounds = max(map(len, plans))
        mine = plans[self._accelerator.process_index]
        for place in range(rounds):
            yield (mine[place] if place < len(mine) else None), place == rounds - 1

    def _nothing(self) -> Tensor:
        """A forward pass that adds zero to every gradient."""
        one = torch.zeros(1, dtype=torch.long, device=self._accelerator.device)
        logprobs, _ = self._scorer(one.view(1, 1), one, one, 1.0)
        return cast("Tensor", logprobs.sum() * 0.0)

    def _tensor(self, array: Any) -> Tensor:
        return torch.from_numpy(array).to(self._accelerator.device)

    def weights(self) -> dict[str, Tensor]:
        """The whole model by parameter name, for an engine or a file. To be called on every rank.

        These are the trained tensors themselves, not copies. Where the model is sharded they are gathered, and every
        rank gets all of it on the CPU.
        """
        gathered: dict[Tensor, Tensor] = {}  # tied weights are one tensor and stay one
        result = {}
        for name, tensor in self._model.state_dict(keep_vars=True).items():
            if tensor not in gathered:
                gathered[tensor] = full(tensor.detach())
            result[name] = gathered[tensor]
        return result

    def save(self, folder: Path) -> None:
        """Write `model.safetensors` and `config.json` as `from_pretrained` reads them, AdamW's state and counters.

        To be called on every rank; the main one writes.
        """
        weights = self.weights()
        moments = optimizer_tensors(self._optimizer.optimizer, self._model.named_parameters())
        if self.is_main_process:
            folder.mkdir(parents=True, exist_ok=True)
            with _no_progress_bar():
                self._model.save_pretrained(folder, state_dict=weights)
            write_optimizer(moments, folder / "optimizer.safetensors")
            record = {"format": _FORMAT, "updates": self.updates, "optimizer_steps": self.optimizer_steps}
            (folder / "learner.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        self._accelerator.wait_for_everyone()

    def load(self, folder: Path) -> None:
        """Take over weights, AdamW's state and counters from a folder that `save` wrote. To be called on every rank.

        Raises:
            StorageError: a file is missing, damaged or of another model; the learner is as it was.
        """
        path = folder / "learner.json"
        record = read_json(path)
        if record.get("format") != _FORMAT:
            raise StorageError(
                f"{path}: format is {record.get('format')!r}, expected {_FORMAT!r}; use another checkpoint"
            )
        counters = record.get("updates"), record.get("optimizer_steps")
        if not all(isinstance(counter, int) for counter in counters):
            raise StorageError(f"{path}: the counters are missing; restore it or use an older checkpoint")
        # Everything is read and compared first: a damaged folder leaves the learner as it was.
        pairs = _matching_weights(self._model, folder)
        load_optimizer(self._optimizer.optimizer, self._model.named_parameters(), folder / "optimizer.safetensors")
        _copy(pairs)
        self.updates, self.optimizer_steps = cast("tuple[int, int]", counters)


class _Run:
    """One call of `update`: the batch, and the log-probs that stay fixed during it, kept by sequence."""

    def __init__(
        self, sequences: Sequence[TrainingSequence], temperature: float, metrics: UpdateMetrics, *, keep: bool
    ) -> None:
        self.sequences = sequences
        self.temperature = temperature
        self.metrics = metrics
        self.keep = keep  #: a later pass will ask again
        self.untouched = True  #: the weights are still those of the start of the update
        self.firsts: dict[int, Tensor] = {}
        self.references: dict[int, Tensor] = {}

    def first(self, batch: MicroBatch, now: Tensor) -> Tensor:
        """The trainer's log-probs when it first saw these tokens in this update: kept ones, or those of now."""
        found = self.recall(self.firsts, batch)
        if found is None:
            found = now.detach()
            self.remember(self.firsts, batch, found)
        return found

    def recall(self, kept: dict[int, Tensor], batch: MicroBatch) -> Tensor | None:
        if any(index not in kept for index in batch.indices):
            return None
        return torch.cat([kept[index] for index in batch.indices])

    def remember(self, kept: dict[int, Tensor], batch: MicroBatch, logprobs: Tensor) -> None:
        if self.keep:
            kept.update(zip(batch.indices, torch.split(logprobs, list(batch.counts)), strict=True))


@contextlib.contextmanager
def _no_progress_bar() -> Iterator[None]:
    """Saving draws a progress bar on the terminal unless it is told not to."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def load_weights(model: nn.Module, folder: Path) -> None:
    """Copy the weights of a `save_pretrained` folder into a model of the same shape, in place.

    Raises:
        StorageError: a file is missing, damaged or of another model; the model is as it was.
    """
    _copy(_matching_weights(model, folder))


def _matching_weights(model: nn.Module, folder: Path) -> list[tuple[Tensor, Tensor]]:
    """Pairs (tensor of the model, stored tensor); tied weights are stored once, under one of their names."""
    index = folder / "model.safetensors.index.json"
    names = sorted(set(read_json(index)["weight_map"].values())) if index.is_file() else ["model.safetensors"]
    stored: dict[str, Tensor] = {}
    for name in names:
        stored.update(read_tensors(folder / name))
    aliases: dict[Tensor, list[str]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        aliases.setdefault(tensor, []).append(name)
    pairs = []
    for tensor, known in aliases.items():
        found = next((stored[name] for name in known if name in stored), None)
        if found is None or found.shape != tensor.shape:
            raise StorageError(f"{folder}: '{known[0]}' is missing or of another shape; use the model's own checkpoint")
        pairs.append((tensor, found))
    return pairs


@torch.no_grad()
def _copy(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    for target, source in pairs:
        target.copy_(like(source, target))
