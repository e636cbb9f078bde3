"""An engine for any causal language model of transformers, on CPU or GPU: correctness first.

The model runs as it is; only its cache is ours. New tokens are padded on the left within a call, so the last column is
every row's last token, and padding is never written to the cache.

Simplified: a model with sliding-window attention is used only up to the length of its window, where it equals full
attention; models with recurrent states are refused.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, CacheLayerMixin

from roleagent.errors import PolicyError
from roleagent.policy.engines.cache import SlotCache, causal_bias
from roleagent.policy.model import context_length

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from transformers import PreTrainedModel


class TransformersEngine:
    """See :class:`roleagent.policy.engines.base.Engine`.

    The engine uses the given model itself, without a copy: an update of it is seen at once, and slots opened before
    the update must not be used after it.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self.vocab_size = int(model.config.vocab_size)
        self.max_context = _usable_context(model.config)
        self._cache = SlotCache(self.max_context)
        signature = inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if "cache" in signature else "past_key_values"
        self._keeps_logits = "logits_to_keep" in signature

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self._model.device

    def open(self, count: int, max_length: int) -> list[int]:
        """Reserve `count` empty slots, each for at most `max_length` tokens."""
        return self._cache.open(count, max_length)

    def extend(self, slots: Sequence[int], ids: Sequence[Sequence[int]]) -> Tensor:
        """Append ids[i] to slots[i]; return float32 logits [n, V] after the last token of each."""
        counts = np.fromiter((len(row) for row in ids), dtype=np.int64, count=len(ids))
        if not counts.all():
            raise ValueError("extend needs at least one token for each slot")
        width = int(counts.max())
        tokens = torch.zeros((len(ids), width), dtype=torch.long)
        for index, row in enumerate(ids):
            tokens[index, width - len(row) :] = torch.as_tensor(row, dtype=torch.long)
        return self._forward(slots, tokens, counts)

    def step(self, slots: Sequence[int], token_ids: Sequence[int] | Tensor) -> Tensor:
        """Append one token to each slot; return float32 logits [n, V] after it."""
        tokens = torch.as_tensor(token_ids, dtype=torch.long).unsqueeze(1)
        return self._forward(slots, tokens, np.ones(len(slots), dtype=np.int64))

    def length(self, slot: int) -> int:
        """Tokens in a slot."""
        return self._cache.length(slot)

    def truncate(self, slots: Sequence[int], lengths: Sequence[int]) -> None:
        """Keep the first lengths[i] tokens of slots[i]."""
        self._cache.truncate(slots, lengths)

    def fork(self, slot: int, length: int) -> int:
        """Open another slot with the first `length` tokens of this one."""
        return self._cache.fork(slot, length)

    def close(self, slots: Sequence[int]) -> None:
        """Give slots back."""
        self._cache.close(slots)

    def load_weights(self, weights: nn.Module | Mapping[str, Tensor]) -> None:
        """Take over weights; nothing is copied when they are those of the engine's own model. Slots are dropped."""
        self._cache.clear()
        if weights is self._model:
            return
        state = weights.state_dict() if isinstance(weights, nn.Module) else weights
        result = self._model.load_state_dict(dict(state), strict=False)
        # A state dict from a safetensors file has tied weights once.
        missing = set(result.missing_keys) - set(getattr(self._model, "_tied_weights_keys", None) or ())
        if missing or result.unexpected_keys:
            example = sorted(missing or result.unexpected_keys)[0]
            raise PolicyError(f"the weights are not those of this model: '{example}' is in only one of them")

    def snapshot(self) -> TransformersEngine:
        """An engine on a deep copy of the model."""
        model = copy.deepcopy(self._model).requires_grad_(False)
        model.train(False)
        return TransformersEngine(model)

    @torch.inference_mode()
    def _forward(self, slots: Sequence[int], tokens: Tensor, counts: NDArray[np.int64]) -> Tensor:
        """Run the model over left-padded tokens [n, width]."""
        rows, span = self._cache.arrange(slots, slack=1.0)
        self._cache.advance(slots, rows, counts)
        width = tokens.shape[1]
        # The model sees rows in the order of the cache; `order` maps them back to the order of the slots.
        order = np.empty(span, dtype=np.int64)
        order[rows] = np.arange(span)
        before, added = self._cache.lengths(span), counts[order]
        column = np.arange(width) - (width - added[:, None])  # index among the row's new tokens; negative is padding
        positions = torch.from_numpy(before[:, None] + column).clamp_(min=0).to(self.device)
        real_row, real_column = np.nonzero(column >= 0)
        cache = _ModelCache(self._cache, real_row, real_column, before[real_row] + column[real_row, real_column])
        columns = int((before + added).max())
        inputs: dict[str, Any] = {
            "input_ids": tokens[torch.from_numpy(order)].to(self.device),
            "attention_mask": causal_bias(positions, columns, self._model.dtype).unsqueeze(1),
            "position_ids": positions,
            "use_cache": True,
            self._cache_argument: Cache(layers=[_Layer(cache, index, columns) for index in range(_depth(self._model))]),
        }
        if self._keeps_logits:
            inputs["logits_to_keep"] = 1
        training = self._model.training
        if training:  # dropout must not act; the learner's mode is put back
            self._model.train(False)
        try:
            logits: Tensor = self._model(**inputs).logits[:, -1].float()
        finally:
            if training:
                self._model.train(True)
        self._cache.commit(rows, counts)
        return logits[torch.from_numpy(rows).to(logits.device)]


class _ModelCache:
    """Where the real tokens of one forward pass go."""

    def __init__(
        self,
        cache: SlotCache,
        row: NDArray[np.int64],
        column: NDArray[np.int64],
        position: NDArray[np.int64],
    ) -> None:
        self.cache = cache
        self._index = torch.from_numpy(np.stack([row, column, position]))

    def write(self, layer: int, keys: Tensor, values: Tensor, columns: int) -> tuple[Tensor, Tensor]:
        """Store new keys and values [n, kv_heads, width, dim]; return all of them up to `columns`."""
        n, heads, _, key_dim = keys.shape
        store = self.cache.layer(layer, heads, key_dim, values.shape[3], keys)
        self._index = self._index.to(keys.device)
        row, column, position = self._index
        store.keys[row, :, position] = keys[row, :, column]
        store.values[row, :, position] = values[row, :, column]
        return store.keys[:n, :, :columns], store.values[:n, :, :columns]


class _Layer(CacheLayerMixin):
    """One layer of the cache, as the models of transformers see it."""

    is_sliding = False

    def __init__(self, cache: _ModelCache, index: int, columns: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._target, self._layer, self._columns = cache, index, columns
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing: the slot cache allocates."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Store the new states and return those of the whole sequences."""
        return self._target.write(self._layer, key_states, value_states, self._columns)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Columns of the mask and the first one."""
        return self._columns, 0

    def get_seq_length(self) -> int:
        """Columns before this pass, padding included."""
        return self._columns

    def get_max_length(self) -> int:
        """No bound of its own."""
        return -1


def _depth(model: PreTrainedModel) -> int:
    return int(model.config.get_text_config(decoder=True).num_hidden_layers)


def _usable_context(config: Any) -> int:
    """Longest sequence for which full attention is what the model computes."""
    text = config.get_text_config(decoder=True)
    kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
    if kinds - {"full_attention", "sliding_attention"}:
        raise PolicyError(f"models of type '{config.model_type}' keep a state that is no key-value cache")
    length = context_length(text)
    window = getattr(text, "sliding_window", None)
    windowed = "sliding_attention" in kinds or (window and not getattr(text, "layer_types", None))
    if windowed and window and getattr(text, "use_sliding_window", True):
        length = min(length, int(window))
    return length
