from datetime import date

from dates import DateRange, add_months, working_days


def test_both_ends_count():
    assert len(DateRange(date(2024, 5, 1), date(2024, 5, 3))) == 3


def test_months():
    assert add_months(date(2024, 1, 15), 1) == date(2024, 2, 15)


def test_a_week_has_five_working_days():
    assert working_days(date(2024, 5, 6), date(2024, 5, 12)) == 5
