"""A model's weights as files: how they come back into a model of the same shape."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from roleagent.errors import StorageError
from roleagent.learning.optimizer_state import like, read_json, read_tensors

VALUE_HEAD = "value_head"  #: prefix of the value head's parameters, beside those of the model
VALUE_HEAD_FILE = "value_head.safetensors"
_VALUE_HEAD_FORMAT = "roleagent-value-head-1"


def value_head_parameters(head: nn.Module | None) -> list[tuple[str, nn.Parameter]]:
    """The value head's parameters by the names under which files hold them; none without a head."""
    return [] if head is None else [(f"{VALUE_HEAD}.{name}", item) for name, item in head.named_parameters()]


def write_value_head(tensors: dict[str, Tensor], folder: Path) -> None:
    """Write the value head of a learner's checkpoint."""
    save_file(tensors, folder / VALUE_HEAD_FILE, metadata={"format": _VALUE_HEAD_FORMAT})


def matching_value_head(head: nn.Module | None, folder: Path) -> list[tuple[Tensor, Tensor]]:
    """Pairs (parameter of the head, stored tensor); none without a head.

    Raises:
        StorageError: the file is missing, damaged or of a model of another width.
    """
    if head is None:
        return []
    stored = read_tensors(folder / VALUE_HEAD_FILE, expected_format=_VALUE_HEAD_FORMAT)
    pairs = []
    for name, parameter in value_head_parameters(head):
        found = stored.get(name)
        if found is None or found.shape != parameter.shape:
            raise StorageError(f"{folder}: '{name}' is missing or of another shape; use the model's own checkpoint")
        pairs.append((parameter.data, found))
    return pairs


@contextlib.contextmanager
def no_progress_bar() -> Iterator[None]:
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
    copy_weights(matching_weights(model, folder))


def matching_weights(model: nn.Module, folder: Path) -> list[tuple[Tensor, Tensor]]:
    """Pairs (tensor of the model, stored tensor); tied weights are stored once, under one of their names.

    Raises:
        StorageError: a file is missing, damaged or of another model.
    """
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
def copy_weights(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Copy each stored tensor into the model's, placed and sharded as that one is."""
    for target, source in pairs:
        target.copy_(like(source, target))
