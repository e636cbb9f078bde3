"""Servers of this machine are reached directly, whatever proxy the environment names."""

from __future__ import annotations

import os
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from roleagent.loop.servers import bypass_proxies


class Answer(BaseHTTPRequestHandler):
    """Says yes to everything."""

    def do_GET(self) -> None:
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "")  # so that what is changed is changed back
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, "127.0.0.1,localhost"),
        ({"NO_PROXY": "example.org, localhost"}, "example.org,localhost,127.0.0.1"),
        ({"no_proxy": "example.org"}, "example.org,127.0.0.1,localhost"),
        ({"no_proxy": "*"}, "*"),
    ],
)
@pytest.mark.usefixtures("no_proxies")
def test_what_is_there_is_kept(before: dict[str, str], after: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in before.items():
        monkeypatch.setenv(name, value)
    for _ in range(2):
        bypass_proxies()
        assert os.environ["NO_PROXY"] == os.environ["no_proxy"] == after


@pytest.mark.usefixtures("no_proxies")
def test_a_dead_proxy_does_not_hide_a_server_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    import httpx

    server = HTTPServer(("127.0.0.1", 0), Answer)
    address = f"http://127.0.0.1:{server.server_port}/health"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
        monkeypatch.setattr(urllib.request, "_opener", None)  # it keeps the proxies of its first use
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(address, timeout=5)
        bypass_proxies()
        with urllib.request.urlopen(address, timeout=5) as answer:
            assert answer.status == 204
        assert httpx.get(address, timeout=5).status_code == 204
    finally:
        server.shutdown()
        server.server_close()
