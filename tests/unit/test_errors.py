"""What messages are made of: texts that are cut where a reader expects it, and the reason under a chain of errors."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roleagent.errors import innermost, shortened


def test_a_text_is_cut_after_a_sentence_or_a_word() -> None:
    assert shortened("short\n enough", 20) == "short enough"
    assert shortened("The first one. The second one is long.", 27) == "The first one. ..."
    assert shortened("One. Two words, and a third one", 24) == "One. Two words, and ..."
    assert shortened("One. Two words, and a third one", 20) == "One. Two words ..."
    assert shortened("See https://example.org/a/long/address.html", 30) == "See ..."
    assert shortened("x" * 30, 10) == "xxxxxx ..."


@given(st.text(st.sampled_from("ab. ,\n"), max_size=60), st.integers(10, 40))
def test_a_cut_text_is_short_and_ends_at_a_word_of_the_whole(text: str, limit: int) -> None:
    line, cut = " ".join(text.split()), shortened(text, limit)
    assert len(cut) <= limit
    if len(line) <= limit:
        assert cut == line
    else:
        assert cut.endswith(" ...")
        assert line.startswith(cut.removesuffix(" ..."))


def test_the_innermost_error_is_the_reason() -> None:
    def wrapped() -> None:
        try:
            try:
                raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
            except OSError as error:
                raise RuntimeError("Max retries exceeded") from error
        except RuntimeError:
            raise ValueError("HTTPConnectionPool(...)")  # noqa: B904  as libraries do

    with pytest.raises(ValueError, match="HTTPConnectionPool") as caught:
        wrapped()
    assert innermost(caught.value) == "Connection refused"
    assert innermost(ValueError("two\nlines")) == "two lines"
    assert innermost(ValueError("[Errno -2] Name or service not known")) == "Name or service not known"
    assert innermost(TimeoutError()) == "TimeoutError"
