import pytest

from intervals import IntervalSet


@pytest.mark.parametrize(("pairs", "merged"), [([(1, 2), (2, 3)], [(1, 3)]), ([(5, 6), (1, 2)], [(1, 2), (5, 6)]), ([(1, 9), (3, 4)], [(1, 9)]), ([(1, 3), (5, 7), (2, 6)], [(1, 7)]), ([(4, 4)], []), ([], [])])
def test_parts_are_sorted_and_joined(pairs, merged):
    assert IntervalSet(pairs).pairs() == merged


@pytest.mark.parametrize(("hole", "left"), [((3, 5), [(0, 3), (5, 10), (20, 30)]), ((0, 10), [(20, 30)]), ((5, 25), [(0, 5), (25, 30)]), ((10, 20), [(0, 10), (20, 30)]), ((-5, 40), []), ((8, 12), [(0, 8), (20, 30)])])
def test_removing(hole, left):
    s = IntervalSet([(0, 10), (20, 30)])
    s.remove(*hole)
    assert s.pairs() == left


def test_membership_and_size():
    s = IntervalSet([(0, 3), (5, 7)])
    assert [v for v in range(8) if v in s] == [0, 1, 2, 5, 6]
    assert len(s) == 5
    assert bool(s) is True
    assert bool(IntervalSet()) is False


def test_algebra():
    a, b = IntervalSet([(0, 5), (10, 15)]), IntervalSet([(3, 12)])
    assert a.union(b).pairs() == [(0, 15)]
    assert a.intersection(b).pairs() == [(3, 5), (10, 12)]
    assert a.difference(b).pairs() == [(0, 3), (12, 15)]
    assert b.difference(a).pairs() == [(5, 10)]
    assert a.pairs() == [(0, 5), (10, 15)]


def test_gaps_and_span():
    s = IntervalSet([(0, 2), (4, 5), (9, 12)])
    assert s.gaps() == [(2, 4), (5, 9)]
    assert s.span() == (0, 12)
    assert IntervalSet().gaps() == []
    assert IntervalSet().span() is None


@pytest.mark.parametrize(("length", "start", "at"), [(1, 0, 2), (2, 0, 2), (3, 0, 5), (4, 0, 5), (5, 0, 12), (2, 3, 5), (1, 20, 20), (2, -2, -2)])
def test_free_slots(length, start, at):
    assert IntervalSet([(0, 2), (4, 5), (9, 12)]).free_slot(length, start) == at
