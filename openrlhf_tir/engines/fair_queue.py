"""Fair queue: items of many groups in, one at a time out, the groups in turn. A group with a thousand items delays
another by one.

Within a group the order is first come, first served. Everything is O(1), removal from the middle included: what is
cancelled leaves at once and holds no memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class FairQueue(Generic[T]):
    def __init__(self) -> None:
        self._groups: OrderedDict[Hashable, OrderedDict[T, None]] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def push(self, group: Hashable, item: T) -> None:
        self._groups.setdefault(group, OrderedDict())[item] = None
        self._size += 1

    def pop(self) -> T:
        """The oldest item of the group whose turn it is; it then goes to the end. Raises KeyError when empty."""
        group, items = self._groups.popitem(last=False)
        item, _ = items.popitem(last=False)
        self._size -= 1
        if items:
            self._groups[group] = items
        return item

    def remove(self, group: Hashable, item: T) -> None:
        """Raises KeyError when it is not there."""
        items = self._groups[group]
        del items[item]
        self._size -= 1
        if not items:
            del self._groups[group]
