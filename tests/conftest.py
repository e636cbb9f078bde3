"""Being here, in the package `tests`, it makes pytest put the project's root on the path, for `tests.support`."""

from __future__ import annotations

import signal
from collections import defaultdict
from pathlib import Path

import pytest


def pytest_configure() -> None:
    """Let children be interrupted: a shell's background job, which this may be, and its children ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that may take the longest, so that none of them goes on alone at the end.

    Their own limit says which: `pytest.mark.timeout`. Otherwise the order stays: whole runs, real components, units.
    """
    limits: defaultdict[Path, float] = defaultdict(float)
    for item in items:
        mark = item.get_closest_marker("timeout")
        limits[item.path] = max(limits[item.path], float(mark.args[0]) if mark else 0.0)
    items.sort(key=lambda item: -limits[item.path])
