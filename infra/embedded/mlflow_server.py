"""The stack's MLflow server: `python -m infra.embedded.mlflow_server DATABASE [OPTIONS of mlflow server]`.

Runs without a server may meet the same new database at the same moment, so it is made as they make it: whole, by one
process (`roleagent.tracking.database`). Then this process becomes the server.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from roleagent.tracking.database import database_address, prepare_database


def main(database: str, options: Sequence[str]) -> NoReturn:
    """Make the database (a path) if there is none, and become `mlflow server`."""
    uri = database_address(Path(database))
    prepare_database(uri)
    os.execv(sys.executable, [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", uri, *options])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
