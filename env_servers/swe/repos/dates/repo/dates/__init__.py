"""Days, ranges of them, and rules."""

from .calendar import add_months, age, days_in_month, is_leap, week_of_year, weekday_name
from .ranges import DateRange, merge
from .rules import monthly, next_working_day, nth_weekday, working_days

__all__ = [
    "DateRange",
    "add_months",
    "age",
    "days_in_month",
    "is_leap",
    "merge",
    "monthly",
    "next_working_day",
    "nth_weekday",
    "week_of_year",
    "weekday_name",
    "working_days",
]
