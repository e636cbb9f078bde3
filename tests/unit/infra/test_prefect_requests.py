"""A locked database is waited for; other refusals are told at once."""

from __future__ import annotations

import socket
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
        answer = self.answers.pop(0)
        if not answer:
            time.sleep(0.6)
            return
        self.send_response(answer)
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


def test_a_silent_server_is_asked_again_and_then_named(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zombies, "_ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(zombies.time, "sleep", lambda seconds, sleep=time.sleep: sleep(min(seconds, 0.6)))
    Busy.answers = [0, 200]
    assert zombies.request(server, "GET", "/x") == {"ok": True}
    Busy.answers = [0] * 5
    with pytest.raises(OSError, match=rf"the Prefect server at {server} did not take GET /x: no answer within 0.2 s"):
        zombies.request(server, "GET", "/x")
    assert Busy.answers == []


def test_a_server_that_is_not_there_is_named_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: the port refuses
        api = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OSError, match=f"the Prefect server at {api} did not take POST /y: .*refused"):
            zombies.request(api, "POST", "/y", {})
