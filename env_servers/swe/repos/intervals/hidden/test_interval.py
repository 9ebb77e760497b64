import pytest

from intervals import Interval


def test_an_interval_has_its_start_and_not_its_end():
    i = Interval(2, 5)
    assert [v for v in range(0, 8) if v in i] == [2, 3, 4]
    assert len(i) == 3
    assert i.as_tuple() == (2, 5)
    assert repr(i) == "[2, 5)"


def test_an_empty_interval_is_allowed_and_a_backward_one_is_not():
    assert len(Interval(3, 3)) == 0
    with pytest.raises(ValueError):
        Interval(3, 2)


def test_equality():
    assert Interval(1, 2) == Interval(1, 2)
    assert Interval(1, 2) != Interval(1, 3)
    assert Interval(1, 2) != Interval(0, 2)
    assert hash(Interval(1, 2)) == hash(Interval(1, 2))


@pytest.mark.parametrize(("other", "overlaps", "touches"), [((0, 2), False, True), ((0, 3), True, True), ((5, 9), False, True), ((4, 9), True, True), ((6, 9), False, False), ((0, 1), False, False), ((3, 4), True, True)])
def test_overlapping_and_touching(other, overlaps, touches):
    assert Interval(2, 5).overlaps(Interval(*other)) is overlaps
    assert Interval(2, 5).touches(Interval(*other)) is touches


def test_intersection():
    assert Interval(2, 5).intersection(Interval(4, 9)).as_tuple() == (4, 5)
    assert Interval(2, 9).intersection(Interval(4, 6)).as_tuple() == (4, 6)
    assert Interval(2, 5).intersection(Interval(5, 9)) is None


def test_shift():
    assert Interval(2, 5).shift(3).as_tuple() == (5, 8)
    assert Interval(2, 5).shift(-2).as_tuple() == (0, 3)


def test_split():
    a, b = Interval(2, 6).split(4)
    assert (a.as_tuple(), b.as_tuple()) == ((2, 4), (4, 6))
    assert Interval(2, 6).split(6)[1].as_tuple() == (6, 6)
    assert Interval(2, 6).split(2)[0].as_tuple() == (2, 2)
    for at in (1, 7):
        with pytest.raises(ValueError):
            Interval(2, 6).split(at)
