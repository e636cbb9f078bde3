"""Reading JSON that somebody else may have written."""

from __future__ import annotations

import json
from typing import Any


def read_json_text(data: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: it is no JSON, or lists or objects are nested so deeply in it that it cannot be read.
    """
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("lists or objects are nested too deeply") from error
