"""A process's listener: one at a time, and the one before it comes back."""

from __future__ import annotations

import pytest

from roleagent.listening import Seat


def test_a_listener_has_the_seat_for_the_time_of_a_block() -> None:
    seat = Seat("silent")
    with seat.taken("outer"):
        with seat.taken("inner"):
            assert seat.current() == "inner"
        assert seat.current() == "outer"
    assert seat.current() == "silent"


def test_the_seat_is_given_back_when_the_block_fails() -> None:
    seat = Seat("silent")
    with pytest.raises(KeyError), seat.taken("doomed"):
        raise KeyError
    assert seat.current() == "silent"
