"""Names of Prefect's artifacts, which take small letters, digits and dashes alone; run ids may have others."""

from __future__ import annotations

import re


def artifact_key(kind: str, name: str) -> str:
    """Return the key of a run's or an ablation's artifact; names that differ in case and signs alone share it."""
    return re.sub(r"[^a-z0-9]", "-", f"{kind}-{name}".lower())
