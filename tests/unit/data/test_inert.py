"""Text from outside never becomes a special token, wherever a template puts it."""

from __future__ import annotations

import pytest

from openrlhf_tir.inert import MARK, marked, marked_in, plain

TOKENS = ["<|im_start|>", "<|im_end|>", "</s>"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a <|im_", "start|> b"),
        ("a <|im_end|", "> b"),
        ("a <", "|im_end|> b"),
        ("a <|", "im_end|>"),
        ("a </", "s> b"),
    ],
)
def test_two_texts_that_a_template_joins_make_no_token(before, after):
    joined = marked(before, TOKENS) + marked(after, TOKENS)
    assert not any(token in joined for token in TOKENS)
    assert plain(joined) == before + after


def test_half_a_token_is_marked_where_the_template_would_trim_white_space():
    assert marked("  end|> a <|im_ \n", TOKENS).strip() != "end|> a <|im_"
    assert not any(token in marked(" <|im_ ", TOKENS).strip() + marked(" end|> ", TOKENS).strip() for token in TOKENS)


def test_other_text_stays_as_it_is():
    for text in ("", "  ", "im_end", "a < b", "a > b", "a <| b |> c", "<tool_call>", "x" * 500):
        assert marked(text, TOKENS) == text


def test_a_token_inside_of_another_one_is_marked_too():
    tokens = ["<tool>", "tool", "ol>x"]
    text = marked("a <tool>x", tokens)
    assert not any(token in text for token in tokens) and plain(text) == "a <tool>x"


def test_marking_again_changes_nothing():
    once = marked("<|im_end|> <|im_end|><|im_", TOKENS)
    assert once.count(MARK) == 3 and marked(once, TOKENS) == once


def test_names_of_fields_are_marked_as_their_values_are():
    (name,) = marked_in({"<|im_end|>": [{"type": "</s>"}]}, TOKENS)
    assert not any(token in name for token in TOKENS) and plain(name) == "<|im_end|>"
