"""A queue that takes items from its groups in turn, so that a group with a thousand items delays another by one item.

Within a group the order is first come, first served. All operations are O(1), including removal from the middle:
cancelled items are removed at once and hold no memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class FairQueue(Generic[T]):
    """Round robin over groups, first in first out within a group."""

    def __init__(self) -> None:
        self._groups: OrderedDict[Hashable, OrderedDict[T, None]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._groups)

    def push(self, group: Hashable, item: T) -> None:
        """Add an item at the end of its group."""
        self._groups.setdefault(group, OrderedDict())[item] = None

    def pop(self) -> T:
        """Remove and return the oldest item of the group whose turn it is, and move the group to the end.

        Raises:
            KeyError: The queue is empty.
        """
        group, items = self._groups.popitem(last=False)
        item, _ = items.popitem(last=False)
        if items:
            self._groups[group] = items
        return item

    def remove(self, group: Hashable, item: T) -> None:
        """Remove an item from its group.

        Raises:
            KeyError: The item is not in the queue.
        """
        items = self._groups[group]
        del items[item]
        if not items:
            del self._groups[group]
