"""Where a machine keeps what Role-Agent writes: one folder, ROLEAGENT_HOME or `.roleagent`."""

from __future__ import annotations

import os
from pathlib import Path

from roleagent.config import StorageConfig


def home() -> Path:
    """Return the absolute home folder. It is made when something is first written."""
    return Path(os.environ.get("ROLEAGENT_HOME") or ".roleagent").absolute()


def store_uri(config: StorageConfig) -> str:
    """Return the object store of a run: the configured one, or the folder `store` in the home folder."""
    return config.uri or str(home() / "store")


def bank_folder(run_id: str) -> Path:
    """Return the Chroma folder of a run. One folder a run: two runs side by side never share an index."""
    return home() / "bank" / run_id


def reports_folder(run_id: str) -> Path:
    """Return the folder of a run's report and figures."""
    return home() / "reports" / run_id
