"""What is told while a run goes on."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from roleagent.console import progress
from roleagent.console.progress import ProgressDisplay, clock
from roleagent.loop.events import Listener

METRICS = {"success/train": 0.5, "match/mean": 0.71, "bank/size": 12.0}
HELD = {"success/heldout": 0.52, "heldout/low": 0.46, "heldout/high": 0.58}


class Clock:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock_hand(monkeypatch: pytest.MonkeyPatch) -> Clock:
    hand = Clock()
    monkeypatch.setattr(progress.time, "monotonic", hand)
    return hand


def screen(*, terminal: bool = False, width: int = 100) -> tuple[ProgressDisplay, io.StringIO]:
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=terminal, color_system=None, highlight=False)
    console.soft_wrap = True
    return ProgressDisplay(console), file


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0:00"),
        (59.4, "0:59"),
        (59.6, "1:00"),
        (3599, "59:59"),
        (3600, "1:00:00"),
        (36061, "10:01:01"),
        (-3, "0:00"),
    ],
)
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_a_run_in_a_file_is_one_line_an_iteration(clock_hand: Clock) -> None:
    display, file = screen()
    with display:
        display.run_started("smoke-1", 12, 0)
        display.phase_started(0, "evaluate")
        clock_hand.now += 30
        display.iteration_finished(0, HELD)
        display.phase_started(1, "roll out")
        display.phase_progress(1, "roll out", 1, 4)
        clock_hand.now += 8
        display.iteration_finished(1, METRICS)
        clock_hand.now += 12
        display.iteration_finished(2, {**METRICS, **HELD})
    assert file.getvalue().splitlines() == [
        "Run smoke-1 begins",
        "  before training: evaluate",
        "  before training:  held-out 52.0% (46% to 58%)  30.0 s",
        "   1/12  success  50%  match 0.71  failures 12  8.0 s  about 1:28 left",
        "   2/12  success  50%  held-out 52.0% (46% to 58%)  match 0.71  failures 12  12.0 s  about 1:40 left",
    ]


def test_success_of_the_uniform_draws_is_told_where_a_curriculum_draws_others(clock_hand: Clock) -> None:
    display, file = screen()
    display.run_started("smoke-1", 2, 1)
    clock_hand.now += 5
    display.iteration_finished(1, {**METRICS, "success/uniform": 0.75, "success/relevance": 0.25})
    display.iteration_finished(2, {**METRICS, "success/uniform": 0.5})
    first, second = file.getvalue().splitlines()[1:]
    assert "success  50% (75% uniform)" in first
    assert "uniform" not in second


def test_the_last_iteration_has_nothing_left(clock_hand: Clock) -> None:
    display, file = screen()
    display.run_started("smoke-1", 1, 0)
    display.iteration_finished(0, {})
    clock_hand.now += 5
    display.iteration_finished(1, METRICS)
    assert "left" not in file.getvalue()


def test_a_run_that_goes_on_says_where(clock_hand: Clock) -> None:
    display, file = screen()
    display.run_started("smoke-1", 60, 17)
    clock_hand.now += 10
    display.iteration_finished(17, METRICS)
    assert file.getvalue().splitlines() == [
        "Run smoke-1 goes on at iteration 17 of 60",
        "  17/60  success  50%  match 0.71  failures 12  10.0 s  about 7:10 left",
    ]


def test_a_finished_run_is_told() -> None:
    display, file = screen()
    display.run_started("smoke-1", 3, 4)
    assert "smoke-1 has finished" in file.getvalue()


def test_a_notice_is_one_line_and_told_once_for_all_its_numbers() -> None:
    display, file = screen()
    display.notice("iteration 1: 12 rows\nare odd [red]")
    display.notice("iteration 2: 345 rows\nare odd [red]")
    display.notice("something else")
    assert file.getvalue().splitlines() == ["note iteration 1: 12 rows are odd [red]", "note something else"]


def test_markup_and_escape_sequences_of_a_run_id_are_shown_and_not_obeyed() -> None:
    display, file = screen()
    display.run_started("[bold]x\x1b[2J", 1, 0)
    assert "[bold]x" in file.getvalue()
    assert "\x1b" not in file.getvalue()


@pytest.mark.parametrize("width", [30, 50, 80, 200])
def test_the_live_lines_fit_any_terminal(width: int, clock_hand: Clock) -> None:
    display, _ = screen(terminal=True, width=width)
    display.run_started("smoke-1", 60, 0)
    display.iteration_finished(0, HELD)
    clock_hand.now += 9
    display.iteration_finished(1, METRICS)
    display.phase_started(2, "roll out")
    display.phase_progress(2, "roll out", 3, 8)
    file = io.StringIO()
    Console(file=file, width=width, color_system=None).print(display)
    lines = file.getvalue().splitlines()
    assert len(lines) == 2
    assert all(len(line) <= width for line in lines)
    assert ("iteration 2 of 60" if width >= 40 else "2/60") in lines[0]
    if width >= 80:
        assert "roll out 38%" in lines[0]
        assert lines[1].split("   ") == [
            *(["  success 50%  held-out 52.0%  match 0.71  failures 12"]),
            "0:09, about 8:51 left",
        ]


def test_a_phase_ends_with_its_iteration() -> None:
    display, _ = screen(terminal=True)
    display.run_started("smoke-1", 6, 1)
    display.phase_started(2, "evaluate")
    display.phase_progress(2, "evaluate", 8, 8)
    display.iteration_finished(2, METRICS)
    file = io.StringIO()
    Console(file=file, width=100, color_system=None).print(display)
    assert "iteration 3 of 6" in file.getvalue()
    assert "evaluate" not in file.getvalue()
    assert "100%" not in file.getvalue()


def test_a_terminal_keeps_the_lines_of_evaluations_only(clock_hand: Clock) -> None:
    display, file = screen(terminal=True)
    display.run_started("smoke-1", 3, 0)
    display.iteration_finished(0, HELD)
    display.iteration_finished(1, METRICS)
    display.iteration_finished(2, {**METRICS, **HELD})
    assert [line.split()[0] for line in file.getvalue().splitlines()] == ["Run", "before", "2/3"]


def test_it_really_draws(clock_hand: Clock) -> None:
    display, file = screen(terminal=True)
    with display:
        time.sleep(0.3)
    assert "starting Prefect" in file.getvalue()


def test_it_is_a_listener() -> None:
    display: Listener = screen()[0]
    assert display
