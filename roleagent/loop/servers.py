"""Servers that the user names by environment variables, and the way to those of this machine."""

from __future__ import annotations

import os

from roleagent.errors import ConfigError

_LOOPBACK = ("127.0.0.1", "localhost")


def bypass_proxies() -> None:
    """Reach servers of this machine directly, whatever proxy the environment names.

    A proxy elsewhere cannot reach them: Prefect's own server of a run would seem not to start. Libraries read the
    variable in either case, and children inherit it.
    """
    before = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    hosts = [host.strip() for host in before.split(",") if host.strip()]
    if "*" not in hosts:
        hosts += [host for host in _LOOPBACK if host not in hosts]
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(hosts)


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
