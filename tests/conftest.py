"""Being here, in the package `tests`, it makes pytest put the project's root on the path, for `tests.support`."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Let children be interrupted: a shell's background job, which this may be, and its children ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
