"""Calls as ToolACE writes them, by hand; and that no text whatever makes more than a ValueError."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_tir.data.prepare.call_text import looks_like_calls, read_calls


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('[Weather Now(city="Oslo")]', [("Weather Now", {"city": "Oslo"})]),
        ("[f(), g(a=1, b=-2.5)]", [("f", {}), ("g", {"a": 1, "b": -2.5})]),
        (
            "[f(x=[1, (2)], y={'k': \"a, b)\"}, z=true, n=None)]",
            [("f", {"x": [1, 2], "y": {"k": "a, b)"}, "z": True, "n": None})],
        ),
        ('  [f(text="it\'s \\"so\\", she said (twice)")] ', [("f", {"text": 'it\'s "so", she said (twice)'})]),
        ("[User's Files(path='/')]", [("User's Files", {"path": "/"})]),
    ],
)
def test_calls_are_read_with_their_arguments(text, calls):
    assert [(c["name"], c["arguments"]) for c in read_calls(text)] == calls


@pytest.mark.parametrize(
    "text",
    [
        "", "Oslo is cold.", "[]", "[f]", "[f(1)]", "[f(a=1, a=2)]", "[f(a=b)]", "[f(a=1]", "[f(a='x)]", "[(a=1)]",
        "[f(a=g())]", "[f(a={1})]",
    ],
)  # fmt: skip
def test_what_is_no_list_of_calls_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        read_calls(text)


def test_a_plain_reply_does_not_look_like_calls():
    assert not looks_like_calls("I cannot (sing).") and looks_like_calls("[f()]")


@given(st.text(alphabet="[](){}='\"\\, fa1true.-\n", max_size=60))
def test_any_text_is_calls_or_a_value_error(text):
    with contextlib.suppress(ValueError):
        assert all(isinstance(c["name"], str) and isinstance(c["arguments"], dict) for c in read_calls(text))
