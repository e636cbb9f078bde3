"""What a run keeps in the home folder, and where."""

from __future__ import annotations

from pathlib import Path

from roleagent.config import StorageConfig
from roleagent.home import home, writable_home

__all__ = ["bank_folder", "home", "reports_folder", "run_note", "store_uri", "writable_home"]


def store_uri(config: StorageConfig) -> str:
    """Return the object store of a run: the configured one, or the folder `store` in the home folder."""
    return config.uri or str(home() / "store")


def run_note(run_id: str) -> Path:
    """Return the file in which this machine notes where a run's store is."""
    return home() / "runs" / f"{run_id}.json"


def bank_folder(run_id: str) -> Path:
    """Return the Chroma folder of a run. One folder a run: two runs side by side never share an index."""
    return home() / "bank" / run_id


def reports_folder(run_id: str) -> Path:
    """Return the folder of a run's report and figures."""
    return home() / "reports" / run_id
