"""Caches: the least recently used entry goes first; with a time to live, old ones go as well."""


class LRUCache:
    """At most `capacity` entries. Reading an entry makes it the most recently used one."""

    def __init__(self, capacity):
        if capacity < 1:
            raise ValueError("a cache needs room for at least one entry")
        self.capacity = capacity
        self._data = {}
        self.hits = 0
        self.misses = 0

    def get(self, key, default=None):
        if key not in self._data:
            self.misses += 1
            return default
        self.hits += 1
        value = self._data.pop(key)
        self._data[key] = value
        return value

    def put(self, key, value):
        """The key that had to go, or None."""
        gone = None
        if key in self._data:
            self._data.pop(key)
        elif len(self._data) >= self.capacity:
            gone = next(iter(self._data))
            del self._data[gone]
        self._data[key] = value
        return gone

    def peek(self, key, default=None):
        """As `get`, but nothing is counted or moved."""
        return self._data.get(key, default)

    def delete(self, key):
        """Whether it was there."""
        return self._data.pop(key, _MISSING) is not _MISSING

    def keys(self):
        """From the least to the most recently used."""
        return list(self._data)

    def resize(self, capacity):
        """The keys that had to go, oldest first."""
        if capacity < 1:
            raise ValueError("a cache needs room for at least one entry")
        self.capacity = capacity
        gone = self.keys()[: max(0, len(self._data) - capacity)]
        for key in gone:
            del self._data[key]
        return gone

    def hit_rate(self):
        """Hits per lookup; 0.0 before the first."""
        lookups = self.hits + self.misses
        return self.hits / lookups if lookups else 0.0

    def __len__(self):
        return len(self._data)

    def __contains__(self, key):
        return key in self._data


class TTLCache:
    """Entries live `ttl` seconds from when they were put. `clock` gives the time."""

    def __init__(self, ttl, clock):
        self.ttl = ttl
        self._clock = clock
        self._data = {}

    def put(self, key, value, ttl=None):
        """`ttl`: of this entry, if another than the cache's."""
        life = self.ttl if ttl is None else ttl
        self._data[key] = (value, self._clock() + life)

    def get(self, key, default=None):
        if key not in self._data:
            return default
        value, until = self._data[key]
        if self._clock() >= until:
            del self._data[key]
            return default
        return value

    def remaining(self, key):
        """Seconds that an entry has left; 0 for one that is not there."""
        if key not in self._data:
            return 0
        return max(0, self._data[key][1] - self._clock())

    def purge(self):
        """How many entries were too old."""
        now = self._clock()
        old = [key for key, (_, until) in self._data.items() if now >= until]
        for key in old:
            del self._data[key]
        return len(old)

    def __len__(self):
        self.purge()
        return len(self._data)


_MISSING = object()
