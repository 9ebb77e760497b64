"""Events at times, run in order by a clock that is only moved by hand."""

from .heap import Heap


class Scheduler:
    def __init__(self, now=0):
        self.now = now
        self._queue = Heap()
        self._number = 0
        self._actions = {}

    def at(self, time, action):
        """A number by which it can be cancelled. Raises ValueError for a time that has passed."""
        if time < self.now:
            raise ValueError(f"{time} has passed: it is {self.now}")
        self._number += 1
        self._queue.push(self._number, time)
        self._actions[self._number] = action
        return self._number

    def after(self, delay, action):
        return self.at(self.now + delay, action)

    def every(self, period, action, times):
        """`times` events, the first in one period. Their numbers."""
        if period <= 0:
            raise ValueError("a period is above zero")
        return [self.at(self.now + period * i, action) for i in range(1, times + 1)]

    def cancel(self, number):
        """Whether there was anything to cancel."""
        if number not in self._queue:
            return False
        self._queue.remove(number)
        del self._actions[number]
        return True

    def run_until(self, time):
        """Run what is due, that included which is added meanwhile. How many events that were."""
        count = 0
        while len(self._queue) and self._queue.peek()[1] <= time:
            number, due = self._queue.pop()
            self.now = due
            self._actions.pop(number)()
            count += 1
        self.now = max(self.now, time)
        return count

    def pending(self):
        return len(self._queue)

    def next_time(self):
        return self._queue.peek()[1] if len(self._queue) else None
