"""Sets of intervals, kept sorted and apart."""

from .interval import Interval


class IntervalSet:
    def __init__(self, pairs=()):
        """`pairs` of (start, end), in any order; they may overlap."""
        self._parts = []
        for start, end in pairs:
            self.add(start, end)

    def add(self, start, end):
        """Parts that overlap or touch become one; an empty interval adds nothing."""
        new = Interval(start, end)
        if len(new) == 0:
            return
        kept = []
        for part in self._parts:
            if part.touches(new):
                new = Interval(min(part.start, new.start), max(part.end, new.end))
            else:
                kept.append(part)
        kept.append(new)
        self._parts = sorted(kept, key=lambda part: part.start)

    def remove(self, start, end):
        kept = []
        for part in self._parts:
            if part.end <= start or part.start >= end:
                kept.append(part)
                continue
            if part.start < start:
                kept.append(Interval(part.start, start))
            if part.end > end:
                kept.append(Interval(end, part.end))
        self._parts = kept

    def pairs(self):
        return [part.as_tuple() for part in self._parts]

    def __contains__(self, value):
        return any(value in part for part in self._parts)

    def __len__(self):
        """How many integers are in it."""
        return sum(len(part) for part in self._parts)

    def __bool__(self):
        return bool(self._parts)

    def union(self, other):
        return IntervalSet(self.pairs() + other.pairs())

    def intersection(self, other):
        found = []
        for a in self._parts:
            for b in other._parts:
                common = a.intersection(b)
                if common is not None:
                    found.append(common.as_tuple())
        return IntervalSet(found)

    def difference(self, other):
        result = IntervalSet(self.pairs())
        for start, end in other.pairs():
            result.remove(start, end)
        return result

    def gaps(self):
        """The intervals between its parts, as pairs."""
        return [(a.end, b.start) for a, b in zip(self._parts, self._parts[1:])]

    def span(self):
        """(first start, last end), or None for the empty set."""
        if not self._parts:
            return None
        return self._parts[0].start, self._parts[-1].end

    def free_slot(self, length, start=0):
        """The first integer from `start` on where `length` integers in a row are not in the set."""
        at = start
        for part in self._parts:
            if part.end <= at:
                continue
            if part.start - at >= length:
                return at
            at = part.end
        return at
