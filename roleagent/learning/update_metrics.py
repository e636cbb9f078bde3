"""What an update measures: sums on the device while it runs, one reduction over ranks at the end."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from roleagent.learning import gradient_noise
from roleagent.learning import loss as losses
from roleagent.learning.packing import MicroBatch

if TYPE_CHECKING:
    from accelerate import Accelerator

_SUMS = (
    "loss",
    "policy_loss",
    "kl",
    "kl_tokens",
    "entropy",
    "clip_low",
    "clip_high",
    "ratio",
    "scored",
    "input",
    "padded",
    "shared",
    "mismatch_ratio",
    "mismatch_capped",
    "mismatch_gap",
    "mismatch_tokens",
    "value_loss",
    "value_error",
    "value_target",
    "value_target_square",
    "value_points",
)


class UpdateMetrics:
    """Sums of one update; nothing waits for the device before `result`.

    `update/loss`, `update/policy_loss` are what the minibatches minimised, in the mean over them; `update/entropy`
    (nats), `update/ratio_mean`, `update/clip_low_share`, `update/clip_high_share` are means over the generated tokens
    that were computed, and so is `update/kl` where there is a KL term; `update/shared_share` of the tokens stand in
    what sequences begin with alike, and were computed for another one. `mismatch/*` is measured in the first optimizer
    step alone, where the trainer still has the weights that sampled. `value/*` is there with a value head: its loss,
    and the share of the targets' variance that it explains. `gradient_noise/*` are means over the optimizer steps of
    the first pass (see `roleagent.learning.gradient_noise`).
    """

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(len(_SUMS), dtype=torch.float64, device=device)
        self._mismatch_max = torch.zeros((), dtype=torch.float64, device=device)
        self._minibatches = 0
        self._generated = 0
        self._skipped = 0
        self._norms: list[float] = []
        self._nonfinite = 0
        self._noise: list[tuple[float, float, float]] = []

    def add_minibatch(self, tokens: int, skipped: int) -> None:
        """Generated tokens of a minibatch, and how many of them were left out because nothing depends on them."""
        self._minibatches += 1
        self._generated += tokens
        self._skipped += skipped

    def add(
        self,
        batch: MicroBatch,
        total: Tensor,
        policy: Tensor,
        kl: Tensor | None,
        scores: losses.TokenScores,
        surrogate: losses.Surrogate,
    ) -> None:
        """Add a micro batch: its part of the losses, and values a token."""
        real = sum(batch.lengths)
        self._accumulate(
            loss=total,
            policy_loss=policy,
            kl=0.0 if kl is None else kl.sum(),
            kl_tokens=0 if kl is None else kl.numel(),
            entropy=scores.entropy.sum(),
            clip_low=surrogate.clipped_low.sum(),
            clip_high=surrogate.clipped_high.sum(),
            ratio=surrogate.ratio.sum(),
            scored=len(batch.targets),
            input=real,
            padded=max(batch.computed - real, 0),
            shared=max(real - batch.computed, 0),
        )

    def add_mismatch(self, first: Tensor, sampler: Tensor, cap: float) -> None:
        """Add the sampler-trainer ratio of n tokens that the untouched trainer scored."""
        ratio = losses.mismatch_ratio(first, sampler)
        self._accumulate(
            mismatch_ratio=ratio.sum(),
            mismatch_capped=(ratio > cap).sum(),
            mismatch_gap=(first.detach() - sampler).abs().sum(),
            mismatch_tokens=ratio.numel(),
        )
        self._mismatch_max = torch.maximum(self._mismatch_max, ratio.max().double())

    def add_values(self, values: Tensor, targets: Tensor, losses: Tensor) -> None:
        """Add the values of k states, what they were to be, and their clipped losses."""
        self._accumulate(
            value_loss=losses.sum(),
            value_error=((values - targets) ** 2).sum(),
            value_target=targets.sum(),
            value_target_square=(targets**2).sum(),
            value_points=values.numel(),
        )

    def add_gradient(self, norm: float) -> bool:
        """Record the norm before clipping; False if it is not finite: the step must not be taken."""
        if not math.isfinite(norm):
            self._nonfinite += 1
            return False
        self._norms.append(norm)
        return True

    def add_noise(self, half_square: float, whole_square: float, small: int, big: int) -> None:
        """Record the squared norms of half and whole of a minibatch's gradient, and their units."""
        self._noise.append((*gradient_noise.estimate(half_square, whole_square, small, big), float(big)))

    def result(self, accelerator: Accelerator) -> dict[str, float]:
        """All metrics, reduced over ranks."""
        totals = accelerator.reduce(self._sums, "sum").tolist()
        sums = dict(zip(_SUMS, totals, strict=True))
        scored = max(sums["scored"], 1.0)
        result = {
            "update/loss": sums["loss"] / self._minibatches,
            "update/policy_loss": sums["policy_loss"] / self._minibatches,
            "update/entropy": sums["entropy"] / scored,
            "update/ratio_mean": sums["ratio"] / scored,
            "update/clip_low_share": sums["clip_low"] / scored,
            "update/clip_high_share": sums["clip_high"] / scored,
            "update/grad_norm": sum(self._norms) / max(len(self._norms), 1),
            "update/optimizer_steps": float(len(self._norms)),
            "update/nonfinite_steps": float(self._nonfinite),
            "update/tokens": sums["input"],
            "update/generated_tokens": float(self._generated),
            "update/skipped_tokens": float(self._skipped),
            "update/padding_share": sums["padded"] / max(sums["input"] + sums["padded"], 1.0),
            "update/shared_share": sums["shared"] / max(sums["input"], 1.0),
        }
        if sums["kl_tokens"]:
            result["update/kl"] = sums["kl"] / sums["kl_tokens"]
        if self._noise:
            means = [sum(column) / len(self._noise) for column in zip(*self._noise, strict=True)]
            result |= dict(zip((gradient_noise.SIGNAL, gradient_noise.TRACE, gradient_noise.BATCH), means, strict=True))
        if sums["mismatch_tokens"]:
            count = sums["mismatch_tokens"]
            result["mismatch/ratio_mean"] = sums["mismatch_ratio"] / count
            result["mismatch/ratio_max"] = float(accelerator.gather(self._mismatch_max.reshape(1)).max())
            result["mismatch/capped_share"] = sums["mismatch_capped"] / count
            result["mismatch/logprob_gap_mean"] = sums["mismatch_gap"] / count
        if sums["value_points"]:
            count = sums["value_points"]
            mean = sums["value_target"] / count
            variance = max(sums["value_target_square"] / count - mean**2, 0.0)
            result["value/loss"] = sums["value_loss"] / count
            result["value/target_mean"] = mean
            # 1: every target is met; 0: no better than their mean. Equal targets leave nothing to explain.
            unexplained = sums["value_error"] / count / variance if variance > 1e-12 else 1.0
            result["value/explained_variance"] = 1.0 - unexplained
        return result

    def _accumulate(self, **values: Tensor | float) -> None:
        for name, value in values.items():
            self._sums[_SUMS.index(name)] += value.detach() if isinstance(value, Tensor) else value
