"""Idle and returning steps, kinds of actions, and what the predictions pay for them: by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roleagent.rollout.metrics import rollout_metrics
from roleagent.types import Step, StopReason, Task, Trajectory
from roleagent.world_in_agent.behaviour import action_shares, behaviour_metrics, no_ops, toggles, verbs

OPENED, CLOSED = "You open the drawer 1. It is empty.", "You close the drawer 1."


def step(state: str, action: str, *, valid: bool = True, malformed: bool = False) -> Step:
    return Step(1, state, "", action, (), 0.0, valid, malformed, False, (1,), (2,), (0.0,), True)


def episode(states: Sequence[str], actions: Sequence[str]) -> Trajectory:
    steps = tuple(step(state, action) for state, action in zip(states, actions, strict=False))
    return Trajectory(
        *("t", Task("k", "e", "put", "train"), "g", 0, 0, 0, steps, states[-1], False, 0.0, StopReason.MAX_STEPS)
    )


def test_open_close_open_is_a_toggle_from_the_return_on() -> None:
    run = episode(
        ["At the drawer.", OPENED, CLOSED, OPENED, CLOSED],
        ["open drawer 1", "close drawer 1", "open drawer 1", "close drawer 1"],
    )
    # The first closing leads to a new text: only with the second opening is it seen that the policy goes to and fro.
    assert toggles(run).tolist() == [False, False, True, True]
    assert no_ops(run).tolist() == [False] * 4


def test_going_back_to_the_observation_of_two_steps_before_is_a_toggle_whatever_the_action() -> None:
    assert toggles(episode(["a", "b", "a", "c"], ["east", "west", "north"])).tolist() == [False, True, False]


def test_doing_nothing_is_a_no_op_and_no_toggle() -> None:
    run = episode(["a", "a", "a", "b"], ["look", "look", "look"])
    assert no_ops(run).tolist() == [True, True, False]
    assert toggles(run).tolist() == [False, False, False]


def test_unreadable_turns_are_no_actions_to_come_back_to() -> None:
    steps = (step("a", "x"), step("b", "", malformed=True), step("c", "x"))
    run = Trajectory("t", Task("k", "e", "p", "train"), "g", 0, 0, 0, steps, "d", False, 0.0, StopReason.MAX_STEPS)
    assert toggles(run).tolist() == [False, False, False]
    assert toggles(episode(["a"], [])).shape == (0,)


def test_the_share_is_one_of_all_steps() -> None:
    batch = [episode(["a", "b", "a", "c"], ["east", "west", "north"]), episode(["a", "b"], ["east"])]
    assert rollout_metrics(batch)["toggle_share"] == 1 / 4


def test_what_idle_steps_are_foretold_and_paid_by_hand() -> None:
    # Steps: moving, toggle (back to a), no-op, no-op.
    run = episode(["a", "b", "a", "a", "a"], ["go east", "go west", "look", "look"])
    metrics = behaviour_metrics([run], np.array([0.2, 0.4, 1.0, 0.8]), np.array([0.1, 0.1, 0.5, 0.3]))
    assert metrics == pytest.approx(
        {
            "match/moving": 0.2,
            "match/toggle": 0.4,
            "match/no_op": 0.9,
            "match/no_op_mass": 1.8 / 2.4,
            "match/toggle_mass": 0.4 / 2.4,
            "bonus/no_op_mass": 0.8,
            "bonus/toggle_mass": 0.1,
            "match/action/go": 0.3,
            "match/action/look": 0.9,
        }
    )
    assert action_shares([run]) == {"action_share/go": 0.5, "action_share/look": 0.5}


def test_nothing_paid_has_no_share() -> None:
    metrics = behaviour_metrics([episode(["a", "b"], ["go"])], np.array([0.5]), np.array([0.0]))
    assert not any(name.startswith("bonus/") for name in metrics)
    assert behaviour_metrics([], np.zeros(0), np.zeros(0)) == action_shares([]) == {}


def test_rare_verbs_and_what_was_refused_are_put_together() -> None:
    steps = [step("s", f"verb{k:02d} it") for k in range(12) for _ in range(1 + (k < 9))]
    steps += [step("s", "fly away", valid=False), step("s", "", malformed=True), step("s", "", valid=True)]
    found = verbs(steps)
    # Nine verbs come twice; of the three that come once the first is the tenth.
    assert {name for name in found if name.startswith("verb")} == {f"verb{k:02d}" for k in range(10)}
    assert found.count("other") == 2
    assert found.count("invalid") == 3


@given(st.lists(st.tuples(st.text(max_size=40), st.booleans(), st.booleans()), max_size=60))
def test_a_models_words_make_few_and_plain_names(actions: list[tuple[str, bool, bool]]) -> None:
    found = verbs([step("s", text, valid=valid, malformed=bad) for text, valid, bad in actions])
    assert len(found) == len(actions)
    assert len(set(found)) <= 12
    assert all(name.isascii() and name.replace("_", "a").isalnum() and len(name) <= 24 for name in found)
