"""The loss of the policy update, as pure functions on the n generated tokens of a micro batch.

The method, section 1 "Loss". With mu the recorded log-probs of the sampler, pi those of the trainer now and
pi_0 those of the trainer when it first saw the token in this update:

    loss_i = -weight_i min(rho_i A_i, clip(rho_i, 1 - clip_low, 1 + clip_high) A_i) + beta k3_i - eta H_i

`rho` is taken against `recorded_old` (default) or against pi_0 with a truncated importance weight; both bound the
sampler-trainer mismatch by `cap`. Every function here returns one value a token; the caller sums them and divides
by the generated tokens of the whole minibatch, so that accumulation over micro batches is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

#: Log-ratios are bounded by this before `exp`: beyond it float32 statistics overflow and the token is lost anyway.
MAX_LOG_RATIO = 20.0

#: Logits held at one time (positions x vocabulary): 128 MiB in float32.
MAX_LOGITS = 2**25

Head = Callable[[Tensor], Tensor]


class TokenScores(NamedTuple):
    """Log-probability and entropy (nats) of n generated tokens, float32 [n] each."""

    logprobs: Tensor
    entropy: Tensor


class Surrogate(NamedTuple):
    """The clipped surrogate of n tokens, float32 or bool [n] each."""

    loss: Tensor  #: to be minimised
    ratio: Tensor  #: detached
    clipped_low: Tensor  #: the lower clip took the gradient away (A < 0 and ratio < 1 - clip_low)
    clipped_high: Tensor  #: the upper clip took the gradient away (A > 0 and ratio > 1 + clip_high)


def score_tokens(
    head: Head,
    hidden: Tensor,
    targets: Tensor,
    temperature: float,
    *,
    entropy_gradient: bool = False,
    max_logits: int = MAX_LOGITS,
    vocabulary: int,
) -> TokenScores:
    """Score tokens from the hidden states that predict them; the head sees these positions only.

    Args:
        head: the LM head, [m, d] -> [m, V].
        hidden: [n, d], for generated positions only (fault 10 of the method, section 6).
        targets: int64 [n].
        temperature: of the sampler. Logits are divided by it, so that ratios start at 1.
        entropy_gradient: let the entropy carry a gradient (for an entropy bonus).
        max_logits: bound on m * V. When n needs several chunks their logits are recomputed in the backward pass.
        vocabulary: V.
    """
    rows = max(1, max_logits // vocabulary)
    if len(hidden) <= rows:
        return TokenScores(*_score_chunk(head, hidden, targets, temperature, entropy_gradient))
    parts = []
    for part, target in zip(torch.split(hidden, rows), torch.split(targets, rows), strict=True):
        arguments = (head, part, target, temperature, entropy_gradient)
        if torch.is_grad_enabled():
            parts.append(cast("tuple[Tensor, Tensor]", checkpoint(_score_chunk, *arguments, use_reentrant=False)))
        else:
            parts.append(_score_chunk(*arguments))
    logprobs, entropy = zip(*parts, strict=True)
    return TokenScores(torch.cat(logprobs), torch.cat(entropy))


def _score_chunk(
    head: Head, hidden: Tensor, targets: Tensor, temperature: float, entropy_gradient: bool
) -> tuple[Tensor, Tensor]:
    logits = head(hidden).float()
    if temperature != 1.0:
        logits = logits / temperature
    log_p = torch.log_softmax(logits, dim=-1)
    # A sum over the one column, not a view of it: FSDP puts hooks on what a module returns.
    logprobs = log_p.gather(1, targets.unsqueeze(1)).sum(dim=1)
    source = log_p if entropy_gradient else log_p.detach()
    return logprobs, -(source.exp() * source).sum(dim=-1)


def recorded_old(sampler: Tensor, first: Tensor, cap: float) -> Tensor:
    """Denominator of the ratio when it is taken against the sampler: `max(mu, log(pi_0 / cap))`, detached, [n].

    It is mu itself wherever the mismatch pi_0 / mu is within the cap; above it the ratio starts at `cap`.

    Args:
        sampler: mu, [n]: log-probs recorded at sampling time.
        first: log pi_0, [n]: the trainer's log-probs of the first pass.
        cap: largest sampler-trainer ratio, >= 1.
    """
    return torch.maximum(sampler, first.detach() - math.log(cap))


def importance_weight(sampler: Tensor, first: Tensor, cap: float) -> Tensor:
    """Truncated importance weight `min(pi_0 / mu, cap)`, detached, [n]: the factor when the ratio is pi / pi_0.

    Truncated importance sampling between the sampler's and the trainer's policy; arguments as in `recorded_old`.
    """
    return _exp(first.detach() - sampler).clamp(max=cap)


def clipped_surrogate(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    clip_low: float,
    clip_high: float,
    weight: Tensor | None = None,
) -> Surrogate:
    """Clipped surrogate of PPO with separate clips (the method, section 1 "Loss"), one value a token.

    Args:
        logprobs: log pi, [n], with gradient.
        old_logprobs: [n], without gradient.
        advantages: [n].
        clip_low: the ratio is clipped below at 1 - clip_low.
        clip_high: the ratio is clipped above at 1 + clip_high.
        weight: detached factor, [n]; 1 when absent.
    """
    ratio = _exp(logprobs - old_logprobs)
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss = -torch.minimum(ratio * advantages, clipped * advantages)
    if weight is not None:
        loss = loss * weight
    ratio = ratio.detach()
    return Surrogate(
        loss=loss,
        ratio=ratio,
        clipped_low=(ratio < 1.0 - clip_low) & (advantages < 0),
        clipped_high=(ratio > 1.0 + clip_high) & (advantages > 0),
    )


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """k3 estimate of KL(pi || pi_ref) at sampled tokens: `q - log q - 1` with q = pi_ref / pi; >= 0, [n].

    Unbiased for samples of pi and never negative (J. Schulman, "Approximating KL Divergence", 2020).
    """
    log_q = (reference - logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return torch.exp(log_q) - log_q - 1.0


def mismatch_ratio(first: Tensor, sampler: Tensor) -> Tensor:
    """pi_0 / mu, [n], detached: 1 where trainer and sampler agree on a token."""
    return _exp(first.detach() - sampler)


def _exp(log_ratio: Tensor) -> Tensor:
    return torch.exp(log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))
