"""The loss of the policy update, as pure functions on the n generated tokens of a micro batch.

The method, section 1 "Loss". With mu the recorded log-probs of the sampler, pi those of the trainer now and
pi_0 those of the trainer when it first saw the token in this update:

    loss_i = -u_i min(rho_i A_i, clip(rho_i, 1 - clip_low, 1 + clip_high) A_i) + beta k3_i - eta H_i
    loss   = sum_i w_i loss_i + c sum_s max((V_s - R_s)^2, (clip(V_s) - R_s)^2) / (2 S)

`rho` is taken against `recorded_old` (default) or against pi_0 with a truncated importance weight u; both bound the
sampler-trainer mismatch by `cap`. It belongs to a token or to the whole sequence (`log_ratio`). w aggregates tokens
(`token_weights`); it counts the whole minibatch, so that accumulation over micro batches and ranks is exact. The
second sum is over the S steps whose value the value head is taught (PPO alone).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from roleagent.learning.packed_ops import token_scores

#: Log-ratios are bounded by this before `exp`: beyond it float32 statistics overflow and the token is lost anyway.
MAX_LOG_RATIO = 20.0

#: Logits held at one time (positions x vocabulary): 128 MiB in float32.
MAX_LOGITS = 2**25

Head = Callable[[Tensor], Tensor]
RatioLevel = Literal["token", "sequence", "product"]
Aggregation = Literal["token", "sequence", "constant"]


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
    rows: Tensor | None = None,
) -> TokenScores:
    """Score tokens from the hidden states that predict them; the head sees these positions only.

    Args:
        head: the LM head, [m, d] -> [m, V].
        hidden: [n, d], or [m, d] with `rows`; for generated positions only (fault 10 of the method, section 6).
        targets: int64 [n].
        temperature: of the sampler. Logits are divided by it, so that ratios start at 1.
        entropy_gradient: let the entropy carry a gradient (for an entropy bonus).
        max_logits: bound on m * V. When n needs several chunks their logits are recomputed in the backward pass.
        vocabulary: V.
        rows: int64 [n], which hidden state predicts each target, where several targets may have the same one.
    """
    if not len(targets):  # a pass for values alone
        nothing = hidden.new_zeros(0, dtype=torch.float32)
        return TokenScores(nothing, nothing)
    size = max(1, max_logits // vocabulary)
    if rows is not None and (entropy_gradient or len(hidden) > size):
        hidden, rows = hidden.index_select(0, rows), None
    if len(hidden) <= size:
        return TokenScores(*_score_chunk(head, hidden, targets, temperature, entropy_gradient, rows))
    parts = []
    for part, target in zip(torch.split(hidden, size), torch.split(targets, size), strict=True):
        arguments = (head, part, target, temperature, entropy_gradient)
        if torch.is_grad_enabled():
            parts.append(cast("tuple[Tensor, Tensor]", checkpoint(_score_chunk, *arguments, use_reentrant=False)))
        else:
            parts.append(_score_chunk(*arguments))
    logprobs, entropy = zip(*parts, strict=True)
    return TokenScores(torch.cat(logprobs), torch.cat(entropy))


def _score_chunk(
    head: Head,
    hidden: Tensor,
    targets: Tensor,
    temperature: float,
    entropy_gradient: bool,
    rows: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    logits = head(hidden).float()
    if not entropy_gradient:
        return token_scores(logits, targets, temperature, rows)
    if temperature != 1.0:
        logits = logits / temperature
    log_p = torch.log_softmax(logits, dim=-1)
    # A sum over the one column, not a view of it: FSDP puts hooks on what a module returns.
    logprobs = log_p.gather(1, targets.unsqueeze(1)).sum(dim=1)
    return logprobs, -(log_p.exp() * log_p).sum(dim=-1)


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


def log_ratio(logprobs: Tensor, old_logprobs: Tensor, counts: Sequence[int], level: RatioLevel) -> Tensor:
    """Logarithm of the ratio that stands in each token's surrogate, [n].

        token      log pi_t - log old_t
        sequence   the mean of these over the sequence, the same for all its tokens (GSPO, arXiv 2507.18071, eq. 7)
        product    their sum: the ratio of the sequence's probabilities, one action (RLOO, arXiv 2402.14740)

    A sequence's ratio has the gradient of its own token only, times the tokens of the sequence for `product` (GSPO's
    token form, equation 13). Where the advantage is the same in the whole sequence, the mean over its tokens then has
    exactly the value and the gradient of the sequence's own surrogate; where it differs from step to step, each step
    keeps its own.

    Args:
        logprobs: log pi, [n], with gradient.
        old_logprobs: [n], without gradient.
        counts: tokens of each sequence, in order; their sum is n.
        level: one of the above.
    """
    difference = logprobs - old_logprobs
    if level == "token":
        return difference
    sizes = torch.tensor(counts, device=difference.device)
    owners = torch.repeat_interleave(torch.arange(len(counts), device=difference.device), sizes)
    fixed = difference.detach()
    sums = torch.zeros(len(counts), dtype=fixed.dtype, device=fixed.device).index_add_(0, owners, fixed)
    own = logprobs - logprobs.detach()  # zero, with the token's gradient
    if level == "sequence":
        return (sums / sizes)[owners] + own
    return sums[owners] + sizes[owners] * own


def token_weights(
    counts: Sequence[int], aggregation: Aggregation, *, tokens: int, sequences: int, length: int | None
) -> Tensor:
    """w of each token of a micro batch, float32 [n]: what its loss counts in the loss of the minibatch.

        token      1 / tokens                          every token alike (DAPO; the method, section 1)
        sequence   1 / (sequences * own length)        every sequence alike (GRPO, arXiv 2402.03300, eq. 3)
        constant   1 / (sequences * L)                 no length in it (Dr.GRPO, arXiv 2503.20783)

    Args:
        counts: tokens of each sequence of the micro batch.
        aggregation: one of the above.
        tokens: generated tokens of the whole minibatch.
        sequences: sequences of the whole minibatch that have a generated token.
        length: L.
    """
    if aggregation == "token":
        return torch.full((sum(counts),), 1.0 / tokens)
    sizes = torch.tensor(counts)
    if aggregation == "sequence":
        return (1.0 / (sequences * sizes.float())).repeat_interleave(sizes)
    assert length is not None
    return torch.full((sum(counts),), 1.0 / (sequences * length))


def clipped_value_loss(values: Tensor, old_values: Tensor, targets: Tensor, clip: float) -> Tensor:
    """1/2 max((V - R)^2, (V_old + clamp(V - V_old, -clip, clip) - R)^2), one value a step, [k].

    The larger of the two has no gradient once V has moved more than `clip` towards R: the value function moves in a
    trust region as the policy does (as in the PPO authors' public code; Schulman et al. 2017, arXiv 1707.06347, eq. 9).

    Args:
        values: V, [k], with gradient.
        old_values: V when the advantages were made, [k].
        targets: R, [k]: the lambda-returns.
        clip: > 0, in the units of the reward.
    """
    near = old_values + (values - old_values).clamp(-clip, clip)
    return 0.5 * torch.maximum((values - targets) ** 2, (near - targets) ** 2)


def clipped_surrogate(
    log_ratio: Tensor,
    advantages: Tensor,
    clip_low: float,
    clip_high: float,
    weight: Tensor | None = None,
) -> Surrogate:
    """Clipped surrogate of PPO with separate clips (the method, section 1 "Loss"), one value a token.

    Args:
        log_ratio: log rho, [n], with gradient.
        advantages: [n].
        clip_low: the ratio is clipped below at 1 - clip_low.
        clip_high: the ratio is clipped above at 1 + clip_high.
        weight: detached factor, [n]; 1 when absent.
    """
    ratio = _exp(log_ratio)
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
    # exp - 1 in one: where pi is near pi_ref the difference of large numbers would be all rounding, below 0 too.
    return (torch.expm1(log_q) - log_q).clamp_min(0.0)


def mismatch_ratio(first: Tensor, sampler: Tensor) -> Tensor:
    """pi_0 / mu, [n], detached: 1 where trainer and sampler agree on a token."""
    return _exp(first.detach() - sampler)


def _exp(value: Tensor) -> Tensor:
    return torch.exp(value.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))
