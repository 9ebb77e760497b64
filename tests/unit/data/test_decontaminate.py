"""Overlaps with evaluation problems, counted by hand."""

from __future__ import annotations

import pytest

from openrlhf_tir.data.prepare.decontaminate import FEWEST, Evaluations, asked, grams, words
from openrlhf_tir.data.prompts import Problem


def evaluations(*texts, n=3):
    return Evaluations([Problem(f"aime line {i}", text, "1", None, {}) for i, text in enumerate(texts, 1)], n)


def test_words_are_letters_digits_and_single_signs_whatever_their_case_and_spacing():
    assert words("A  b\n1+1") == words("a B 1 + 1") == ["a", "b", "1", "+", "1"]
    assert len(grams(["a", "b", "c", "d"], 3)) == 2 and len(grams(["a"], 3)) == 1 and grams([], 3) == set()


def test_an_overlap_is_the_share_of_the_evaluation_problems_n_grams():
    """a b c d e f has 4 trigrams; "x a b c d y" holds 2 of them."""
    held_out = evaluations("a b c d e f")
    found = held_out.match("x a b c d y", share=0.5)
    assert found is not None and (found.place, found.share) == ("aime line 1", 0.5)
    assert held_out.match("x a b c d y", share=0.6) is None
    assert held_out.match("x a b c y", share=0.0).share == 0.25
    assert held_out.match("x y z", share=0.0) is None, "no n-gram at all is no overlap"


def test_the_same_words_are_found_however_short_and_whatever_the_share():
    held_out = evaluations("1 + 1?", "a b c d")
    assert held_out.match("1+1 ?", share=1.0).place == "aime line 1"
    assert held_out.match("what is 1 + 1", share=1.0) is None


def test_the_evaluation_problem_with_the_largest_overlap_is_named():
    held_out = evaluations("a b c x y z", "a b c d")
    assert held_out.match("q a b c d", share=0.0).place == "aime line 2"


def test_what_many_rows_say_is_the_data_sets_wording_and_not_counted():
    wording = "give the final answer"
    held_out = evaluations(f"a b c d {wording}", n=4)
    rows = [f"row {i} of them : {wording}" for i in range(FEWEST)]
    assert held_out.match(rows[0], share=0.0) is not None
    assert held_out.learn_wording(rows) == 1
    assert held_out.match(rows[0], share=0.0) is None
    assert held_out.match("q a b c d q", share=0.0) is not None


def test_of_a_chat_the_users_messages_are_asked():
    chat = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "v"},
    ]
    assert asked(chat) == "u\nv" and asked("t") == "t"


@pytest.mark.parametrize("text", ["", " \n", "\ud800".encode("utf-8", "replace").decode()])
def test_a_text_without_words_matches_nothing(text):
    assert evaluations("a b c d").match(text, share=0.0) is None
