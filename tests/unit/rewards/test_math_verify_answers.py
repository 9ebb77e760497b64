"""Equality of answers: what strings and fractions decide, and what math-verify decides in boxes."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openrlhf_tir.rewards.checking import symbolic
from openrlhf_tir.rewards.checking.answer_check import MAX_CHARS, clean, equal, quick_equal
from openrlhf_tir.rewards.checking.numerals import number
from openrlhf_tir.rewards.pool import AnswerChecker

from .answer_pairs import DIFFERENT, EQUAL


@pytest.mark.parametrize(
    ("answer", "gold", "verdict"),
    [
        ("42", "42", True),
        (" 42 ", "42", True),
        ("$42$", "42", True),
        (r"\(42\)", "42", True),
        ("1,000", "1000", True),
        ("007", "7", True),
        ("-0", "0", True),
        ("0.5", "1/2", True),
        (r"\frac{2}{4}", "1/2", True),
        (r"-\dfrac{1}{2}", r"\frac{-1}{2}", True),
        ("42.0", "42", True),
        ("五", "五", True),
        ("41", "42", False),
        ("0.33", "1/3", False),
        ("1/3", "1/4", False),
        ("", "42", False),
        ("0.3333333", "1/3", False),  # a decimal is exact
        ("1e3", "1000", True),
        ("1 1/2", "1.5", True),
        ("101_2", "101_3", False),
        (r"\frac{1}{0}", "1", None),
        ("50\\%", "0.5", None),
        ("x", "y", None),
    ],
)
def test_strings_and_fractions_are_compared_without_algebra(answer, gold, verdict):
    assert quick_equal(answer, gold) is verdict


@given(st.integers(-(10**12), 10**12), st.integers(-(10**12), 10**12))
def test_integers_are_decided_without_algebra(a, b):
    assert quick_equal(str(a), str(b)) is (a == b)


@pytest.mark.slow
@given(st.fractions(min_value=-1000, max_value=1000, max_denominator=999))
def test_a_fraction_equals_itself_in_every_spelling(f):
    latex = rf"\frac{{{f.numerator}}}{{{f.denominator}}}"
    assert number(latex).value == f == Fraction(latex[6:-1].replace("}{", "/"))
    assert quick_equal(latex, f"{f.numerator}/{f.denominator}" if f.numerator >= 0 else latex) is True


@given(st.text(max_size=30), st.text(max_size=30))
def test_no_string_breaks_the_quick_check(a, b):
    assert quick_equal(a, b) in (True, False, None)
    assert clean(clean(a)) == clean(clean(clean(a)))


async def test_an_overlong_answer_never_reaches_algebra(monkeypatch):
    class NoWorkers:
        async def run(self, function, *args):
            raise AssertionError(f"{function} was called")

    def never(*args):
        raise AssertionError("computer algebra was asked")

    monkeypatch.setattr(symbolic, "equal", never)
    assert equal("x" * (MAX_CHARS + 1), "42") is False
    assert equal("x" * 5000, "x" * 5000) is True
    assert await AnswerChecker(NoWorkers()).equal("x" * (MAX_CHARS + 1), "42") is False
    assert await AnswerChecker(NoWorkers()).equal("x" * 5000, "x" * 5000) is True


BOTH = [False, pytest.param(True, marks=pytest.mark.long)]
"""False: every other pair is exchanged."""


def directions(pairs, both):
    exchanged = [(gold, answer) for answer, gold in pairs]
    return [*pairs, *exchanged] if both else [*pairs[::2], *exchanged[1::2]]


@pytest.mark.slow
@pytest.mark.parametrize("both", BOTH)
def test_equal_answers_are_equal_in_both_directions(both):
    assert [pair for pair in directions(EQUAL, both) if not equal(*pair)] == []


@pytest.mark.slow
@pytest.mark.parametrize("both", BOTH)
def test_different_answers_are_unequal_in_both_directions(both):
    assert [pair for pair in directions(DIFFERENT, both) if equal(*pair)] == []


@given(st.text(alphabet=r"\{}()[]^_,<=0123456789xyzei/.%$ ²½√\ud800", max_size=20))
@settings(max_examples=50, deadline=None)
def test_no_answer_raises_in_the_algebra(answer):
    assert symbolic.equal(answer, "an answer that is none") is False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "gold", "verdict"),
    [
        (r"\dfrac{1}{2}", r"\frac{1}{2}", True),
        ("2^{10}", "1024", True),
        (r"\{2,1\}", r"\{1,2\}", True),
        ("50\\%", "0.5", True),
        (r"5\text{ cm}", "5", True),
        ("x=5", "5", True),
        (r"1\frac{1}{2}", r"\frac{3}{2}", True),
        ("五", "5", False),
        # Bare LaTeX would make all of these wrong: equal prefixes, or nothing parsed at all (ToRL.md section 7).
        ("2^{11}", "2^{10}", False),
        (r"2\sqrt{3}", r"2\sqrt{2}", False),
        ("3+5i", "3+4i", False),
        ("3x", "3y", False),
        (r"\sqrt8", r"2\sqrt2", True),
        ("(1, 2)", "(1,2)", True),
        ("x>2", "2<x", True),
        (r"2\cdot 512", "1024", True),
        ("(x+1)^2", "x^2+2x+1", True),
        # Rubbish is wrong, not an error.
        ("\\", "1", False),
        ("{" * 50, "1", False),
        (r"\begin{pmatrix}1&2", "1", False),
    ],
)
def test_algebra_decides_in_boxes(answer, gold, verdict):
    assert symbolic.equal(answer, gold) is verdict
