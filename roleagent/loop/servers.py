"""Servers that the user names by environment variables."""

from __future__ import annotations

import os

from roleagent.errors import ConfigError


def server_answers(variable: str) -> str:
    """Check that the server whose address an environment variable holds answers; return its host and port.

    Raises:
        ConfigError: it does not, or the value is no address. Credentials in it are not repeated.
    """
    from urllib.parse import urlsplit

    from urllib3 import PoolManager, Timeout
    from urllib3.exceptions import HTTPError

    address = os.environ[variable].rstrip("/") + "/health"
    try:
        parts = urlsplit(address)
        if parts.scheme not in {"http", "https"}:
            raise ValueError
        shown = f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)
        status = PoolManager(retries=False, timeout=Timeout(5)).request("GET", address).status
    except (HTTPError, ValueError) as error:
        if isinstance(error, ValueError):
            raise ConfigError(f"{variable} is no address of a server, as http://127.0.0.1:4200/api is") from error
        raise ConfigError(
            f"the server of {variable} at {shown} does not answer; start it (`make up`), or unset the variable"
        ) from error
    if status >= 400:
        raise ConfigError(f"the server of {variable} at {shown} answers {status}; check the address")
    return shown
