"""Streams of values."""

import heapq


def top(values, k, key=None):
    """The k largest, largest first; of equal ones those that came first."""
    if k < 0:
        raise ValueError("k is not negative")
    score = key or (lambda value: value)
    ranked = sorted(enumerate(values), key=lambda pair: (-score(pair[1]), pair[0]))
    return [value for _, value in ranked[:k]]


def merge_sorted(*lists):
    """One sorted list of several."""
    queue = [(values[0], i, 0) for i, values in enumerate(lists) if values]
    heapq.heapify(queue)
    merged = []
    while queue:
        value, i, at = heapq.heappop(queue)
        merged.append(value)
        if at + 1 < len(lists[i]):
            heapq.heappush(queue, (lists[i][at + 1], i, at + 1))
    return merged


class Median:
    """The median of what has come so far: two heaps, the lower half and the upper half."""

    def __init__(self):
        self._low = []
        self._high = []

    def add(self, value):
        if self._low and value > -self._low[0]:
            heapq.heappush(self._high, value)
        else:
            heapq.heappush(self._low, -value)
        if len(self._low) > len(self._high) + 1:
            heapq.heappush(self._high, -heapq.heappop(self._low))
        elif len(self._high) > len(self._low):
            heapq.heappush(self._low, -heapq.heappop(self._high))

    def value(self):
        """None before the first; the mean of the two in the middle where there are two."""
        if not self._low:
            return None
        if len(self._low) > len(self._high):
            return -self._low[0]
        return (self._high[0] - self._low[0]) / 2

    def __len__(self):
        return len(self._low) + len(self._high)
