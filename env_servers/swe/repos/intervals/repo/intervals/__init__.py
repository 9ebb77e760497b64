"""Sets of half-open intervals of integers."""

from .interval import Interval
from .sets import IntervalSet

__all__ = ["Interval", "IntervalSet"]
