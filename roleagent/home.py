"""Where a machine keeps what Role-Agent writes: one folder, ROLEAGENT_HOME or `.roleagent`."""

from __future__ import annotations

import os
from pathlib import Path


def home() -> Path:
    """Return the absolute home folder. It is made when something is first written."""
    return Path(os.environ.get("ROLEAGENT_HOME") or ".roleagent").absolute()
