"""Which rank trains what."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from openrlhf_tir.learner.balance import assign_ranks, lpt
from openrlhf_tir.types import KEEP, GroupKey, GroupMeta


def meta(prompt: int, tokens: list[int]) -> GroupMeta:
    n = len(tokens)
    return GroupMeta(
        GroupKey(0, prompt), KEEP, list(range(n)), [0.0] * n, [False] * n, [False] * n, tokens, tokens, 10, 0
    )


def test_the_longest_goes_to_the_emptiest_rank():
    # 9 -> 0, 7 -> 1, 6 -> 1 (7 < 9), 5 -> 0 (9 < 13): 14 and 13
    assert lpt([5, 9, 6, 7], 2) == [0, 0, 1, 1]


def test_prompts_count_and_groups_may_differ_in_size():
    # with the prompt of 10: 30, 11, 12 and 18 -> 30 | 18 + 12, then 11 on either (tie: the lowest)
    assert assign_ranks([meta(0, [20, 1]), meta(1, [2, 8])], 2) == {(0, 0): 0, (0, 1): 0, (1, 0): 1, (1, 1): 1}


def test_a_long_sequence_costs_its_attention_too():
    one_group = [meta(0, [20, 10, 0, 2])]
    # tokens: 30 | 20 + 12, then 10 where there is less
    assert assign_ranks(one_group, 2) == {(0, 0): 0, (0, 1): 1, (0, 2): 0, (0, 3): 1}
    # with as many operations again for the attention of 30 tokens: 60 | 33.3 + 16.8 + 13.3
    assert assign_ranks(one_group, 2, parity=30.0) == {(0, 0): 0, (0, 1): 1, (0, 2): 1, (0, 3): 1}


@given(st.lists(st.integers(1, 500), min_size=1, max_size=60), st.integers(1, 8))
def test_every_item_has_a_rank_and_loads_differ_by_at_most_one_item(lengths, bins):
    placed = lpt(lengths, bins)
    loads = [sum(n for n, b in zip(lengths, placed, strict=True) if b == k) for k in range(bins)]
    assert len(placed) == len(lengths)
    assert max(loads) - min(loads) <= max(lengths)
    assert placed == lpt(lengths, bins)


def test_a_masked_sample_is_no_load():
    masked = replace(meta(0, [20, 1]), masked=["rambling", ""])
    # 18, 12, 11 and 0 -> 18 | 12 + 11, and the masked one where there is less
    assert assign_ranks([masked, meta(1, [2, 8])], 2) == {(0, 0): 0, (0, 1): 1, (1, 0): 1, (1, 1): 0}


def test_groups_stay_whole_where_that_saves_prompts():
    # two groups of two, prompts of 10: whole, each rank has 10 + 2; spread, one has 22 and the other 22
    groups = [meta(0, [1, 1]), meta(1, [1, 1])]
    assert assign_ranks(groups, 2, share_prompts=True) == {(0, 0): 0, (0, 1): 0, (1, 0): 1, (1, 1): 1}


def test_a_group_is_spread_where_whole_groups_would_leave_a_rank_idle():
    # one group: whole, 10 + 80 on one rank; spread, 10 + 40 on each
    group = [meta(0, [40, 40])]
    assert assign_ranks(group, 2, share_prompts=True) == assign_ranks(group, 2) == {(0, 0): 0, (0, 1): 1}
