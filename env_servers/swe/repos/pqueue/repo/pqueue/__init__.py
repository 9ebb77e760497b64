"""Priority queues."""

from .events import Scheduler
from .heap import Heap, is_heap
from .streams import Median, merge_sorted, top

__all__ = ["Heap", "Median", "Scheduler", "is_heap", "merge_sorted", "top"]
