"""Ranges of days, both ends included."""

from datetime import timedelta

DAY = timedelta(days=1)


class DateRange:
    def __init__(self, first, last):
        if last < first:
            raise ValueError("the last day is before the first")
        self.first = first
        self.last = last

    def __len__(self):
        return (self.last - self.first).days + 1

    def __contains__(self, day):
        return self.first <= day <= self.last

    def __iter__(self):
        day = self.first
        while day <= self.last:
            yield day
            day += DAY

    def __eq__(self, other):
        return isinstance(other, DateRange) and self.as_tuple() == other.as_tuple()

    def as_tuple(self):
        return self.first, self.last

    def overlap(self, other):
        """How many days they have in common."""
        first, last = max(self.first, other.first), min(self.last, other.last)
        return max(0, (last - first).days + 1)

    def weeks(self):
        """Parts of it that end on Sundays, as (first, last)."""
        parts, first = [], self.first
        while first <= self.last:
            last = min(self.last, first + timedelta(days=6 - first.weekday()))
            parts.append((first, last))
            first = last + DAY
        return parts

    def split(self, days):
        """Parts of `days` days, the last with what is left."""
        if days < 1:
            raise ValueError("a part has at least one day")
        parts, first = [], self.first
        while first <= self.last:
            last = min(self.last, first + timedelta(days=days - 1))
            parts.append((first, last))
            first = last + DAY
        return parts

    def extend(self, before=0, after=0):
        return DateRange(self.first - timedelta(days=before), self.last + timedelta(days=after))


def merge(pairs):
    """Pairs of (first, last) in order; those that overlap or follow each other become one."""
    merged = []
    for first, last in sorted(pairs):
        if merged and first <= merged[-1][1] + DAY:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return merged
