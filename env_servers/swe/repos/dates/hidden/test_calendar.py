from datetime import date

import pytest

from dates import add_months, age, days_in_month, is_leap, week_of_year, weekday_name


@pytest.mark.parametrize(("year", "leap"), [(2024, True), (2023, False), (1900, False), (2000, True), (2100, False)])
def test_leap_years(year, leap):
    assert is_leap(year) is leap
    assert days_in_month(year, 2) == (29 if leap else 28)


@pytest.mark.parametrize(("month", "days"), [(1, 31), (3, 31), (4, 30), (6, 30), (7, 31), (8, 31), (9, 30), (11, 30), (12, 31)])
def test_months(month, days):
    assert days_in_month(2023, month) == days


@pytest.mark.parametrize("month", [0, 13])
def test_months_that_are_not(month):
    with pytest.raises(ValueError):
        days_in_month(2023, month)


def test_names():
    assert weekday_name(date(2024, 5, 6)) == "Monday"
    assert weekday_name(date(2024, 5, 12), short=True) == "Sun"


@pytest.mark.parametrize(("start", "months", "end"), [((2024, 1, 31), 1, (2024, 2, 29)), ((2023, 1, 31), 1, (2023, 2, 28)), ((2024, 12, 5), 1, (2025, 1, 5)), ((2024, 1, 5), -1, (2023, 12, 5)), ((2024, 3, 31), -1, (2024, 2, 29)), ((2024, 5, 31), 13, (2025, 6, 30)), ((2024, 2, 29), 12, (2025, 2, 28)), ((2024, 6, 10), 0, (2024, 6, 10))])
def test_adding_months(start, months, end):
    assert add_months(date(*start), months) == date(*end)


@pytest.mark.parametrize(("today", "years"), [((2024, 5, 9), 23), ((2024, 5, 10), 24), ((2024, 6, 1), 24), ((2024, 4, 30), 23), ((2000, 5, 10), 0)])
def test_ages(today, years):
    assert age(date(2000, 5, 10), date(*today)) == years


def test_born_on_a_leap_day():
    assert age(date(2004, 2, 29), date(2023, 2, 28)) == 18
    assert age(date(2004, 2, 29), date(2023, 3, 1)) == 19
    with pytest.raises(ValueError):
        age(date(2024, 1, 2), date(2024, 1, 1))


@pytest.mark.parametrize(("day", "week"), [((2024, 1, 1), (2024, 1)), ((2023, 1, 1), (2022, 52)), ((2020, 12, 31), (2020, 53)), ((2024, 12, 30), (2025, 1)), ((2024, 1, 7), (2024, 1)), ((2024, 1, 8), (2024, 2)), ((2024, 7, 4), (2024, 27))])
def test_weeks_of_the_year(day, week):
    assert week_of_year(date(*day)) == week
