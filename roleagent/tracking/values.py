"""Numbers, keys and values as MLflow takes them."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from roleagent.tracking.redaction import redact
from roleagent.types import Task

MAX_VALUE = 5000  #: characters of a parameter or tag
_BAD_KEY = re.compile(r"[^A-Za-z0-9_\-. :/]")


def numbers(metrics: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Flatten to finite numbers with keys that MLflow takes; booleans become 0 and 1, the rest is left out."""
    flat: dict[str, float] = {}
    for key, value in metrics.items():
        name = key_of(f"{prefix}{key}")
        if isinstance(value, Mapping):
            flat |= numbers(value, f"{name}/")
        elif isinstance(value, (int, float)) and math.isfinite(value):
            flat[name] = float(value)
    return flat


def pool_digest(tasks: Sequence[Task]) -> str:
    """32 hex digits that depend on the ids of a pool, not on their order."""
    digest = hashlib.blake2b(digest_size=16)
    for identifier in sorted(task.task_id for task in tasks):
        digest.update(f"{len(identifier)}:{identifier};".encode())
    return digest.hexdigest()


def key_of(key: str) -> str:
    """Make any text a key that MLflow takes: it refuses one that would be another path when read as a path."""
    parts = (part.strip(". ") for part in _BAD_KEY.sub("_", key)[:250].split("/"))
    return "/".join(part for part in parts if part) or "_"


def value_of(text: str) -> str:
    """Make any text a value that MLflow takes, credentials masked."""
    return redact(str(text))[:MAX_VALUE]
