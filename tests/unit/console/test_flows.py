"""A flow that is watched from a terminal, and interrupted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from roleagent.config import load_config
from roleagent.console import flows
from roleagent.console.guard import Interrupted
from roleagent.loop.events import listener


def interrupted(begun: bool, words: str = "") -> Callable[..., Any]:
    def flow(config: object, run_id: str) -> None:
        if begun:
            listener().run_started(run_id, 10, 0)
        raise KeyboardInterrupt(words)

    return flow


@pytest.mark.parametrize(
    ("begun", "words", "told"),
    [
        (False, "", "interrupted"),
        (True, "", "interrupted; go on with: roleagent resume r1"),
        (True, "terminated", "terminated; go on with: roleagent resume r1"),
    ],
)
def test_an_interruption_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch, begun: bool, words: str, told: str) -> None:
    monkeypatch.setattr(flows, "_flow", lambda name: interrupted(begun, words))
    before = listener()
    with pytest.raises(Interrupted) as caught:
        flows.watched_training(load_config("quickstart", []), "r1")
    assert str(caught.value) == told
    assert listener() is before


def test_the_flows_are_found_by_their_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, str]] = []

    class Point:
        def load(self) -> Callable[..., Any]:
            return lambda config, run_id: {"run": run_id}

    def find(**group: str) -> list[Point]:
        asked.append(group)
        return [Point()]

    monkeypatch.setattr("importlib.metadata.entry_points", find)
    assert flows.watched_training(load_config("quickstart", []), "r2") == {"run": "r2"}
    assert asked == [{"group": "roleagent.flows", "name": "train"}]
