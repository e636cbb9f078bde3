"""A causal LM as a scorer of given tokens: what the learner trains.

One module with one `forward`, so that DistributedDataParallel and FSDP see every forward pass. The base model runs
without an attention mask: sequences are padded on the right, and plain causal attention takes the fast path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, cast

import torch
from torch import Tensor, nn

from roleagent.errors import PolicyError
from roleagent.learning.loss import MAX_LOGITS, score_tokens
from roleagent.learning.packed_llama import PackedLlama, supports

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class TokenScorer(nn.Module):
    """Log-probs and entropies of generated tokens; the LM head never sees another position.

    With a value head, also V of the states that it is asked for: a linear function of the same hidden states, zero
    before training, so that the first advantages are those of the rewards alone.

    Args:
        model: a causal LM whose logits are its output embeddings applied to the base model's last hidden state.
        dtype: type of the matrix products (autocast); log-probs and values are always computed in float32.
        value_head: add one.

    Raises:
        PolicyError: the model computes its logits in another way (for example with soft-capping), or they are not
            finite.
    """

    def __init__(
        self, model: PreTrainedModel, dtype: Literal["float32", "bfloat16"] = "float32", *, value_head: bool = False
    ) -> None:
        super().__init__()
        self.model = model
        self.value_head: nn.Linear | None = None
        if value_head:
            width = cast("Tensor", _head(model).weight).shape[1]
            self.value_head = nn.Linear(width, 1, device=model.device, dtype=torch.float32)
            nn.init.zeros_(self.value_head.weight)
            nn.init.zeros_(self.value_head.bias)
        self._autocast = dtype == "bfloat16"
        _no_dropout(model)
        _check_head(model)
        packed = dtype == "float32" and supports(model)
        self._packed: PackedLlama | None = PackedLlama(model) if packed else None

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        targets: Tensor,
        temperature: float,
        entropy_gradient: bool = False,
        max_logits: int = MAX_LOGITS,
        value_positions: Tensor | None = None,
        lengths: Sequence[int] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Score n tokens, and k states where there is a value head.

        Args:
            input_ids: int64 [B, L], padded on the right.
            positions: int64 [n], flat indices in [B * L] of the hidden states that predict the targets.
            targets: int64 [n].
            temperature: of the sampler.
            entropy_gradient: let the entropy carry a gradient.
            max_logits: bound on the logits held at one time.
            value_positions: int64 [k], flat indices of the hidden states that have seen the states to be valued.
            lengths: tokens of each row, padding left out; L of each when absent.

        Returns:
            (log-probs [n], entropies [n], values [k]), float32; k is 0 without a value head.
        """
        # Also for k = 0: data-parallel training waits for a gradient of every parameter.
        places = positions[:0] if value_positions is None else value_positions
        with torch.autocast(input_ids.device.type, dtype=torch.bfloat16, enabled=self._autocast):
            hidden, rows = self._hidden(input_ids, lengths, torch.cat([positions, places]))
            own, valued = rows[: len(positions)], rows[len(positions) :]
            head = _head(self.model)
            scores = score_tokens(
                head,
                hidden,
                targets,
                temperature,
                entropy_gradient=entropy_gradient,
                max_logits=max_logits,
                vocabulary=_vocabulary(head),
                rows=own,
            )
        if self.value_head is None:
            return scores.logprobs, scores.entropy, scores.logprobs.new_zeros(0)
        values = self.value_head(hidden.index_select(0, valued).float()).flatten()
        return scores.logprobs, scores.entropy, values

    @property
    def shares(self) -> bool:
        """Whether a pass computes what sequences begin with once, and pads nothing."""
        return self._packed is not None and self._packed.usable

    def _hidden(self, input_ids: Tensor, lengths: Sequence[int] | None, places: Tensor) -> tuple[Tensor, Tensor]:
        """Last hidden states [m, d], and which of them is that of each place, [n]."""
        if self._packed is not None and self._packed.usable:
            rows = [input_ids.shape[1]] * len(input_ids) if lengths is None else lengths
            return self._packed(input_ids, rows, places)
        hidden = self.model.base_model(input_ids=input_ids, use_cache=False).last_hidden_state.flatten(0, 1)
        return hidden.index_select(0, places), torch.arange(len(places), device=places.device)


def _no_dropout(model: PreTrainedModel) -> None:
    """The ratio compares two passes over the same tokens: both must be without noise.

    Evaluation mode does that, but turns gradient checkpointing off as well; then dropout is set to 0 by hand.
    """
    model.train(bool(getattr(model, "is_activation_checkpointing", False)))
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            setattr(module, "attention_dropout", 0.0)  # noqa: B010 - not an attribute of every module


def _check_head(model: PreTrainedModel) -> None:
    name = type(model).__name__
    if model.base_model is model or model.get_output_embeddings() is None:  # type: ignore[no-untyped-call]
        raise PolicyError(f"{name} has no LM head on a base model; use a causal language model")
    head = _head(model)
    probe = torch.arange(4, device=model.device).unsqueeze(0) % _vocabulary(head)
    with torch.no_grad():
        expected = model(input_ids=probe, use_cache=False).logits.float()
        found = head(model.base_model(input_ids=probe, use_cache=False).last_hidden_state).float()
    if not bool(torch.isfinite(expected).all()):  # NaN equals nothing, itself included
        raise PolicyError(
            f"the weights of {name} give logits that are not finite: the model is damaged; give another policy.model"
        )
    if not torch.allclose(expected, found, rtol=1e-3, atol=1e-3):
        raise PolicyError(f"{name} changes its logits after the LM head; the learner does not support that")


def _head(model: PreTrainedModel) -> nn.Module:
    return cast("nn.Module", model.get_output_embeddings())  # type: ignore[no-untyped-call]


def _vocabulary(head: nn.Module) -> int:
    return cast("Tensor", head.weight).shape[0]
