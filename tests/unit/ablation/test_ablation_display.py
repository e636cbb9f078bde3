"""Progress of an ablation, on a terminal and off one."""

from __future__ import annotations

import io

from rich.console import Console

from roleagent.ablation.machine import Slots
from roleagent.ablation.plan import Request, make_plan
from roleagent.console.ablation import AblationDisplay, plan_panel
from tests.support.screens import drawn

PLAN = make_plan(Request("smoke", ("full,grpo",), 2, name="small"))
FULL, GRPO, *_ = PLAN.members


def play(display: AblationDisplay) -> None:
    """Two runs side by side: one goes on, one fails."""
    display.ablation_started(PLAN, Slots(2, 1), 1)
    display.member_started(FULL)
    display.member_started(GRPO)
    display.member_iteration(FULL, 0, {"success/heldout": 0.25})
    display.member_iteration(FULL, 1, {"success/train": 0.5})
    display.member_phase(FULL, 2, "roll [out]")
    display.member_ended(GRPO, "out of [luck]")


def test_off_a_terminal_every_event_that_matters_is_a_line() -> None:
    file = io.StringIO()
    display = AblationDisplay(Console(file=file, width=160))
    with display:
        play(display)
        display.member_ended(FULL, "")
    lines = [line.rstrip() for line in file.getvalue().splitlines()]
    assert lines[0] == ("Ablation small: 2 variants x 2 seeds, 2 at a time with 1 thread each; 1 finished before")
    assert lines[1:4] == ["  full seed 0  begins", "  grpo seed 0  begins", "  full seed 0  0/3  held-out 25.0%"]
    assert lines[4].startswith("2/4  grpo seed 0  failed: out of [luck]  (0:0")
    assert lines[5].startswith("3/4  full seed 0  finished, held-out 25.0%  (0:0")
    assert display.ablation_id == "small"


def test_on_a_terminal_a_live_line_shows_each_run_that_goes_on() -> None:
    display = AblationDisplay(Console(file=io.StringIO()))
    assert "starting Prefect" in drawn(display)
    play(display)
    for width in (50, 100):
        text = drawn(display, width=width)
        assert all(len(line) <= width for line in text.splitlines())
        assert "full-s0" in text
        assert "grpo-s0" not in text
        assert "1/3" in text
        assert "2 of 4 runs, 1 failed" in text
    assert "roll [out]" in text
    display.member_iteration(FULL, 2, {})
    assert "roll [out]" not in drawn(display)  # a phase ends with its iteration


def test_the_plan_names_variants_overrides_and_what_is_compared() -> None:
    text = drawn(plan_panel(PLAN, Slots(2, 1)))
    assert "small  4 runs: 2 variants, seeds 0, 1; 2 at a time with 1 thread each" in text
    assert "full method (compared with)" in text
    assert "advantage.estimator=grpo" in text
