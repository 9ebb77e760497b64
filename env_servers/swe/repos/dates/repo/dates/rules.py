"""Rules that name days."""

from datetime import date, timedelta

from .calendar import add_months, days_in_month


def working_days(first, last, holidays=()):
    """Days from Monday to Friday that are no holidays, both ends included."""
    count = 0
    day = first
    while day <= last:
        if day.weekday() < 5 and day not in holidays:
            count += 1
        day += timedelta(days=1)
    return count


def next_working_day(day, holidays=(), steps=1):
    """The working day that is `steps` working days after `day`."""
    if steps < 1:
        raise ValueError("at least one step")
    while steps > 0:
        day += timedelta(days=1)
        if day.weekday() < 5 and day not in holidays:
            steps -= 1
    return day


def nth_weekday(year, month, weekday, n):
    """The n-th Monday (0) to Sunday (6) of a month; n = -1 is the last. None where there is none."""
    if n == 0:
        raise ValueError("n counts from 1, or from -1 backwards")
    size = days_in_month(year, month)
    if n > 0:
        first = date(year, month, 1)
        day = 1 + (weekday - first.weekday()) % 7 + 7 * (n - 1)
    else:
        last = date(year, month, size)
        day = size - (last.weekday() - weekday) % 7 + 7 * (n + 1)
    return date(year, month, day) if 1 <= day <= size else None


def monthly(start, count, every=1):
    """`count` days, `every` months apart, on the start's day of the month or the month's last."""
    return [add_months(start, i * every) for i in range(count)]
