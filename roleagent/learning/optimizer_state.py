"""AdamW's state as safetensors, by parameter name: nothing is pickled, and a resumed run goes on bit for bit.

One tensor a parameter and moment, `exp_avg/NAME`, `exp_avg_sq/NAME` and the scalar `step/NAME`; a parameter that
has never been stepped has none. Hyperparameters are not stored: they are those of the run's configuration.
(Fault 11 of the method, section 6: optimizer state lost on resume.)
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from roleagent.errors import StorageError
from roleagent.json_text import read_json_text

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

_FORMAT = "roleagent-adamw-1"
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


def optimizer_tensors(
    optimizer: torch.optim.Optimizer, parameters: Iterable[tuple[str, nn.Parameter]]
) -> dict[str, Tensor]:
    """The state of every named parameter, whole and on the CPU. Sharded state is gathered: call it on every rank."""
    return {
        f"{moment}/{name}": full(optimizer.state[parameter][moment].detach()).cpu().contiguous()
        for name, parameter in parameters
        if parameter in optimizer.state
        for moment in _MOMENTS
    }


def write_optimizer(tensors: dict[str, Tensor], path: Path) -> None:
    """Write what `optimizer_tensors` returned."""
    save_file(tensors, path, metadata={"format": _FORMAT})


def load_optimizer(
    optimizer: torch.optim.Optimizer, parameters: Iterable[tuple[str, nn.Parameter]], path: Path
) -> None:
    """Replace the optimizer's state by what `write_optimizer` wrote for the same parameters.

    Raises:
        StorageError: the file is missing, damaged, of another format or of another model.
    """
    tensors = read_tensors(path, expected_format=_FORMAT)
    state: dict[Tensor, dict[str, Tensor]] = {}
    for name, parameter in parameters:
        found = {moment: tensors.pop(f"{moment}/{name}") for moment in _MOMENTS if f"{moment}/{name}" in tensors}
        if not found:
            continue
        if len(found) < len(_MOMENTS) or found["exp_avg"].shape != parameter.shape:
            raise StorageError(
                f"{path}: the optimizer state of '{name}' does not fit this model; use its own checkpoint"
            )
        # The step counter stays on the CPU: the unfused AdamW keeps it there.
        state[parameter] = {
            moment: tensor.clone() if moment == "step" else like(tensor, parameter) for moment, tensor in found.items()
        }
    if tensors:
        raise StorageError(f"{path}: holds '{next(iter(tensors))}', which this model has not; use its own checkpoint")
    optimizer.state.clear()
    optimizer.state.update(state)


def read_tensors(path: Path, expected_format: str | None = None) -> dict[str, Tensor]:
    """Read a safetensors file, its format name checked.

    Raises:
        StorageError: the file is missing, cut short, not safetensors, or of another format.
    """
    try:
        with safe_open(path, framework="pt") as file:
            found = (file.metadata() or {}).get("format")
            if expected_format is not None and found != expected_format:
                raise StorageError(f"{path}: format is {found!r}, expected {expected_format!r}; use another checkpoint")
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (OSError, SafetensorError) as error:
        raise StorageError(
            f"{path} cannot be read ({_one_line(error)}); restore it or use an older checkpoint"
        ) from error


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        StorageError: the file is missing, cut short or not a JSON object.
    """
    try:
        value = read_json_text(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StorageError(
            f"{path} cannot be read ({_one_line(error)}); restore it or use an older checkpoint"
        ) from error
    if not isinstance(value, dict):
        raise StorageError(f"{path} must hold a JSON object; restore it or use an older checkpoint")
    return value


def full(tensor: Tensor) -> Tensor:
    """The tensor itself; if it is sharded over ranks, the whole of it on the CPU. To be called on every rank."""
    return cast("DTensor", tensor).full_tensor().cpu() if _is_sharded(tensor) else tensor


def like(tensor: Tensor, target: Tensor) -> Tensor:
    """A copy of a whole tensor, placed and sharded as `target` is."""
    if not _is_sharded(target):
        return tensor.to(target.device, copy=True)
    from torch.distributed.tensor import distribute_tensor

    sharded = cast("DTensor", target)
    return distribute_tensor(tensor.to(sharded.device), sharded.device_mesh, sharded.placements)


def _is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
