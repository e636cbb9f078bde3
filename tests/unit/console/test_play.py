"""Playing at a terminal: what is typed, and how a step of a policy is shown."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from roleagent.config import load_config
from roleagent.console.play import choose_task, differences, play_person, step_view
from roleagent.environments.household.demonstrations import demonstrate
from roleagent.environments.registry import make_environment
from roleagent.errors import ConfigError
from roleagent.types import Step
from tests.support.screens import Draw

CONFIG = load_config("smoke", ["environment.max_steps=40"])


def play(typed: str, monkeypatch: pytest.MonkeyPatch, task_id: str = "", max_steps: int = 40) -> str:
    file = io.StringIO()
    console = Console(file=file, width=200, color_system=None)
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    monkeypatch.setattr("sys.stdout", file)  # `input` writes its prompt there
    play_person(console, load_config("smoke", [f"environment.max_steps={max_steps}"]), task_id)
    return file.getvalue()


def drawn_task() -> str:
    return choose_task(make_environment(CONFIG.environment.name, **CONFIG.environment.options), "", 0).task_id


def test_a_task_can_be_solved(monkeypatch: pytest.MonkeyPatch) -> None:
    demonstration = demonstrate(drawn_task(), max_steps=40)
    typed = "\n".join(step.action for step in demonstration.steps)
    out = play(typed + "\n", monkeypatch)
    assert demonstration.success
    assert f"Solved in {len(demonstration.steps)} steps." in out
    assert demonstration.goal in " ".join(out.split())


def test_help_empty_lines_wrong_actions_and_quit(monkeypatch: pytest.MonkeyPatch) -> None:
    out = play("?\n\n  \nfly away\nquit\nnever read\n", monkeypatch)
    assert "inventory" in out
    assert "Nothing happens." in out
    assert "2>" in out
    assert "3>" not in out


def test_the_end_of_the_input_ends_the_game(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "2>" in play("look\n", monkeypatch)


def test_the_steps_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "2 steps are over." in play("look\nlook\nlook\n", monkeypatch, max_steps=2)


def test_tasks_by_id_or_drawn_from_the_held_out_ones() -> None:
    environment = make_environment(CONFIG.environment.name, **CONFIG.environment.options)
    train = environment.tasks("train")[3]
    assert choose_task(environment, train.task_id) == train
    drawn = [choose_task(environment, "", seed) for seed in range(20)]
    assert drawn == [choose_task(environment, "", seed) for seed in range(20)]
    assert set(drawn) <= set(environment.tasks("heldout"))
    assert len(set(drawn)) > 1
    with pytest.raises(ConfigError, match="household has no task 'x'; its ids look like household-small-heldout-"):
        choose_task(environment, "x")


def test_differences_mark_what_was_not_predicted() -> None:
    text = differences("You see a mug 1, and a pen 2.", "You see a mug 1, and a cup 3.")
    assert text.plain == "You see a mug 1, and a cup 3."
    assert [text.plain[span.start : span.end] for span in text.spans if span.style] == ["cup 3."]
    assert not [span for span in differences("You SEE it", "you see it").spans if span.style]
    assert differences("", "all of it").plain == "all of it"
    assert differences("something", "").plain == ""


def step(**changes: object) -> Step:
    values: dict[str, object] = {
        **{"index": 3, "state": "s", "reasoning": "find it", "action": "look", "predictions": ("You see a mug 1.",)},
        **{"reward": 0.0, "valid_action": True, "malformed": False, "truncated": False, "context_ids": ()},
        **{"generated_ids": (), "logprobs": (), "continues": True, **changes},
    }
    return Step(**values)  # type: ignore[arg-type]


def test_a_step_shows_thought_action_prediction_and_match(draw: Draw) -> None:
    lines = [
        line.rstrip().split(maxsplit=1) for line in draw(step_view(step(), "You see a cup 1.", "words")).splitlines()
    ]
    assert lines[0] == ["3", "thinks    find it"]
    assert lines[1][0] == "does"
    assert lines[2] == ["expects", "You see a mug 1."]
    assert lines[3] == ["sees", "You see a cup 1.  match 0.80"]  # 4 of 5 words


def test_steps_that_went_wrong(draw: Draw) -> None:
    assert "look  (not possible)" in draw(step_view(step(valid_action=False), "Nothing happens.", "words"))
    malformed = draw(step_view(step(action="", reasoning="", predictions=(), malformed=True), "Nothing.", "words"))
    assert "(unreadable turn)" in malformed
    assert "expects" not in malformed
    assert "match" not in malformed
    assert "(nothing)" in draw(step_view(step(predictions=("",)), "Nothing.", "words"))


def test_texts_of_models_are_shown_and_not_obeyed(draw: Draw) -> None:
    evil = "[red]x[/red] \x1b[2J"
    text = draw(step_view(step(reasoning=evil, action=evil, predictions=(evil,)), evil, "words"))
    assert text.count("[red]x[/red]") == 4
    assert "\x1b" not in text
