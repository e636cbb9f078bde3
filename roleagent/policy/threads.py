"""Sharing cores: threads of torch that wait for each other go to sleep soon.

A decoding step is many short parallel operations. After each, OpenMP's threads spin for milliseconds by default; when
another process holds one of the cores, the others spin until it lets go, and decoding becomes many times slower.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping

_SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
_SPINS = "2000"  # some tens of microseconds: longer than the gap between two operations of a step


def limit_spinning(environ: MutableMapping[str, str] = os.environ) -> bool:
    """Bound how long waiting threads spin, for this process and those that it starts.

    Call it before torch is imported for the first time; OpenMP reads the setting once, when it is loaded. A choice that
    the user has made in the environment is left alone.

    Returns:
        Whether the setting reaches this process's own torch.
    """
    if not any(name in environ for name in _SETTINGS):
        environ["GOMP_SPINCOUNT"] = _SPINS
    return "torch" not in sys.modules
