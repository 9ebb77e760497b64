"""The calendar itself."""

from datetime import date, timedelta

NAMES = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]


def is_leap(year):
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def days_in_month(year, month):
    if not 1 <= month <= 12:
        raise ValueError(f"there is no month {month}")
    if month == 2:
        return 29 if is_leap(year) else 28
    return 30 if month in (4, 6, 9, 11) else 31


def weekday_name(day, short=False):
    name = NAMES[day.weekday()]
    return name[:3] if short else name


def add_months(day, months):
    """The same day of another month, or its last where that has fewer days."""
    total = day.year * 12 + day.month - 1 + months
    year, month = total // 12, total % 12 + 1
    return date(year, month, min(day.day, days_in_month(year, month)))


def age(born, today):
    """Full years. Born on 29 February, one is a year older on 1 March of other years."""
    years = today.year - born.year
    if (today.month, today.day) < (born.month, born.day):
        years -= 1
    if years < 0:
        raise ValueError("not born yet")
    return years


def week_of_year(day):
    """Weeks begin on Monday; the first is the one with 4 January in it. (year that the week belongs to, number)."""
    thursday = day + timedelta(days=3 - day.weekday())
    first = date(thursday.year, 1, 1)
    return thursday.year, (thursday - first).days // 7 + 1
