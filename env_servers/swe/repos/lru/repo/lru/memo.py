"""A decorator that remembers results."""

from .cache import LRUCache


def memoize(capacity=128):
    """`@memoize(2)`: the results of the last two different calls are kept; `function.cache` is the cache."""

    def decorate(function):
        cache = LRUCache(capacity)

        def wrapper(*args, **kwargs):
            key = (args, tuple(sorted(kwargs.items())))
            if key in cache:
                return cache.get(key)
            cache.misses += 1
            value = function(*args, **kwargs)
            cache.put(key, value)
            return value

        wrapper.cache = cache
        return wrapper

    return decorate
