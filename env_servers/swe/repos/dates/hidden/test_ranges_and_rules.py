from datetime import date

import pytest

from dates import DateRange, merge, monthly, next_working_day, nth_weekday, working_days


def may(first, last):
    return DateRange(date(2024, 5, first), date(2024, 5, last))


def test_a_range_has_both_its_ends():
    r = may(3, 5)
    assert [d in r for d in (date(2024, 5, 2), date(2024, 5, 3), date(2024, 5, 5), date(2024, 5, 6))] == [False, True, True, False]
    assert list(r) == [date(2024, 5, 3), date(2024, 5, 4), date(2024, 5, 5)]
    assert len(may(3, 3)) == 1
    with pytest.raises(ValueError):
        may(3, 2)


def test_equality():
    assert may(1, 2) == may(1, 2)
    assert may(1, 2) != may(1, 3)


@pytest.mark.parametrize(("other", "days"), [((1, 3), 1), ((1, 2), 0), ((4, 9), 2), ((5, 5), 1), ((6, 9), 0), ((1, 20), 3), ((8, 9), 0)])
def test_overlap(other, days):
    assert may(3, 5).overlap(may(*other)) == days


def test_weeks_end_on_sundays():
    assert may(8, 20).weeks() == [(date(2024, 5, 8), date(2024, 5, 12)), (date(2024, 5, 13), date(2024, 5, 19)), (date(2024, 5, 20), date(2024, 5, 20))]


def test_parts():
    assert may(1, 7).split(3) == [(date(2024, 5, 1), date(2024, 5, 3)), (date(2024, 5, 4), date(2024, 5, 6)), (date(2024, 5, 7), date(2024, 5, 7))]
    assert len(may(1, 4).split(1)) == 4
    with pytest.raises(ValueError):
        may(1, 7).split(0)


def test_extension():
    assert may(5, 6).extend(2, 1).as_tuple() == (date(2024, 5, 3), date(2024, 5, 7))
    assert may(5, 6).extend(after=3).as_tuple() == (date(2024, 5, 5), date(2024, 5, 9))


def test_merging():
    d = lambda n: date(2024, 5, n)
    assert merge([(d(5), d(6)), (d(1), d(2)), (d(3), d(4))]) == [(d(1), d(6))]
    assert merge([(d(1), d(9)), (d(3), d(4)), (d(11), d(12))]) == [(d(1), d(9)), (d(11), d(12))]
    assert merge([]) == []


def test_working_days():
    holidays = [date(2024, 5, 1), date(2024, 5, 4)]
    assert working_days(date(2024, 5, 1), date(2024, 5, 10)) == 8
    assert working_days(date(2024, 5, 1), date(2024, 5, 10), holidays) == 7
    assert working_days(date(2024, 5, 3), date(2024, 5, 3)) == 1
    assert working_days(date(2024, 5, 4), date(2024, 5, 5)) == 0


def test_the_next_working_day():
    assert next_working_day(date(2024, 5, 3)) == date(2024, 5, 6)
    assert next_working_day(date(2024, 5, 2)) == date(2024, 5, 3)
    assert next_working_day(date(2024, 5, 3), [date(2024, 5, 6)]) == date(2024, 5, 7)
    assert next_working_day(date(2024, 5, 3), steps=6) == date(2024, 5, 13)
    with pytest.raises(ValueError):
        next_working_day(date(2024, 5, 3), steps=0)


@pytest.mark.parametrize(("weekday", "n", "day"), [(0, 1, 6), (2, 1, 1), (2, 5, 29), (0, 5, None), (4, -1, 31), (3, -1, 30), (5, -1, 25), (4, -5, 3), (6, -5, None), (3, 2, 9), (4, -2, 24)])
def test_weekdays_of_a_month(weekday, n, day):
    assert nth_weekday(2024, 5, weekday, n) == (None if day is None else date(2024, 5, day))


def test_the_zeroth_weekday():
    with pytest.raises(ValueError):
        nth_weekday(2024, 5, 0, 0)


def test_every_month():
    assert monthly(date(2024, 1, 31), 4) == [date(2024, 1, 31), date(2024, 2, 29), date(2024, 3, 31), date(2024, 4, 30)]
    assert monthly(date(2024, 1, 5), 2, every=3) == [date(2024, 1, 5), date(2024, 4, 5)]
    assert monthly(date(2024, 1, 5), 0) == []
