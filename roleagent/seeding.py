"""One way to draw random numbers: every draw is named by (run seed, iteration, purpose, index).

Nothing holds a generator across iterations, so a resumed or re-sharded run draws exactly the numbers of an
uninterrupted one, and no generator state has to be saved.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


def derive(*parts: int | str) -> int:
    """Return a 63-bit integer that depends on every part and on their order.

    Parts are joined with their type and length, so ("ab", "c") and ("a", "bc"), or 1 and "1", differ.
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        text = f"{type(part).__name__}:{part}"
        digest.update(f"{len(text)}:{text};".encode())
    return int.from_bytes(digest.digest(), "big") >> 1


def generator(*parts: int | str) -> np.random.Generator:
    """Return a NumPy generator seeded by :func:`derive` of the parts."""
    import numpy as np

    return np.random.Generator(np.random.PCG64(derive(*parts)))
