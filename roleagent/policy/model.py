"""Loading and saving the policy: weights from safetensors only, no remote code, nothing unpickled."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roleagent import hub
from roleagent.errors import PolicyError
from roleagent.policy.packaged import is_compressed, load_packaged, packaged_folder
from roleagent.policy.small import build_small_model, build_small_tokenizer
from roleagent.policy.tokens import PolicyTokenizer

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

__all__ = [
    "QUICKSTART",
    "Policy",
    "build_small_model",
    "build_small_tokenizer",
    "context_length",
    "find_model",
    "load_policy",
    "resolve_device",
    "save_policy",
]

QUICKSTART = "roleagent:quickstart"
_DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True, slots=True)
class Policy:
    """The one LLM: a causal language model and its tokenizer."""

    model: PreTrainedModel
    tokenizer: PolicyTokenizer
    spec: str  #: what it was loaded from
    max_context: int  #: longest sequence that the model can take, in tokens

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.device


def load_policy(
    spec: str, dtype: str = "float32", device: str = "auto", gradient_checkpointing: bool = False
) -> Policy:
    """Load a policy from a folder, a Hugging Face model id, or the package: `roleagent:quickstart`.

    Only safetensors weights are read, and code that comes with a model is never run. With HF_HUB_OFFLINE=1 nothing is
    downloaded. The model is returned in eval mode.

    Args:
        spec: where the model is.
        dtype: float32 or bfloat16.
        device: cpu, cuda, or auto: CUDA when there is one.
        gradient_checkpointing: recompute activations in the backward pass.

    Raises:
        PolicyError: one line that says what is missing and how to mend it.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if dtype not in _DTYPES:
        raise PolicyError(f"dtype '{dtype}' is not one of {', '.join(_DTYPES)}")
    target = resolve_device(device)
    source = find_model(spec)
    try:
        hf_tokenizer: Any = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        tokenizer = PolicyTokenizer(hf_tokenizer)
        model: Any = (
            load_packaged(Path(source), getattr(torch, dtype))
            if is_compressed(Path(source))
            else AutoModelForCausalLM.from_pretrained(
                source, dtype=getattr(torch, dtype), use_safetensors=True, trust_remote_code=False
            )
        )
    except PolicyError:
        raise
    except Exception as error:  # the libraries raise OSError, ValueError, KeyError, SafetensorError and more
        mend = "" if Path(source).is_dir() else "; download it elsewhere and give its folder as policy.model"
        raise PolicyError(f"cannot load model '{spec}': {_first_line(error)}{mend}") from error
    if tokenizer.vocab_size > model.get_input_embeddings().num_embeddings:
        raise PolicyError(f"model '{spec}' has fewer embeddings than its tokenizer has tokens")
    model.to(target)
    model.eval()
    if gradient_checkpointing:
        model.activation_checkpointing_enable()
    return Policy(model, tokenizer, spec, context_length(model.config))


def save_policy(policy: Policy, folder: str | Path) -> None:
    """Write weights (safetensors), configuration and tokenizer to a folder that :func:`load_policy` reads."""
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    policy.model.save_pretrained(path)
    policy.tokenizer.hf.save_pretrained(path)


def resolve_device(device: str) -> torch.device:
    """Device of a name; `auto` is CUDA when there is one, else the CPU."""
    import torch

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise PolicyError("device 'cuda' is asked for, but torch finds no CUDA device; use policy.device=cpu")
    try:
        return torch.device(device)
    except RuntimeError as error:
        raise PolicyError(f"device '{device}' is unknown; use auto, cpu or cuda") from error


def context_length(config: Any) -> int:
    """Longest sequence that a model of this configuration can take, in tokens."""
    for key in ("max_position_embeddings", "n_positions", "max_sequence_length"):
        value = getattr(config, key, None)
        if isinstance(value, int) and value > 0:
            return value
    raise PolicyError("the model's configuration does not say how long a sequence may be (max_position_embeddings)")


def find_model(spec: str) -> str:
    """Return what transformers should load: a folder or a model id.

    Raises:
        PolicyError: the folder does not exist, or holds no model; or the package has no such policy; or the model is
            neither in the cache nor to be had from the hub.
    """
    packaged = packaged_folder(spec)
    if packaged is not None:
        return str(packaged)
    path = Path(spec).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise PolicyError(f"folder {spec} holds no model: config.json is missing")
        return str(path)
    looks_like_path = spec.startswith(("/", ".", "~")) or spec.count("/") != 1 or os.sep * 2 in spec
    if looks_like_path and "/" in spec:
        raise PolicyError(f"model folder {spec} does not exist")
    in_the_way = hub.obstacle(spec, "policy.model")
    if in_the_way:
        raise PolicyError(in_the_way)
    return spec


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__
