"""One interval."""


class Interval:
    """The integers from `start` up to, but not including, `end`."""

    def __init__(self, start, end):
        if end < start:
            raise ValueError(f"the end {end} is before the start {start}")
        self.start = start
        self.end = end

    def __len__(self):
        return self.end - self.start

    def __contains__(self, value):
        return self.start <= value < self.end

    def __eq__(self, other):
        return isinstance(other, Interval) and (self.start, self.end) == (other.start, other.end)

    def __hash__(self):
        return hash((self.start, self.end))

    def __repr__(self):
        return f"[{self.start}, {self.end})"

    def as_tuple(self):
        return self.start, self.end

    def overlaps(self, other):
        """Whether they have an integer in common."""
        return self.start < other.end and other.start < self.end

    def touches(self, other):
        """Whether they overlap or one begins where the other ends."""
        return self.start <= other.end and other.start <= self.end

    def intersection(self, other):
        """What both have, or None."""
        start, end = max(self.start, other.start), min(self.end, other.end)
        return Interval(start, end) if start < end else None

    def shift(self, by):
        return Interval(self.start + by, self.end + by)

    def split(self, at):
        """Two intervals, before `at` and from it on."""
        if not self.start <= at <= self.end:
            raise ValueError(f"{at} is not within {self!r}")
        return Interval(self.start, at), Interval(at, self.end)
