"""Caches that forget."""

from .cache import LRUCache, TTLCache
from .memo import memoize

__all__ = ["LRUCache", "TTLCache", "memoize"]
