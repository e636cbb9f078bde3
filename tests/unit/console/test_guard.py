"""How commands end: exit statuses, one line, and a log file for the rest."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from roleagent.console import guard as guarding
from roleagent.console.guard import Interrupted, Terminated, guard, keep_quiet, log_path
from roleagent.errors import ConfigError, StorageError


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    handled = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)
    for number, handler in handled.items():
        signal.signal(number, handler)


def raising(error: BaseException) -> Callable[[], int]:
    def action() -> int:
        raise error

    return action


def test_a_command_that_is_done_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    assert guard(lambda: 0) == 0
    assert guard(lambda: 1) == 1
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (ConfigError("seed: wrong"), 2, "error: seed: wrong"),
        (StorageError("two\n  lines\tare one"), 2, "error: two lines are one"),
        (ConfigError("storage: got s3://u:pa55word@x"), 2, "error: storage: got s3://***@x"),
        (FileNotFoundError(2, "No such file or directory", "/a/b"), 2, "error: no such file or directory: /a/b"),
        (PermissionError(13, "Permission denied"), 2, "error: permission denied"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (
            Interrupted("interrupted; go on with: roleagent resume x"),
            130,
            "interrupted; go on with: roleagent resume x",
        ),
        (Terminated("terminated"), 143, "terminated"),
    ],
)
def test_errors_are_one_line(error: BaseException, status: int, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert guard(raising(error)) == status
    assert capsys.readouterr() == ("", line + "\n")


def test_a_termination_that_became_a_hint_keeps_its_status(capsys: pytest.CaptureFixture[str]) -> None:
    hint = Interrupted("terminated; go on with: roleagent resume x")
    hint.__cause__ = Terminated("terminated")
    assert guard(raising(hint)) == 143
    assert capsys.readouterr().err == "terminated; go on with: roleagent resume x\n"


def test_an_unexpected_error_is_one_line_and_its_traceback_is_in_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    keep_quiet()
    assert guard(raising(KeyError("the\nkey"))) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert err.startswith("error: unexpected KeyError: ")
    assert err.endswith(f"(the traceback is in {log_path()})\n")
    text = log_path().read_text(encoding="utf-8")
    assert "Traceback (most recent call last)" in text
    assert "KeyError" in text


def test_the_log_holds_no_credentials() -> None:
    keep_quiet()
    guard(raising(ValueError("cannot open https://user:SeCrEt@host/?token=SeCrEt2 with AKIAABCDEFGHIJKLMNOP")))
    text = log_path().read_text(encoding="utf-8")
    assert "SeCrEt" not in text
    assert "AKIAABCDEFGHIJKLMNOP" not in text


def test_libraries_speak_to_the_log_and_not_to_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    keep_quiet()
    assert not log_path().exists()  # a command that has nothing to tell leaves no file
    logging.getLogger("some.library").warning("look out")
    logging.getLogger("some.library").info("not worth it")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old ways", UserWarning, stacklevel=1)
    assert capfd.readouterr() == ("", "")
    text = log_path().read_text(encoding="utf-8")
    assert "look out" in text
    assert "old ways" in text
    assert "not worth it" not in text


def test_a_log_that_cannot_be_written_is_no_second_error(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    home.parent.mkdir(exist_ok=True)
    home.touch()
    keep_quiet()
    logging.getLogger("some.library").warning("look out")
    assert guard(raising(ValueError("x"))) == 1
    assert capfd.readouterr().err.count("\n") == 1


def test_progress_bars_are_off_unless_the_user_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_DISABLE_PROGRESS_BARS", raising=False)
    monkeypatch.setenv("TQDM_DISABLE", "0")
    keep_quiet()
    assert os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] == "1"
    assert os.environ["TQDM_DISABLE"] == "0"


def python(code: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **options,  # type: ignore[call-overload]
    )


def test_sigterm_ends_a_command_as_ctrl_c_does() -> None:
    code = (
        "import os, signal, time; from roleagent.console.guard import end, guard\n"
        "def action():\n os.kill(os.getpid(), signal.SIGTERM)\n time.sleep(30)\n"
        "end(guard(action))"
    )
    done = python(code)
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "terminated\n")


@pytest.mark.parametrize(("number", "status", "word"), [("SIGTERM", 143, "terminated"), ("SIGINT", 130, "interrupted")])
def test_what_cannot_end_by_itself_is_ended(number: str, status: int, word: str) -> None:
    """The exception is raised inside an import, whose lock stays taken; the main thread then waits for another one."""
    code = (
        "import _imp, os, signal, threading; from roleagent.console import guard\n"
        "guard.GRACE_SECONDS = 1\n"
        "def action():\n"
        " with guard.going_on(lambda: '; go on with: roleagent resume x'):\n"
        "  try:\n   _imp.acquire_lock()\n"
        f"   os.kill(os.getpid(), signal.{number})\n"
        "  except KeyboardInterrupt:\n"
        "   other = threading.Thread(target=__import__, args=('wave',), daemon=True)\n"
        "   other.start()\n   other.join()\n"
        "guard.end(guard.guard(action))"
    )
    done = python(code)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr == f"{word}; go on with: roleagent resume x\n"


def test_what_hangs_in_the_handler_of_a_library_is_ended() -> None:
    code = (
        "import os, signal, time; from roleagent.console import guard\n"
        "guard.GRACE_SECONDS = 1\n"
        "def action():\n"
        " signal.signal(signal.SIGTERM, lambda *_: time.sleep(50))\n"
        " os.kill(os.getpid(), signal.SIGTERM)\n time.sleep(50)\n"
        "guard.end(guard.guard(action))"
    )
    done = python(code)
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "terminated\n")


def test_a_signal_to_a_forked_process_is_none_to_this_one() -> None:
    code = (
        "import os, signal, time; from roleagent.console import guard\n"
        "guard.GRACE_SECONDS = 0.2\n"
        "def action():\n"
        " child = os.fork()\n"
        " if not child:\n"
        "  signal.signal(signal.SIGTERM, lambda *_: os._exit(7))\n"
        "  os.kill(os.getpid(), signal.SIGTERM)\n  time.sleep(50)\n"
        " status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])\n"
        " time.sleep(1)\n print(status)\n return 0\n"
        "guard.end(guard.guard(action))"
    )
    done = python(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "7\n", "")


def test_an_interrupted_command_does_not_wait_for_its_threads() -> None:
    code = (
        "import threading, time; from roleagent.console.guard import end, guard\n"
        "def action():\n threading.Thread(target=time.sleep, args=(40,)).start()\n raise KeyboardInterrupt\n"
        "end(guard(action))"
    )
    done = python(code)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_a_reader_that_has_gone_is_no_error(tmp_path: Path) -> None:
    code = "from roleagent.console.guard import end, guard\nend(guard(lambda: print('x\\n' * 100000) or 0))"
    script = f'{sys.executable} -c "$CODE" 2>{tmp_path / "err"} | head -1; echo ${{PIPESTATUS[0]}}'
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=60, check=True, env={**os.environ, "CODE": code}
    )
    assert done.stdout.split() == ["x", "141"]
    assert (tmp_path / "err").read_text(encoding="utf-8") == ""


def test_a_terminal_that_knows_no_utf8_shows_question_marks() -> None:
    code = "from roleagent.console.guard import end, guard\nend(guard(lambda: print('caf\\u00e9 \\u2501') or 0))"
    done = python(code, env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "caf? ?\n", "")


@pytest.mark.parametrize(("no_color", "start"), [(None, "\x1b[31merror: "), ("1", "error: ")])
def test_errors_are_red_on_a_terminal_unless_no_color_is_set(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], no_color: str | None, start: str
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    if no_color:
        monkeypatch.setenv("NO_COLOR", no_color)
    guarding.tell("x", 2)
    assert capsys.readouterr().err.startswith(start)


def test_an_error_does_not_pass_escape_sequences_on(capsys: pytest.CaptureFixture[str]) -> None:
    guarding.tell("no run '\x1b]0;title\x07'", 2)
    assert "\x1b" not in capsys.readouterr().err
