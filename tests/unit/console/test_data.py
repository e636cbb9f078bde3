"""A download that fails, as a person sees it."""

from __future__ import annotations

import io
import socket

import pytest
from rich.console import Console

from roleagent.console.data import fetch_games
from roleagent.errors import ConfigError

MEND = (
    "; check the network, or name another address with --url; or download the archive elsewhere and give it to "
    "`roleagent data add alfworld PATH`"
)


def refused(url: str) -> str:
    with pytest.raises(ConfigError) as caught:
        fetch_games(Console(file=io.StringIO()), "alfworld", url, "")
    return str(caught.value)


def test_a_server_that_does_not_answer_is_one_reason_and_a_remedy() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: the port refuses
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/games.zip"
        assert refused(url) == f"{url} cannot be downloaded: Connection refused{MEND}"


def test_an_address_that_is_none() -> None:
    assert refused("nonsense://x").endswith(f"No connection adapters were found for 'nonsense://x'{MEND}")
