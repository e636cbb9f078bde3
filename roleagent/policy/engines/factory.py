"""Which engine serves a policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from roleagent.errors import PolicyError

if TYPE_CHECKING:
    from roleagent.policy.engines.base import Engine
    from roleagent.policy.model import Policy

EngineKind = Literal["auto", "llama", "transformers"]


def make_engine(policy: Policy, kind: EngineKind = "auto") -> Engine:
    """Return an engine for a policy.

    Args:
        policy: the model to serve.
        kind: `llama` is the fast decoder for Llama and Qwen2 models on the CPU; `transformers` runs any model;
            `auto` takes the first where it fits.

    Raises:
        PolicyError: the kind is unknown or cannot run this model.
    """
    if kind not in ("auto", "llama", "transformers"):
        raise PolicyError(f"engine '{kind}' is unknown; use auto, llama or transformers")
    if kind != "transformers":
        from roleagent.policy.engines.llama_engine import LlamaEngine, unsupported

        reason = unsupported(policy.model)
        if reason is None:
            return LlamaEngine(policy.model)
        if kind == "llama":
            raise PolicyError(f"the llama engine cannot run '{policy.spec}': {reason}; use auto or transformers")
    from roleagent.policy.engines.transformers_engine import TransformersEngine

    return TransformersEngine(policy.model)
