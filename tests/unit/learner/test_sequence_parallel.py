"""How a packed row is cut for the ranks of a group. What it trains: tests/e2e/learner/test_sequence_parallel.py."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from openrlhf_tir.learner.attention.sequence_parallel import SequenceParallel  # noqa: E402


def ranks(size: int) -> list[SequenceParallel]:
    """Those of a group, without the group."""
    made = [SequenceParallel() for _ in range(size)]
    for rank, one in enumerate(made):
        one.size, one.rank = size, rank
    return made


def test_a_row_is_cut_evenly_with_all_that_belongs_to_its_tokens():
    row = torch.arange(6)[None]
    assert [one.slice(row).tolist() for one in ranks(3)] == [[[0, 1]], [[2, 3]], [[4, 5]]]
    assert [one.slice(row[..., None]).shape for one in ranks(3)] == [(1, 2, 1)] * 3


def test_a_row_that_ranks_share_counts_once():
    assert sum(one.once(torch.tensor([7.0])).item() for one in ranks(2)) == 7.0


def test_alone_nothing_is_cut():
    row, alone = torch.arange(5)[None], SequenceParallel()
    assert torch.equal(alone.slice(row), row) and alone.gather(row) is row
