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


def test_a_row_is_filled_up_and_cut_evenly():
    row = torch.arange(1, 6)[None]
    assert [one.slice(row).tolist() for one in ranks(3)] == [[[1, 2]], [[3, 4]], [[5, 0]]]


def test_what_fills_a_row_up_is_a_sequence_of_its_own():
    positions = torch.tensor([[0, 1, 2, 0, 1]])
    assert [one.positions(positions).tolist() for one in ranks(4)] == [[[0, 1]], [[2, 0]], [[1, 0]], [[1, 2]]]


def test_a_row_that_ranks_share_counts_once():
    assert sum(one.once(torch.tensor([7.0])).item() for one in ranks(2)) == 7.0


def test_alone_nothing_is_cut():
    row, alone = torch.arange(5)[None], SequenceParallel()
    assert alone.slice(row) is row and alone.gather(row, 5) is row and alone.counted
