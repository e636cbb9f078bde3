"""The small policies that come with the package, their matrices as eight-bit integers: half the size of bfloat16.

    W[i, j] ~= scale[i] * q[i, j],   q[i, j] in -127..127,   scale[i] = max_j |W[i, j]| / 127

One scale a row (symmetric round-to-nearest, as in LLM.int8, Dettmers et al. 2022), stored in bfloat16. They are made
into floats again when they are loaded: the size matters, for they are part of every clone of the project.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roleagent.errors import PolicyError

if TYPE_CHECKING:
    from torch import Tensor

PREFIX = "roleagent:"
WEIGHTS = "weights.int8.safetensors"
_HERE = Path(__file__).parent
_SCALE = ".scale"


def packaged_folder(spec: str) -> Path | None:
    """Return the folder of a policy of this package; None if `spec` names none.

    Raises:
        PolicyError: there is no such policy, or this installation lacks its weights.
    """
    if not spec.startswith(PREFIX):
        return None
    names = sorted(PREFIX + path.parent.name for path in _HERE.glob("*/*.safetensors"))
    if spec not in names:
        there = f"there are: {', '.join(names)}" if names else "install a release, or use `roleagent pretrain`"
        raise PolicyError(f"'{spec}' has no weights in this installation; {there}")
    return _HERE / spec.removeprefix(PREFIX)


def compress(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return matrices as integers [rows, columns] with their scales [rows, 1], vectors in bfloat16."""
    import torch

    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.ndim != 2:
            found[name] = tensor.to(torch.bfloat16).contiguous()
            continue
        values = tensor.float()
        scale = (values.abs().amax(1, keepdim=True) / 127).to(torch.bfloat16)
        # The rounded scale may be a little smaller than the exact one: the largest element is clamped.
        steps = values / scale.float().clamp_min(torch.finfo(torch.float32).tiny)
        found[name] = steps.round().clamp(-127, 127).to(torch.int8).contiguous()
        found[name + _SCALE] = scale.contiguous()
    return found


def restore(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return float32 tensors from what :func:`compress` returned."""
    return {
        name: tensor.float() * tensors[name + _SCALE].float() if name + _SCALE in tensors else tensor.float()
        for name, tensor in tensors.items()
        if not name.endswith(_SCALE)
    }


def load_packaged(folder: Path, dtype: Any) -> Any:
    """Return the transformers model of a folder that holds compressed weights; global random numbers are left alone."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    state = restore(load_file(folder / WEIGHTS))
    with torch.random.fork_rng(devices=[]):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False)  # type: ignore[no-untyped-call]
    missing, unexpected = model.load_state_dict(state, strict=False)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    wrong = sorted({*missing, *unexpected} - tied)
    if wrong:  # a matrix that is not there would keep its random numbers
        raise PolicyError(f"the weights in {folder} are not those of its config.json: {wrong[0]}")
    return model


def publish(source: Path, target: Path) -> int:
    """Write a model folder of safetensors with its weights compressed; return the bytes of the weights.

    Raises:
        PolicyError: there are no weights in `source`.
    """
    from safetensors.torch import load_file, save_file

    if not (source / "model.safetensors").is_file():
        raise PolicyError(f"folder {source} holds no model.safetensors; give the policy folder of a pretraining or run")
    target.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.is_file() and path.name != "model.safetensors":
            shutil.copyfile(path, target / path.name)
    new = target / f"{WEIGHTS}.new"
    save_file(compress(load_file(source / "model.safetensors")), new, metadata={"format": "pt"})
    new.replace(target / WEIGHTS)
    return (target / WEIGHTS).stat().st_size
