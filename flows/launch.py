"""Starting a flow in this process, with Prefect settings that suit one machine.

The command line finds these functions as entry points, so that the library below knows no orchestrator.
"""

from __future__ import annotations

import os
from typing import Any

from roleagent.config import TrainConfig
from roleagent.errors import ConfigError
from roleagent.loop.home import home

# A server named by the user is used as it is; otherwise Prefect starts one of its own for the time of the flow.
_DEFAULTS = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",  # 20 s are too few on a busy machine
    "PREFECT_LOGGING_LEVEL": "ERROR",  # progress is drawn by the command line
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
}


def settle() -> None:
    """Set defaults for what the user's environment leaves open. To be called before Prefect is imported."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    if "PREFECT_HOME" not in os.environ:
        folder = home() / "prefect"
        try:
            folder.mkdir(parents=True, exist_ok=True)  # Prefect makes one level only
        except OSError as error:
            raise ConfigError(
                f"cannot make {folder}: {error.strerror}; set ROLEAGENT_HOME to a writable folder"
            ) from error
        os.environ["PREFECT_HOME"] = str(folder)


def train(config: TrainConfig, run_id: str = "") -> dict[str, Any]:
    """Run the training flow and return its summary."""
    settle()
    from flows.train import train as flow

    return flow(config, run_id)
