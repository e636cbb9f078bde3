"""How a command ends: errors as one line, interruptions without noise, everything else in a log file.

Standard error belongs to the progress of a run. What libraries log or warn of is kept in `logs/roleagent.log` of the
home folder, where the traceback of an unexpected error goes too.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from types import FrameType
from typing import NoReturn

from roleagent.errors import RoleAgentError
from roleagent.loop.home import home

DONE, UNEXPECTED, MENDABLE, INTERRUPTED, TERMINATED, PIPE_CLOSED = 0, 1, 2, 130, 143, 141
GRACE_SECONDS = 20  #: after an interruption: what has not ended by then is ended
_LOG_BYTES = 2_000_000
_QUIET = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "TOKENIZERS_PARALLELISM": "false", "TQDM_DISABLE": "1"}
_hints: list[Callable[[], str]] = []  # how to go on with what runs now, the innermost last


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM, with what to do next in its message."""


class Terminated(KeyboardInterrupt):
    """SIGTERM: everything is ended as by Ctrl-C."""


class _Redacted(logging.Formatter):
    # Messages of libraries may name addresses with credentials.
    def format(self, record: logging.LogRecord) -> str:
        from roleagent.tracking.redaction import redact

        return redact(super().format(record))


class LogFile(RotatingFileHandler):
    # A log that cannot be written must not become a second error on the terminal.
    def _open(self) -> TextIOWrapper:
        Path(self.baseFilename).parent.mkdir(parents=True, exist_ok=True)
        return super()._open()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        self.broken = True


def log_path() -> Path:
    """Return the log file of this machine."""
    return home() / "logs" / "roleagent.log"


def keep_quiet() -> None:
    """Send logs and warnings of libraries to the log file, and turn their progress bars off.

    Prefect leaves the root logger alone when it has a handler with a formatter whose class has no underscore. A library
    that is imported later finds its progress bars off by environment variables, which the user's own values override.
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    handler = LogFile(log_path(), maxBytes=_LOG_BYTES, backupCount=2, encoding="utf-8", delay=True)
    handler.setLevel(logging.WARNING)
    handler.setFormatter(_Redacted("%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.captureWarnings(True)


def guard(action: Callable[[], int]) -> int:
    """Run a command and return its exit status; what goes wrong is told in one line on standard error.

    0: done. 1: an unexpected error, whose traceback is in the log file. 2: an error that the user can mend.
    130: interrupted by Ctrl-C. 143: by SIGTERM. 141: the reader of standard output has gone, as `head -1` does.
    """
    watch = _Watch()
    signal.signal(signal.SIGTERM, _terminate)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where a shell ignores it in the background
        signal.signal(signal.SIGINT, _interrupt)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that knows no UTF-8 shows `?`
    try:
        status = action()
        sys.stdout.flush()
    except RoleAgentError as error:
        return tell(str(error), MENDABLE)
    except KeyboardInterrupt as error:
        ended = isinstance(error, Terminated) or isinstance(error.__cause__, Terminated)
        return tell(str(error) or "interrupted", TERMINATED if ended else INTERRUPTED, label="")
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return PIPE_CLOSED
    except OSError as error:
        logging.getLogger("roleagent").error("%s", error, exc_info=error)
        where = f": {error.filename}" if error.filename else ""
        return tell(f"{(error.strerror or str(error)).lower()}{where}", MENDABLE)
    except Exception as error:
        logging.getLogger("roleagent").error("unexpected error", exc_info=error)
        return tell(f"unexpected {type(error).__name__}: {error} (the traceback is in {log_path()})", UNEXPECTED)
    finally:
        watch.close()
    return status


@contextmanager
def going_on(hint: Callable[[], str]) -> Iterator[None]:
    """Give an interruption the words for how to go on; they are asked for when it has happened.

    Raises:
        Interrupted: in place of the `KeyboardInterrupt` of Ctrl-C or SIGTERM.
    """
    _hints.append(hint)
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interrupted(f"{str(error) or 'interrupted'}{hint()}") from error
    finally:
        _hints.remove(hint)


def _terminate(_number: int, _frame: FrameType | None) -> NoReturn:
    raise Terminated("terminated")


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


class _Watch:
    """Ends the process `GRACE_SECONDS` after Ctrl-C or SIGTERM, come what may.

    An exception that a signal raises inside an import can leave Python's import lock taken, and what waits for another
    thread then waits for ever. What is committed is safe, as after `kill -9`. The thread is told of a signal by the
    interpreter, whoever handles it: within a flow, Prefect's handler stands in the place of ours. See
    https://docs.python.org/3/library/signal.html#signal.set_wakeup_fd.
    """

    def __init__(self) -> None:
        reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=self._leave)
        self._done = threading.Event()
        threading.Thread(target=self._wait, args=(reader,), name="grace", daemon=True).start()

    def close(self) -> None:
        """The command has ended by itself."""
        self._done.set()
        signal.set_wakeup_fd(self._before)
        os.close(self._writer)

    def _leave(self) -> None:
        # A signal to a process that was forked off is none to this one.
        if not self._done.is_set():
            signal.set_wakeup_fd(-1)

    def _wait(self, reader: int) -> None:
        ends = {signal.SIGTERM: ("terminated", TERMINATED), signal.SIGINT: ("interrupted", INTERRUPTED)}
        with open(reader, "rb", buffering=0) as signals:
            while number := signals.read(1):
                if number[0] in ends and not self._done.wait(GRACE_SECONDS):
                    word, status = ends[signal.Signals(number[0])]
                    cursor = "\x1b[?25h" if sys.stderr.isatty() else ""  # a live display hides it
                    os.write(2, f"{cursor}{word}{_hints[-1]() if _hints else ''}\n".encode())
                    os._exit(status)


def end(status: int) -> NoReturn:
    """Leave the process. After an interruption, without waiting for threads: what is not committed never happened."""
    if status in {INTERRUPTED, TERMINATED}:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def tell(message: str, status: int, *, label: str = "error: ") -> int:
    """Write one line to standard error, red on a terminal and without credentials, and return the exit status."""
    from roleagent.console.screen import printable
    from roleagent.tracking.redaction import redact

    line = label + printable(redact(" ".join(message.split())))
    red = sys.stderr.isatty() and label and "NO_COLOR" not in os.environ
    sys.stderr.write(f"\x1b[31m{line}\x1b[0m\n" if red else f"{line}\n")
    return status
