"""Environment calls in threads, with a time-out that does not depend on the environment's good will.

A Python thread cannot be stopped. A call that takes too long is given up: its thread is left alone (a daemon, so it
does not keep the process alive), another one takes its place, and what the call returns later is dropped. That is
why the standard library's thread pool is not used: it waits for its threads at exit, and a stuck one keeps its
place for ever.

An environment is called by one thread at a time, but not always by the same thread.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any


class Call:
    """One call of an environment. It is finished when it returned, raised, or was given up."""

    __slots__ = ("error", "finished", "function", "result", "started", "submitted", "timed_out")

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.submitted = time.monotonic()
        self.started: float | None = None
        self.finished = False
        self.timed_out = False
        self.result: Any = None
        self.error: BaseException | None = None

    def run_inline(self) -> Call:
        """Run in the calling thread. There is no time-out."""
        try:
            self.result = self.function()
        except Exception as error:  # whatever an environment raises ends its episode, not the run
            self.error = error
        self.finished = True
        return self


class EnvironmentPool:
    """At most `workers` calls at a time; each has `timeout` seconds from the moment it starts.

    Threads are started when they are needed. Waiting functions may be called by one thread only.
    """

    def __init__(self, workers: int, timeout: float) -> None:
        self._workers = workers
        self._timeout = timeout
        self._queue: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._threads = 0
        self._idle = 0
        self._running: set[Call] = set()
        self.abandoned = 0  #: threads given up with their calls

    def submit(self, function: Callable[[], Any]) -> Call:
        """Queue a call."""
        call = Call(function)
        with self._changed:
            if self._idle <= self._queue.qsize() and self._threads < self._workers:
                self._start_thread()
        self._queue.put(call)
        return call

    def wait_all(self, calls: Sequence[Call], patience: float) -> None:
        """Wait until each call is finished, or was submitted more than `patience` seconds ago."""
        with self._changed:
            while True:
                now = self._give_up_overdue()
                open_until = [call.submitted + patience for call in calls if not call.finished]
                latest = max(open_until, default=now)
                if latest <= now:
                    return
                self._sleep(latest - now, now)

    def wait_any(self, calls: Sequence[Call]) -> None:
        """Wait until at least one of the calls is finished. Each finishes in time: the time-out sees to it."""
        with self._changed:
            while True:
                now = self._give_up_overdue()
                if any(call.finished for call in calls):
                    return
                self._sleep(None, now)

    def check(self) -> None:
        """Give up the calls that are overdue, without waiting."""
        if self._running:
            with self._changed:
                self._give_up_overdue()

    def close(self) -> None:
        """Let the threads end. Calls that wait are dropped; those that run are left to themselves."""
        with self._changed:
            while not self._queue.empty():
                with contextlib.suppress(queue.Empty):  # a thread may be quicker
                    self._queue.get_nowait()
            for _ in range(self._threads):
                self._queue.put(None)
            self._threads = 0

    def _sleep(self, seconds: float | None, now: float) -> None:
        """Wait for a change, at most `seconds` and not beyond the next time-out. The lock is held."""
        limits = [call.started + self._timeout - now for call in self._running if call.started is not None]
        limits.append(self._timeout)  # a call that starts meanwhile is not announced
        if seconds is not None:
            limits.append(seconds)
        self._changed.wait(max(0.0, min(limits)) + 1e-4)

    def _give_up_overdue(self) -> float:
        """Mark calls over their time, replace their threads, and return the time. The lock is held."""
        now = time.monotonic()
        for call in [call for call in self._running if call.started is not None]:
            if call.started is not None and now - call.started >= self._timeout:
                self._running.discard(call)
                call.timed_out = call.finished = True
                self.abandoned += 1
                self._threads -= 1
                self._start_thread()
        return now

    def _start_thread(self) -> None:
        self._threads += 1
        threading.Thread(target=self._work, name="environment", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
            call = self._queue.get()
            with self._changed:
                self._idle -= 1
                if call is None:
                    return
                call.started = time.monotonic()
                self._running.add(call)
            result: Any = None
            failure: BaseException | None = None
            try:
                result = call.function()
            except BaseException as error:  # also SystemExit: it would end the thread and leave the call open
                failure = error
            with self._changed:
                if call.timed_out:
                    return  # given up: another thread has this one's place
                self._running.discard(call)
                call.result, call.error, call.finished = result, failure, True
                self._changed.notify_all()
