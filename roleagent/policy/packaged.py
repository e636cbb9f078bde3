"""The small policies that come with the package, their matrices as eight-bit integers: half the size of bfloat16.

    W[i, j] ~= scale[i] * q[i, j],   q[i, j] in -127..127,   scale[i] = max_j |W[i, j]| / 127

One scale a row (symmetric round-to-nearest, as in LLM.int8, Dettmers et al. 2022), stored in bfloat16. They are made
into floats again when they are loaded: the size matters, for they are part of every clone of the project.

A policy that was trained from another one of them is kept as what its integers differ by (modulo 256), packed by LZMA:
most differences are 0, and a fifth of the size is left.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roleagent.errors import PolicyError

if TYPE_CHECKING:
    from torch import Tensor

PREFIX = "roleagent:"
WEIGHTS = "weights.int8.safetensors"
DIFFERENCE = "difference.int8.safetensors.xz"
BASE = "base.json"  #: beside a difference: the name of the policy that it is from, and the SHA-256 of its weights
_HERE = Path(__file__).parent
_SCALE = ".scale"


def packaged_names() -> list[str]:
    """Return the names of the policies whose weights are in this installation."""
    return sorted(path.name for path in _HERE.glob("*") if is_compressed(path))


def is_compressed(folder: Path) -> bool:
    """Return whether a model folder holds weights that :func:`load_packaged` reads."""
    return any((folder / name).is_file() for name in (WEIGHTS, DIFFERENCE))


def packaged_folder(spec: str) -> Path | None:
    """Return the folder of a policy of this package; None if `spec` names none.

    Raises:
        PolicyError: there is no such policy, or this installation lacks its weights.
    """
    if not spec.startswith(PREFIX):
        return None
    names = [PREFIX + name for name in packaged_names()]
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
    """Return the transformers model of a folder that holds compressed weights; global random numbers are left alone.

    Raises:
        PolicyError: the weights are not those of the model, or a difference is not from the weights that are here.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    state = restore(_read(folder))
    with torch.random.fork_rng(devices=[]):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False)  # type: ignore[no-untyped-call]
    missing, unexpected = model.load_state_dict(state, strict=False)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    wrong = sorted({*missing, *unexpected} - tied)
    if wrong:  # a matrix that is not there would keep its random numbers
        raise PolicyError(f"the weights in {folder} are not those of its config.json: {wrong[0]}")
    return model


def _read(folder: Path) -> dict[str, Tensor]:
    from safetensors.torch import load, load_file

    if (folder / WEIGHTS).is_file():
        return load_file(folder / WEIGHTS)
    wanted = json.loads((folder / BASE).read_text(encoding="utf-8"))
    base = packaged_folder(PREFIX + wanted["policy"])
    assert base is not None
    if _digest(base) != wanted["sha256"]:
        raise PolicyError(f"{folder} holds a difference from another '{PREFIX}{wanted['policy']}' than the one here")
    return _add(_read(base), load(lzma.decompress((folder / DIFFERENCE).read_bytes())))


def _add(base: dict[str, Tensor], difference: dict[str, Tensor]) -> dict[str, Tensor]:
    # Integers of eight bits wrap around, in both directions.
    return {name: base[name] + item if name + _SCALE in difference else item for name, item in difference.items()}


def _digest(base: Path) -> str:
    weights = base / (WEIGHTS if (base / WEIGHTS).is_file() else DIFFERENCE)
    return hashlib.sha256(weights.read_bytes()).hexdigest()


def publish(source: Path, target: Path, *, base: str = "") -> int:
    """Write a model folder of safetensors with its weights compressed; return the bytes of the weights.

    Args:
        source: A model folder, as a pretraining or a run's checkpoint holds it.
        target: The folder to write; its card is left alone.
        base: The name of a packaged policy of the same shape, to keep only what differs from it.

    Raises:
        PolicyError: there are no weights in `source`, or they have other shapes than those of `base`.
    """
    from safetensors.torch import load_file, save

    if not (source / "model.safetensors").is_file():
        raise PolicyError(f"folder {source} holds no model.safetensors; give the policy folder of a pretraining or run")
    tensors, name = compress(load_file(source / "model.safetensors")), WEIGHTS
    origin = packaged_folder(PREFIX + base) if base else None
    if origin is not None:
        old = _read(origin)
        if {key: item.shape for key, item in old.items()} != {key: item.shape for key, item in tensors.items()}:
            raise PolicyError(f"folder {source} holds a model of other shapes than '{PREFIX}{base}'")
        wrapped = {key: item - old[key] if key + _SCALE in tensors else item for key, item in tensors.items()}
        tensors, name = wrapped, DIFFERENCE
    target.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.is_file() and path.name != "model.safetensors":
            shutil.copyfile(path, target / path.name)
    content = save(tensors, metadata={"format": "pt"})
    if origin is not None:
        (target / BASE).write_text(json.dumps({"policy": base, "sha256": _digest(origin)}) + "\n", encoding="utf-8")
        content = lzma.compress(content, preset=9)
    new = target / f"{name}.new"
    new.write_bytes(content)
    new.replace(target / name)
    return len(content)
