"""Tables of the command line, with what models wrote taken as text."""

from __future__ import annotations

import pytest

from roleagent.agent_in_world.records import BankRecord, Neighbour
from roleagent.console import show
from roleagent.loop import home as places
from roleagent.loop import runs
from roleagent.loop.evaluating import Evaluation
from roleagent.loop.statistics import success_rate
from roleagent.loop.worker import drop_workers
from tests.support.committed import committed_run
from tests.support.screens import Draw

EVIL = "[red]loud[/red] \x1b[2J"


def table_rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.strip()]


def test_no_runs(draw: Draw) -> None:
    assert draw(show.runs_table()) == "No run yet. Start one with: make train\n"


def test_runs_are_shown_oldest_first_and_one_that_is_damaged_hides_none(
    draw: Draw, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "check", lambda config: None)
    held = {"heldout/n": 8.0, "heldout/low": 0.1, "heldout/high": 0.6}
    whole = committed_run([{"success/heldout": 0.25, **held}, {"success/heldout": 0.5, "bank/size": 1234.0, **held}])
    runs.write_status(whole, "finished")
    committed_run(run_id="broken")
    (places.home() / "store" / "runs" / "broken" / "config.json").write_text("{", encoding="utf-8")
    drop_workers()
    rows = table_rows(draw(show.runs_table()))
    assert rows[2] == ["a-run", "finished", "1/3", "25.0%", "50.0%", "1,234"]
    assert rows[3] == ["broken", "unreadable"]
    assert " ".join(rows[-1]).startswith("broken: the configuration of run broken in ")


def test_a_store_that_takes_long_to_fail_is_asked_once(draw: Draw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "check", lambda config: None)
    monkeypatch.setattr(show, "_PATIENCE_SECONDS", -1.0)
    for name in ("one", "two", "three"):
        committed_run(run_id=name)
    asked: list[str] = []

    def refuse(worker: object) -> None:
        asked.append("x")
        raise show.RoleAgentError("the store does not answer")

    monkeypatch.setattr(show, "overview", refuse)
    text = draw(show.runs_table())
    assert asked == ["x"]
    assert text.count("the store does not answer") == 3


def test_an_evaluation(draw: Draw) -> None:
    result = Evaluation(
        "a-run", 3, 0.4, 1, success_rate(6, 12), {"heat": success_rate(1, 4), EVIL: success_rate(5, 8)}, ()
    )
    text = draw(show.evaluation_table(result))
    assert "a-run  policy version 3, temperature 0.4, seed 1" in text
    assert "Steps to success" not in text
    assert "25.0%" in text
    assert "50.0%" in text
    assert "[red]loud[/red]" in text
    assert "\x1b" not in text


def test_a_bank(draw: Draw) -> None:
    stats = {"records": 1234, "tasks": 40, "resolved": 11, "by_failure_type": {"loops": 10, EVIL: 30}}
    rows = table_rows(draw(show.bank_table("a-run", stats)))
    assert " ".join(rows[0]) == "a-run 1,234 failures (11 since resolved) of 40 tasks"
    assert rows[-2][:2] == ["[red]loud[/red]", "\N{REPLACEMENT CHARACTER}[2J"]
    assert rows[-1][:3] == ["loops", "10", "25%"]


def test_an_empty_bank(draw: Draw) -> None:
    text = draw(show.bank_table("a-run", {"records": 0, "tasks": 0, "resolved": 0, "by_failure_type": {}}))
    assert text.strip() == "a-run  0 failures (0 since resolved) of 0 tasks"


def test_neighbours(draw: Draw) -> None:
    record = BankRecord(
        "0123456789abcdef", "t", "task-1", "household", "loops", "cause", 3, "lesson", f"open the fridge {EVIL}", 7, 6
    )
    text = draw(show.neighbours_table("a-run", [Neighbour("task-1", 0.876, record)]))
    assert text.splitlines()[0].rstrip() == "0.88  loops"
    assert "open the fridge [red]loud[/red]" in text
    assert "01234567  iteration 7  task-1" in text
    assert "More of one: roleagent bank show 01234567 --run a-run" in text  # `latest` may be another run by then
    assert draw(show.neighbours_table("a-run", [])) == "Nothing is in the bank of a-run.\n"
