"""A binary heap that knows where its items are."""


def is_heap(values):
    """Whether no value is smaller than its parent."""
    return all(values[(i - 1) // 2] <= values[i] for i in range(1, len(values)))


class Heap:
    """Items by priority, the smallest first; equal ones in the order in which they came."""

    def __init__(self):
        self._entries = []
        self._place = {}
        self._count = 0

    def push(self, item, priority):
        """Raises KeyError for an item that is there already."""
        if item in self._place:
            raise KeyError(item)
        self._entries.append((priority, self._count, item))
        self._count += 1
        self._place[item] = len(self._entries) - 1
        self._up(len(self._entries) - 1)

    def pop(self):
        """(item, priority). Raises IndexError when empty."""
        if not self._entries:
            raise IndexError("the heap is empty")
        return self._take(0)

    def peek(self):
        if not self._entries:
            raise IndexError("the heap is empty")
        priority, _, item = self._entries[0]
        return item, priority

    def update(self, item, priority):
        """The item keeps its age."""
        at = self._place[item]
        _, age, _ = self._entries[at]
        self._entries[at] = (priority, age, item)
        self._up(at)
        self._down(self._place[item])

    def remove(self, item):
        """Its priority."""
        return self._take(self._place[item])[1]

    def priority(self, item):
        return self._entries[self._place[item]][0]

    def drain(self):
        """All items, the smallest first; the heap is then empty."""
        items = []
        while self._entries:
            items.append(self.pop()[0])
        return items

    def __len__(self):
        return len(self._entries)

    def __contains__(self, item):
        return item in self._place

    def _take(self, at):
        priority, _, item = self._entries[at]
        last = self._entries.pop()
        del self._place[item]
        if at < len(self._entries):
            self._entries[at] = last
            self._place[last[2]] = at
            self._up(at)
            self._down(self._place[last[2]])
        return item, priority

    def _up(self, at):
        while at > 0:
            parent = (at - 1) // 2
            if self._entries[parent][:2] <= self._entries[at][:2]:
                break
            self._swap(at, parent)
            at = parent

    def _down(self, at):
        while True:
            smallest = at
            for child in (2 * at + 1, 2 * at + 2):
                if child < len(self._entries) and self._entries[child][:2] < self._entries[smallest][:2]:
                    smallest = child
            if smallest == at:
                break
            self._swap(at, smallest)
            at = smallest

    def _swap(self, a, b):
        self._entries[a], self._entries[b] = self._entries[b], self._entries[a]
        self._place[self._entries[a][2]] = a
        self._place[self._entries[b][2]] = b
