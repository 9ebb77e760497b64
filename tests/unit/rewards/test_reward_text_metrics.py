"""Repetition, keywords and length penalty by hand."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_tir.rewards.checking.code_text import extract_code
from openrlhf_tir.rewards.checking.text_metrics import (
    OFFICIAL_KEYWORDS,
    keyword_flags,
    repeated_ngrams,
    repeatness,
    soft_overlong,
)


@pytest.mark.parametrize(
    ("text", "value"), [("", 0.0), ("a", 0.0), ("ab", 0.0), ("aa", 1 / 3), ("abab", 2 * 3 / 20), ("aaa", 0.5)]
)
def test_repeatness_sums_common_prefixes_of_neighbouring_suffixes(text, value):
    # "abab": suffixes ab, abab, b, bab share 2, 0 and 1 characters: 2 * 3 / (4 * 5).
    assert repeatness(text) == pytest.approx(value)


MANY = "".join(map(chr, range(0x4E00, 0x4E00 + 300)))
"""More symbols than a byte holds, to be in front of what is drawn."""


@given(st.text(alphabet="ab\n猫\ud800", min_size=2, max_size=40), st.sampled_from(["", MANY]))
def test_repeatness_agrees_with_sorted_suffixes(text, before):
    text = before + text
    suffixes = sorted(text[i:] for i in range(len(text)))

    def common(a, b):
        return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))

    total = sum(common(a, b) for a, b in pairwise(suffixes))
    assert repeatness(text) == pytest.approx(2 * total / (len(text) * (len(text) + 1)))


def test_repeated_ngrams_is_the_fraction_seen_before():
    assert repeated_ngrams(list("abcabc")) == 0.25  # abc bca cab abc
    assert repeated_ngrams(["a", "b"]) == 0.0


@pytest.mark.parametrize(
    ("text", "ours", "official"),
    [
        ("ALTERNATIVELY", (0, 1), (0, 1)),
        ("unalternatively", (0, 0), (0, 0)),
        ("Hmm wait", (0, 1), (0, 0)),
        ("Hmm, wait", (0, 1), (0, 1)),
        ("waiting", (0, 0), (0, 0)),
        ("recheck it", (1, 0), (0, 0)),
        ("re-thinkrecheck", (0, 0), (1, 0)),
        ("请稍等", (1, 0), (1, 0)),
        ("checked again", (0, 0), (0, 0)),
    ],
)
def test_keywords_are_whole_words_with_the_typos_of_the_reference(text, ours, official):
    assert tuple(keyword_flags(text).values()) == ours
    assert tuple(keyword_flags(text, OFFICIAL_KEYWORDS).values()) == official


@pytest.mark.parametrize(
    ("length", "penalty"), [(0, 0.0), (7680, 0.0), (7681, -1 / 512), (7936, -0.5), (8192, -1.0), (9000, -1.0)]
)
def test_the_length_penalty_is_linear_over_the_last_512_tokens(length, penalty):
    assert soft_overlong(length, 8192) == pytest.approx(penalty)


def test_a_program_is_the_closed_blocks_without_earlier_prints():
    assert extract_code("a\n```python\nprint(1)") == ""
    assert extract_code("```python\nx=1\nprint(x)\n```\n```python\nprint(x+1)\n```") == "x=1\nprint(x+1)"
    assert (
        extract_code("```python\nfor i in r:\n    print(i)\n```\n```python\ny=2\n```")
        == "for i in r:\n    print(i)\ny=2"
    )
