from intervals import Interval, IntervalSet


def test_length():
    assert len(Interval(2, 5)) == 3


def test_parts_that_overlap_become_one():
    assert IntervalSet([(1, 4), (3, 8)]).pairs() == [(1, 8)]


def test_a_hole():
    s = IntervalSet([(0, 10)])
    s.remove(3, 5)
    assert s.pairs() == [(0, 3), (5, 10)]
