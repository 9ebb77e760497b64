"""Overlaps with evaluation problems, counted by hand."""

from __future__ import annotations

import unicodedata

import pytest

from openrlhf_tir.data.prepare.decontaminate import FEWEST, Evaluations, grams, question_of, words
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
    assert question_of(chat) == "u\nv" and question_of("t") == "t"


@pytest.mark.parametrize("text", ["", " \n", "\ud800".encode("utf-8", "replace").decode()])
def test_a_text_without_words_matches_nothing(text):
    assert evaluations("a b c d").match(text, share=0.0) is None


def test_two_texts_without_words_are_not_the_same_text():
    """A chat may have a system message alone: then nothing is asked, of whatever problem it is."""
    held_out = Evaluations([Problem("e line 1", [{"role": "system", "content": "add"}], "1", None, {})], 3)
    assert held_out.match(question_of([{"role": "system", "content": "multiply"}]), share=0.0) is None


CHINESE = "小明有三个苹果,又从商店买了两个苹果,请问他现在一共有多少个苹果?"
THAI = "สมชายมีแอปเปิลสามผลแล้วซื้อมาอีกสองผลเขามีแอปเปิลทั้งหมดกี่ผล"


@pytest.mark.parametrize("text", [CHINESE, THAI, "りんごが三つあります。二つ買いました。いくつありますか。"])
def test_a_problem_in_a_script_without_spaces_is_found_within_other_words(text):
    held_out = evaluations(text, n=8)
    assert held_out.match(f"请解决下面的数学问题{text}", share=0.5).place == "aime line 1"
    assert held_out.match("今天天气很好我们去公园散步吧然后回家吃饭", share=0.0) is None


def test_signs_that_are_encoded_in_two_ways_are_the_same():
    french = "Un élève a été trouvé à côté de la forêt où il étudiait."
    assert words(unicodedata.normalize("NFD", french)) == words(french)
    assert words("F(12)=STRASSE") == words("f(12)=straße") == ["f", "(", "12", ")", "=", "strasse"]
    assert words("x_1 한국어 문제") == ["x", "1", "한국어", "문제"], "Korean has spaces"


def test_a_problem_that_the_training_rows_repeat_is_not_their_wording():
    """3 problems, each 10 times: every n-gram is in a third of the rows."""
    problems = [f"a train leaves station {name} at noon and travels north" for name in ("one", "two", "three")]
    held_out = evaluations(problems[0], n=4)
    assert held_out.learn_wording([f"solve : {text}" for text in problems * 10]) == 0
    assert held_out.match(f"solve : {problems[0]}", share=0.5) is not None
