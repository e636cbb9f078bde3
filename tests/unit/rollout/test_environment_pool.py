"""Threads, time-outs and replacements."""

from __future__ import annotations

import threading
import time

import pytest

from roleagent.rollout.environment_pool import Call, EnvironmentPool


def fail() -> None:
    raise ValueError("no")


def test_results_and_errors() -> None:
    pool = EnvironmentPool(2, 5.0)
    calls = [pool.submit(lambda: 1), pool.submit(fail), pool.submit(lambda: 3)]
    pool.wait_all(calls, 5.0)
    assert [call.finished for call in calls] == [True] * 3
    assert [call.result for call in calls] == [1, None, 3]
    assert isinstance(calls[1].error, ValueError)
    pool.close()


def test_a_call_that_ends_its_thread_is_an_error_not_a_hang() -> None:
    pool = EnvironmentPool(1, 5.0)
    call, after = pool.submit(lambda: (_ for _ in ()).throw(SystemExit(3))), pool.submit(lambda: 2)
    pool.wait_all([call, after], 5.0)
    assert isinstance(call.error, SystemExit)
    assert after.result == 2
    pool.close()


def test_the_time_out_counts_from_the_start_of_the_call() -> None:
    pool = EnvironmentPool(1, 1.0)
    calls = [pool.submit(lambda: time.sleep(0.35)) for _ in range(4)]
    pool.wait_all(calls, 10.0)
    assert not any(call.timed_out for call in calls), "the last one waited more than a second for its turn"
    pool.close()


def test_a_stuck_call_is_given_up_and_its_thread_replaced() -> None:
    release = threading.Event()
    pool = EnvironmentPool(1, 0.5)
    stuck, after = pool.submit(release.wait), pool.submit(lambda: "next")
    pool.wait_all([stuck, after], 5.0)
    assert stuck.timed_out
    assert stuck.result is None
    assert after.result == "next"
    assert pool.abandoned == 1
    release.set()
    time.sleep(0.05)
    assert stuck.result is None, "what it returns later is dropped"
    pool.close()


def test_every_thread_stuck() -> None:
    release = threading.Event()
    pool = EnvironmentPool(2, 0.1)
    calls = [pool.submit(release.wait) for _ in range(5)]
    started = time.monotonic()
    while not all(call.finished for call in calls):
        pool.wait_any([call for call in calls if not call.finished])
    assert time.monotonic() - started < 10
    assert all(call.timed_out for call in calls)
    release.set()
    pool.close()


def test_patience_ends_before_the_time_out() -> None:
    release = threading.Event()
    pool = EnvironmentPool(2, 30.0)
    slow, quick = pool.submit(release.wait), pool.submit(lambda: 1)
    started = time.monotonic()
    pool.wait_all([slow, quick], 0.1)
    assert 0.05 < time.monotonic() - started < 5
    assert quick.finished
    assert not slow.finished
    release.set()
    pool.wait_any([slow])
    assert slow.result is True
    pool.close()


def test_check_gives_up_without_waiting() -> None:
    release = threading.Event()
    pool = EnvironmentPool(1, 0.05)
    stuck = pool.submit(release.wait)
    time.sleep(0.15)
    assert not stuck.finished
    pool.check()
    assert stuck.timed_out
    release.set()
    pool.close()


def test_no_more_threads_than_workers_and_none_after_close() -> None:
    before = set(threading.enumerate())
    pool = EnvironmentPool(3, 5.0)
    barrier = threading.Barrier(3)
    calls = [pool.submit(lambda: barrier.wait(5)) for _ in range(9)]
    pool.wait_all(calls, 5.0)
    assert all(call.error is None for call in calls)
    started = set(threading.enumerate()) - before
    assert len(started) == 3
    pool.close()
    for thread in started:
        thread.join(5)
        assert not thread.is_alive()


def test_calls_that_still_wait_at_the_end_are_dropped() -> None:
    release = threading.Event()
    done: list[int] = []
    pool = EnvironmentPool(1, 30.0)
    running, _ = pool.submit(lambda: release.wait(10)), pool.submit(lambda: done.append(1))
    while running.started is None:
        time.sleep(0.01)
    pool.close()
    release.set()
    time.sleep(0.1)
    assert done == []


def test_inline_calls_keep_errors_but_let_interrupts_through() -> None:
    assert Call(lambda: 4).run_inline().result == 4
    assert isinstance(Call(fail).run_inline().error, ValueError)
    with pytest.raises(KeyboardInterrupt):
        Call(lambda: (_ for _ in ()).throw(KeyboardInterrupt())).run_inline()
