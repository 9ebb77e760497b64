"""Micro batches: nothing dropped, little padding, limits kept."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_tir.learner.packing import Row, collate, first_fit, plan_packed, plan_padded


def test_rows_of_like_length_share_a_micro_batch_longest_first():
    assert plan_padded([3, 9, 4, 8], max_rows=2, max_tokens=100) == [[1, 3], [2, 0]]


def test_the_token_limit_counts_padding():
    # 9 + 3 padded to 9 are 18 > 17; packed they are 12
    assert plan_padded([9, 3], max_rows=8, max_tokens=17) == [[0], [1]]
    assert first_fit([9, 3], 17) == [[0, 1]]


def test_packed_rows_are_bounded_by_tokens_however_many_they_are_and_fill_what_is_left():
    assert first_fit([6, 5, 4, 3, 1, 1], 10) == [[0, 2], [1, 3, 4, 5]]


def test_a_row_longer_than_the_limit_is_alone_and_not_dropped():
    assert plan_padded([50, 5, 4], max_rows=8, max_tokens=10) == [[0], [1, 2]]


@given(st.lists(st.integers(2, 60), max_size=40), st.integers(1, 9), st.integers(1, 200), st.booleans())
def test_every_row_is_in_exactly_one_micro_batch_within_the_limits(lengths, max_rows, max_tokens, packed):
    batches = (
        first_fit(lengths, max_tokens) if packed else plan_padded(lengths, max_rows=max_rows, max_tokens=max_tokens)
    )
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        sizes = [lengths[i] for i in batch]
        used = sum(sizes) if packed else max(sizes) * len(sizes)
        assert packed or len(batch) <= max_rows
        assert used <= max_tokens or len(batch) == 1


def test_a_short_last_micro_batch_is_kept():
    assert [len(b) for b in plan_padded([5] * 7, max_rows=3, max_tokens=100)] == [3, 3, 1]


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


def prompted(prompt: list[int], response: list[int]) -> Row:
    tokens = np.array(prompt + response)
    return Row(tokens, {"w": np.arange(len(tokens) - 1, dtype=np.float32)}, prompt_tokens=len(prompt))


def test_a_prompt_costs_its_tokens_once_in_the_micro_batch_of_its_responses():
    # each row has 5 + 2 tokens, 4 of which can be shared: 4 + 3 + 3 + 3 = 13 tokens for three rows, 7 for one
    same = [prompted([1, 2, 3, 4, 5], [6, 7]) for _ in range(3)]
    other = prompted([1, 2, 3, 4, 9], [6, 7])
    alone = prompted([2] * 5, [3, 3])
    assert plan_packed([*same, alone], max_tokens=13, share_prompts=True) == [[0, 1, 2], [3]]
    assert plan_packed([*same, alone], max_tokens=20, share_prompts=True) == [[0, 1, 2, 3]]
    # the prompts differ in their last token alone, which is not shared anyway
    assert plan_packed([*same, other], max_tokens=16, share_prompts=True) == [[0, 1, 2, 3]]


def test_a_group_that_does_not_fit_is_spread_over_micro_batches_that_each_compute_the_prompt():
    rows = [prompted([1, 2, 3, 4, 5], [6, 7]) for _ in range(4)]
    assert plan_packed(rows, max_tokens=10, share_prompts=True) == [[0, 1], [2, 3]]
    assert plan_packed(rows, max_tokens=3, share_prompts=True) == [[0], [1], [2], [3]]


def test_the_packed_row_holds_a_shared_prompt_once_and_then_the_rests():
    rows = [prompted([1, 2, 3], [4]), prompted([8, 9], [7]), prompted([1, 2, 3], [5, 6])]
    packed = collate(rows, {"w": np.float32}, "cpu", packed=True, share_prompts=True).packed
    # sequences padded to 5 tokens: row 0 starts at place 0, row 1 at 5, row 2 at 10
    assert packed.lengths == (2, 2, 3, 3)
    assert packed.continues == (-1, 0, 0, -1)
    assert packed.source.tolist() == [0, 1, 2, 3, 12, 13, 14, 5, 6, 7]
    assert packed.positions.tolist() == [[0, 1, 2, 3, 2, 3, 4, 0, 1, 2]]


def test_rows_without_a_prompt_share_nothing():
    rows = [Row(np.array([1, 2, 3])), Row(np.array([1, 2, 3]))]
    assert collate(rows, {}, "cpu", packed=True, share_prompts=True).packed.continues == (-1, -1)
    assert plan_packed(rows, max_tokens=5, share_prompts=True) == [[0], [1]]


def test_without_sharing_each_row_is_a_segment_of_its_own():
    rows = [prompted([1, 2, 3], [4]), prompted([1, 2, 3], [5, 6])]
    packed = collate(rows, {"w": np.float32}, "cpu", packed=True).packed
    assert (packed.lengths, packed.continues) == ((4, 5), (-1, -1))
    assert packed.source.tolist() == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert plan_packed(rows, max_tokens=7, share_prompts=False) == [[1], [0]] == first_fit([4, 5], 7)


groups = st.lists(st.tuples(st.integers(1, 12), st.lists(st.integers(1, 9), min_size=1, max_size=5)), max_size=6)


@pytest.mark.slow
@given(groups, st.integers(1, 60))
def test_shared_micro_batches_hold_every_row_once_within_the_limit(groups, max_tokens):
    rows = [
        prompted([g] * prompt, [50] * response)
        for g, (prompt, responses) in enumerate(groups)
        for response in responses
    ]
    batches = plan_packed(rows, max_tokens=max_tokens, share_prompts=True)
    assert sorted(i for batch in batches for i in batch) == list(range(len(rows)))
    for batch in batches:
        packed = collate([rows[i] for i in batch], {}, "cpu", packed=True, share_prompts=True).packed
        assert sum(packed.lengths) <= max_tokens or len(batch) == 1
        assert len(set(packed.source.tolist())) == len(packed.source) == sum(packed.lengths)
