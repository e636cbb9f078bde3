"""State groups: hand-made cases, and equality with the plain pairwise loop."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roleagent.errors import ConfigError
from roleagent.world_in_agent import grouping
from roleagent.world_in_agent.grouping import state_groups
from roleagent.world_in_agent.matching import match, normalise

thresholds = st.sampled_from([1e-9, 0.3, 0.5, 2 / 3, 0.75, 0.8, 0.9, 0.95, 1.0 - 1e-12, 1.0])
observations = st.text(alphabet="aAb ", max_size=10)


def plain_groups(states: list[str], threshold: float) -> list[int]:
    """Each state joins the first representative that it matches, or becomes one: all pairs, one at a time."""
    representatives: list[str] = []
    groups = []
    for state in states:
        for group, other in enumerate(representatives):
            if normalise(state) == normalise(other) or match(state, other, "characters") >= threshold:
                groups.append(group)
                break
        else:
            groups.append(len(representatives))
            representatives.append(state)
    return groups


def test_by_hand() -> None:
    states = [
        "You are at shelf 1.",
        "You are at shelf 2.",  # one of 19 characters differs: m = 36/38 = 0.947
        "you are  at shelf 1.",  # equal after normalisation
        "You open the safe.",
        "You are at shelf 1.",
    ]
    assert state_groups(states, 0.9) == [0, 0, 0, 1, 0]
    assert state_groups(states, 0.95) == [0, 1, 0, 2, 0]
    assert state_groups(states, 1.0) == [0, 1, 0, 2, 0]


def test_the_threshold_itself_matches() -> None:
    # m = 2 * 9 / 20 is exactly 0.9.
    assert state_groups(["abcdefghij", "abcdefghiX"], 0.9) == [0, 0]
    assert state_groups(["abcdefghij", "abcdefghiX"], 0.9 + 1e-12) == [0, 1]


def test_greedy_first_representative_wins_and_matching_is_not_transitive() -> None:
    # b is like a and like c, but a and c are not alike: what b joins depends on who came first.
    a, b, c = "aaaaaaaaaaxx", "aaaaaaaaaaxy", "aaaaaaaaaayy"
    threshold = 0.9
    assert match(a, b, "characters") >= threshold > match(a, c, "characters")
    assert state_groups([a, b, c], threshold) == [0, 0, 1]
    assert state_groups([b, a, c], threshold) == [0, 0, 0]
    assert state_groups([a, c, b], threshold) == [0, 1, 0]
    assert state_groups([c, a, b], threshold) == [0, 1, 0]


def test_a_member_that_is_no_representative_attracts_nobody() -> None:
    a, b, c = "aaaaaaaaaaxx", "aaaaaaaaaaxy", "aaaaaaaaaayy"
    assert state_groups([a, b, c, c, b], 0.9) == [0, 0, 1, 1, 0]


def test_empty_observations_are_one_group() -> None:
    assert state_groups(["", "a", " ", "a"], 0.9) == [0, 1, 0, 1]
    assert state_groups([], 0.9) == []


@given(st.lists(observations, max_size=16), thresholds)
def test_equals_the_plain_loop(states: list[str], threshold: float) -> None:
    assert state_groups(states, threshold) == plain_groups(states, threshold)


@pytest.mark.parametrize("block", [1, 2, 7])
def test_equals_the_plain_loop_across_blocks(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping, "_BLOCK", block)
    draw = random.Random(block)
    for threshold in (0.6, 0.75, 0.9, 1.0):
        states = ["".join(draw.choice("ab") for _ in range(draw.randint(0, 9))) for _ in range(60)]
        assert state_groups(states, threshold) == plain_groups(states, threshold)


def test_equals_the_plain_loop_on_long_observations() -> None:
    draw = random.Random(5)
    things = [f"{name} {number}" for name in ("mug", "apple", "book") for number in range(1, 4)]
    states = [f"You are at shelf 1. You see {', '.join(draw.sample(things, draw.randint(5, 8)))}." for _ in range(80)]
    for threshold in (0.7, 0.8, 0.9):
        groups = state_groups(states, threshold)
        assert groups == plain_groups(states, threshold)
        assert 1 < len(set(groups)) < len(states)


@given(st.lists(observations, min_size=1, max_size=16), thresholds)
def test_ids_count_up_in_order_of_foundation(states: list[str], threshold: float) -> None:
    groups = state_groups(states, threshold)
    firsts = list(dict.fromkeys(groups))
    assert firsts == list(range(len(firsts)))


@pytest.mark.parametrize("threshold", [0.0, -0.5, 1.5, float("nan")])
def test_threshold_out_of_bounds(threshold: float) -> None:
    with pytest.raises(ConfigError, match=r"is not in \(0, 1\]"):
        state_groups(["a"], threshold)
