"""A locked database is waited for; other refusals are told at once."""

from __future__ import annotations

import threading
import time
import urllib.error
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from infra.embedded import zombies


class Busy(BaseHTTPRequestHandler):
    answers: list[int]

    def do_GET(self) -> None:
        self.send_response(self.answers.pop(0))
        self.end_headers()
        self.wfile.write(b'{"ok": true}')

    def log_message(self, *_arguments: object) -> None:
        return


@pytest.fixture
def server() -> Iterator[str]:
    httpd = HTTPServer(("127.0.0.1", 0), Busy)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{httpd.server_port}"
    httpd.shutdown()
    httpd.server_close()


def test_a_busy_server_is_asked_again(server: str) -> None:
    Busy.answers = [503, 200]
    began = time.monotonic()
    assert zombies.request(server, "GET", "/x") == {"ok": True}
    assert time.monotonic() - began >= 0.5


def test_another_refusal_is_told_at_once(server: str) -> None:
    Busy.answers = [422, 200]
    with pytest.raises(urllib.error.HTTPError, match="422"):
        zombies.request(server, "GET", "/x")
    assert Busy.answers == [200]
