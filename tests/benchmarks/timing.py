"""Measuring on a machine that does other work too: CPU time, medians, and differences within one process."""

from __future__ import annotations

import resource
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spent:
    """Wall and CPU seconds of a piece of work; CPU of all threads of the process."""

    wall: float
    cpu: float

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.wall + other.wall, self.cpu + other.cpu)

    def __sub__(self, other: Spent) -> Spent:
        return Spent(self.wall - other.wall, self.cpu - other.cpu)


def spent(work: Callable[[], object]) -> Spent:
    """Do a piece of work and return what it took."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Spent(time.perf_counter() - wall, time.process_time() - cpu)


def median_cpu(repeats: int, work: Callable[[int], object]) -> float:
    """Do `work(0)`, `work(1)`, ... and return the median of their CPU seconds."""
    return statistics.median(spent(lambda number=number: work(number)).cpu for number in range(repeats))  # type: ignore[misc]


def child_cpu(command: Sequence[str]) -> float:
    """Run a program to its end and return its CPU seconds, those of its own children included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
