"""Micro batches: nothing dropped, little padding, limits kept."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_tir.learner.packing import Row, collate, plan


def test_rows_of_like_length_share_a_micro_batch_longest_first():
    assert plan([3, 9, 4, 8], max_rows=2, max_tokens=100) == [[1, 3], [2, 0]]


def test_the_token_limit_counts_padding():
    # 9 + 3 padded to 9 are 18 > 17; packed they are 12
    assert plan([9, 3], max_rows=8, max_tokens=17) == [[0], [1]]
    assert plan([9, 3], max_rows=8, max_tokens=17, packed=True) == [[0, 1]]


def test_packed_rows_are_bounded_by_tokens_however_many_they_are_and_fill_what_is_left():
    assert plan([6, 5, 4, 3, 1, 1], max_rows=1, max_tokens=10, packed=True) == [[0, 2], [1, 3, 4, 5]]


def test_a_row_longer_than_the_limit_is_alone_and_not_dropped():
    assert plan([50, 5, 4], max_rows=8, max_tokens=10) == [[0], [1, 2]]


@given(st.lists(st.integers(2, 60), max_size=40), st.integers(1, 9), st.integers(1, 200), st.booleans())
def test_every_row_is_in_exactly_one_micro_batch_within_the_limits(lengths, max_rows, max_tokens, packed):
    batches = plan(lengths, max_rows=max_rows, max_tokens=max_tokens, packed=packed)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        sizes = [lengths[i] for i in batch]
        used = sum(sizes) if packed else max(sizes) * len(sizes)
        assert packed or len(batch) <= max_rows
        assert used <= max_tokens or len(batch) == 1


def test_a_short_last_micro_batch_is_kept():
    assert [len(b) for b in plan([5] * 7, max_rows=3, max_tokens=100)] == [3, 3, 1]


def test_rows_are_padded_on_the_right_and_fields_with_zero():
    rows = [Row(np.array([7, 8, 9]), {"w": np.array([1.0, 2.0])}), Row(np.array([5, 6]), {"w": np.array([3.0])})]
    micro = collate(rows, {"w": np.float32}, "cpu")
    assert micro.sequences.tolist() == [[7, 8, 9], [5, 6, 0]]
    assert micro.attention_mask.tolist() == [[1, 1, 1], [1, 1, 0]]
    assert micro.fields["w"].tolist() == [[1.0, 2.0], [3.0, 0.0]]


def test_no_rows_make_a_dummy_that_nothing_trains():
    micro = collate([], {"w": np.float32}, "cpu")
    assert micro.sequences.shape == (1, 2)
    assert micro.attention_mask.tolist() == [[1, 1]]
    assert micro.fields["w"].tolist() == [[0.0]]
