"""The policy update: sequences with a weight a token go in, better weights and metrics come out.

The learner knows no reward, no estimator and no environment. It runs through Accelerate, so one process on a CPU
and several on GPUs use the same code: every rank is handed the whole batch, takes its share of each minibatch and
weighs tokens by the whole of it, so the result does not depend on the number of ranks.

With `value_coefficient` above 0 it owns a value head too: `values` tells V(s_t) of every step, from which the
estimator makes advantages and targets, and `update` moves V towards the targets that came back with the sequences.

Simplified: the learning rate is constant within an update. Parameters are kept in float32; with bfloat16 only the
matrix products of the forward and backward pass are in bfloat16 (autocast).
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from roleagent.config.models import LearnerConfig
from roleagent.errors import ConfigError, DataQualityError, StorageError
from roleagent.learning import gradient_noise
from roleagent.learning import loss as losses
from roleagent.learning.batch_run import BatchRun
from roleagent.learning.checkpoint import (
    copy_weights,
    load_weights,
    matching_value_head,
    matching_weights,
    no_progress_bar,
    value_head_parameters,
    write_value_head,
)
from roleagent.learning.optimizer_state import full, load_optimizer, optimizer_tensors, read_json, write_optimizer
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
        if config.aggregation == "constant" and config.length_constant is None:
            raise ConfigError("learner.aggregation is 'constant': give learner.length_constant")
        self.config = config
        self.seed = seed
        self.updates = 0  #: calls of `update` so far
        self.optimizer_steps = 0  #: AdamW steps so far
        self._accelerator = accelerator or Accelerator(cpu=model.device.type == "cpu")
        self._model: PreTrainedModel = model.float()  # type: ignore[no-untyped-call]
        scorer = TokenScorer(self._model, dtype, value_head=config.value_coefficient > 0)
        self._value_head = scorer.value_head
        groups: list[dict[str, Any]] = [{"params": list(self._model.parameters())}]
        if self._value_head is not None:
            groups.append({"params": list(self._value_head.parameters()), "lr": config.value_learning_rate})
        optimizer = torch.optim.AdamW(
            groups, lr=config.learning_rate, weight_decay=config.weight_decay, foreach=False, fused=False
        )
        self._rates = [float(group["lr"]) for group in optimizer.param_groups]
        self._bare_scorer = scorer
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

    def update(
        self,
        sequences: Sequence[TrainingSequence],
        *,
        temperature: float,
        iteration: int,
        learning_rate_factor: float = 1.0,
    ) -> dict[str, float]:
        """Train on one batch: `epochs` passes of `minibatches` optimizer steps each.

        Args:
            sequences: the whole batch, the same on every rank.
            temperature: at which the sequences were sampled.
            iteration: names the draw of the minibatches.
            learning_rate_factor: on all learning rates in this update.

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
        run = BatchRun(sequences, temperature, metrics, keep=config.epochs > 1)
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * learning_rate_factor
        if config.old_logprobs == "recomputed" and config.epochs * len(shares) > 1:
            self._recompute(run, shares)
        for epoch in range(config.epochs):
            for place, share in enumerate(shares):
                self._step(run, share, self._half(run, share, iteration, place) if epoch == 0 else None)
        self.updates += 1
        result = metrics.result(self._accelerator)
        result["update/learning_rate"] = config.learning_rate * learning_rate_factor
        result["update/seconds"] = time.perf_counter() - started
        result["update/tokens_per_second"] = result["update/tokens"] / max(result["update/seconds"], 1e-9)
        return result

    def values(self, sequences: Sequence[TrainingSequence]) -> list[NDArray[np.float64]]:
        """V of the states that the sequences name, one array [steps] a sequence; to be called on every rank.

        Raises:
            ConfigError: there is no value head.
        """
        if self._value_head is None:
            raise ConfigError("there is no value head; set learner.value_coefficient above 0")
        found: list[NDArray[np.float64]] = [np.zeros(0)] * len(sequences)
        for batch in micro_batches(sequences, self.config.micro_batch_tokens, shared=self._bare_scorer.shares):
            none = self._tensor(batch.positions[:0])
            with torch.no_grad():
                _, _, values = self._scorer(
                    self._tensor(batch.input_ids),
                    none,
                    none,
                    1.0,
                    value_positions=self._tensor(batch.value_positions),
                    lengths=batch.lengths,
                )
            parts = torch.split(values.double().cpu(), list(batch.value_counts))
            for index, part in zip(batch.indices, parts, strict=True):
                found[index] = part.numpy()
        return found

    def _half(self, run: BatchRun, share: Sequence[int], iteration: int, step: int) -> gradient_noise.Half | None:
        """The part of a minibatch that is accumulated first. Ranks have no gradient in common before the last round."""
        if not self.config.gradient_noise or self._accelerator.num_processes > 1:
            return None
        return gradient_noise.draw_half(run.sequences, share, seed=self.seed, iteration=iteration, step=step)

    def _step(self, run: BatchRun, share: Sequence[int], half: gradient_noise.Half | None) -> None:
        """One optimizer step on a minibatch, given as positions in the batch."""
        whole = [run.sequences[index] for index in share]
        active = [index for index in share if self._has_signal(run.sequences[index])]
        tokens = generated_tokens(whole)
        run.metrics.add_minibatch(tokens, skipped=tokens - generated_tokens(run.sequences[index] for index in active))
        if not active:
            if half:  # a minibatch without a gradient is one of the draws that the means are over
                run.metrics.add_noise(0.0, 0.0, half.small, half.big)
            return
        size = _Size(tokens, len(whole), sum(len(sequence.values) for sequence in whole))
        self._optimizer.zero_grad(set_to_none=True)
        squares: list[Tensor] = []  # of the gradient after each part
        for part in half.parts(active) if half else [active]:
            for batch, last in self._rounds(run.sequences, part):
                accumulate = contextlib.nullcontext() if last else self._accelerator.no_sync(self._scorer)
                with accumulate:
                    total = self._loss(run, batch, size) if batch else self._nothing()
                    # Accelerate averages gradients over ranks; the loss is a sum over ranks.
                    self._accelerator.backward(total * self._accelerator.num_processes)
            if half:
                squares.append(gradient_noise.squared_norm(parameter.grad for parameter in self._scorer.parameters()))
        norm = self._accelerator.clip_grad_norm_(self._scorer.parameters(), self.config.max_grad_norm)
        if run.metrics.add_gradient(float(full(cast("Tensor", norm)))):
            if half:
                run.metrics.add_noise(float(squares[0]), float(squares[1]), half.small, half.big)
            self._optimizer.step()
            self.optimizer_steps += 1
            run.untouched = False

    def _loss(self, run: BatchRun, batch: MicroBatch, size: _Size) -> Tensor:
        """A micro batch's part of its minibatch's loss."""
        config = self.config
        scores, values = self._score(run, batch, self._scorer)
        recorded = self._tensor(batch.old_logprobs)
        first = run.first(batch, scores.logprobs)
        if config.old_logprobs == "recomputed":
            old, weight = first, losses.importance_weight(recorded, first, config.importance_cap)
        else:
            old, weight = losses.recorded_old(recorded, first, config.importance_cap), None
        surrogate = losses.clipped_surrogate(
            losses.log_ratio(scores.logprobs, old, batch.counts, config.ratio),
            self._tensor(batch.advantages),
            config.clip_low,
            config.clip_high,
            weight,
        )
        shares = losses.token_weights(
            batch.counts,
            config.aggregation,
            tokens=size.tokens,
            sequences=size.sequences,
            length=config.length_constant,
        ).to(self._accelerator.device)
        policy = (surrogate.loss * shares).sum()
        total = policy
        kl = None
        if self._reference is not None:
            kl = losses.k3(scores.logprobs, self._reference_logprobs(run, batch))
            total = total + config.kl_coefficient * (kl * shares).sum()
        if config.entropy_coefficient > 0:
            total = total - config.entropy_coefficient * (scores.entropy * shares).sum()
        if self._value_head is not None:
            old_values, targets = self._tensor(batch.old_values), self._tensor(batch.value_targets)
            errors = losses.clipped_value_loss(values, old_values, targets, config.value_clip)
            total = total + config.value_coefficient * errors.sum() / max(size.values, 1)
            run.metrics.add_values(values, targets, errors)
        run.metrics.add(batch, total, policy, kl, scores, surrogate)
        if run.untouched:
            run.metrics.add_mismatch(scores.logprobs, recorded, config.importance_cap)
        return total

    def _score(self, run: BatchRun, batch: MicroBatch, scorer: nn.Module) -> tuple[losses.TokenScores, Tensor]:
        logprobs, entropy, values = scorer(
            self._tensor(batch.input_ids),
            self._tensor(batch.positions),
            self._tensor(batch.targets),
            run.temperature,
            entropy_gradient=self.config.entropy_coefficient > 0,
            value_positions=self._tensor(batch.value_positions),
            lengths=batch.lengths,
        )
        return losses.TokenScores(logprobs, entropy), values

    def _reference_logprobs(self, run: BatchRun, batch: MicroBatch) -> Tensor:
        found = run.recall(run.references, batch)
        if found is None:
            with torch.no_grad():
                found = self._score(run, batch, cast("TokenScorer", self._reference))[0].logprobs
            run.remember(run.references, batch, found)
        return found

    def _recompute(self, run: BatchRun, shares: Sequence[Sequence[int]]) -> None:
        """Score the whole batch with the weights of the start of the update, without gradient."""
        run.keep = True
        for share in shares:
            active = [index for index in share if self._has_signal(run.sequences[index])]
            for batch, _ in self._rounds(run.sequences, active):
                with torch.no_grad():
                    if batch is None:
                        self._nothing()
                    else:
                        run.remember(run.firsts, batch, self._score(run, batch, self._scorer)[0].logprobs)

    def _has_signal(self, sequence: TrainingSequence) -> bool:
        """Without other terms a sequence of zero advantages has a zero gradient: it need not be computed."""
        config = self.config
        others = config.kl_coefficient > 0 or config.entropy_coefficient > 0 or bool(sequence.values)
        return others or any(sequence.advantages)

    def _rounds(
        self, sequences: Sequence[TrainingSequence], indices: Sequence[int]
    ) -> Iterator[tuple[MicroBatch | None, bool]]:
        """This rank's micro batches of a minibatch, and whether it is the last one.

        Every rank must run the model equally often, or the others wait for ever: a rank with fewer micro batches
        gets None at the end.
        """
        ranks = rank_share(sequences, indices, self._accelerator.num_processes)
        size, shared = self.config.micro_batch_tokens, self._bare_scorer.shares
        plans = [micro_batches(sequences, size, rank, shared=shared) for rank in ranks]
        rounds = max(map(len, plans))
        mine = plans[self._accelerator.process_index]
        for place in range(rounds):
            yield (mine[place] if place < len(mine) else None), place == rounds - 1

    def _nothing(self) -> Tensor:
        """A forward pass that adds zero to every gradient."""
        one = torch.zeros(1, dtype=torch.long, device=self._accelerator.device)
        logprobs, _, values = self._scorer(one.view(1, 1), one, one, 1.0)
        return cast("Tensor", (logprobs.sum() + values.sum()) * 0.0)

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

        A value head is in a file of its own, so that the folder stays a model like any other.

        To be called on every rank; the main one writes.
        """
        weights = self.weights()
        moments = optimizer_tensors(self._optimizer.optimizer, self._parameters())
        head = {name: full(item.detach()).cpu() for name, item in value_head_parameters(self._value_head)}
        if self.is_main_process:
            folder.mkdir(parents=True, exist_ok=True)
            with no_progress_bar():
                self._model.save_pretrained(folder, state_dict=weights)
            write_optimizer(moments, folder / "optimizer.safetensors")
            if head:
                write_value_head(head, folder)
            record = {"format": _FORMAT, "updates": self.updates, "optimizer_steps": self.optimizer_steps}
            (folder / "learner.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        self._accelerator.wait_for_everyone()

    def _parameters(self) -> list[tuple[str, nn.Parameter]]:
        return [*self._model.named_parameters(), *value_head_parameters(self._value_head)]

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
        pairs = matching_weights(self._model, folder) + matching_value_head(self._value_head, folder)
        load_optimizer(self._optimizer.optimizer, self._parameters(), folder / "optimizer.safetensors")
        copy_weights(pairs)
        self.updates, self.optimizer_steps = cast("tuple[int, int]", counters)


class _Size(NamedTuple):
    """What a minibatch holds on all ranks together; its losses are divided by these."""

    tokens: int  #: generated ones
    sequences: int  #: with a generated token
    values: int  #: steps whose value is taught


__all__ = ["Learner", "load_weights"]
