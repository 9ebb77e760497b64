from lru import TTLCache, memoize


class Clock:
    now = 100

    def __call__(self):
        return self.now


def test_an_entry_lives_for_its_time():
    clock = Clock()
    cache = TTLCache(10, clock)
    cache.put("a", 1)
    clock.now = 109
    assert cache.get("a") == 1
    clock.now = 110
    assert cache.get("a") is None
    assert cache.get("a", 4) == 4


def test_a_time_to_live_of_its_own():
    clock = Clock()
    cache = TTLCache(10, clock)
    cache.put("a", 1, ttl=2)
    cache.put("b", 2, ttl=0)
    assert cache.get("b") is None
    assert cache.remaining("a") == 2
    clock.now = 101
    assert cache.remaining("a") == 1
    clock.now = 105
    assert cache.remaining("a") == 0
    assert cache.remaining("zzz") == 0
    assert cache.get("a") is None


def test_purge_counts_the_old():
    clock = Clock()
    cache = TTLCache(10, clock)
    cache.put("a", 1)
    cache.put("b", 2)
    clock.now = 105
    cache.put("c", 3)
    assert len(cache) == 3
    clock.now = 110
    assert cache.purge() == 2
    assert cache.purge() == 0
    assert len(cache) == 1
    assert cache.get("c") == 3


def test_len_does_not_count_the_old():
    clock = Clock()
    cache = TTLCache(3, clock)
    cache.put("a", 1)
    clock.now = 103
    assert len(cache) == 0


def test_memoize_calls_once_for_equal_arguments():
    calls = []

    def add(*args, **kwargs):
        calls.append(1)
        return sum(args) + sum(kwargs.values())

    remembered = memoize(2)(add)
    assert remembered(1, 2) == 3
    assert remembered(1, 2) == 3
    assert len(calls) == 1
    assert remembered(1, 3) == 4
    assert remembered(1, x=2) == 3
    assert len(calls) == 3
    assert remembered(1, 2) == 3
    assert len(calls) == 4


def test_the_order_of_keywords_does_not_matter():
    calls = []

    def add(**kwargs):
        calls.append(1)
        return sum(kwargs.values())

    remembered = memoize()(add)
    assert remembered(a=1, b=2) == 3
    assert remembered(b=2, a=1) == 3
    assert len(calls) == 1
    assert remembered.cache.hits == 1
    assert remembered.cache.misses == 1
    assert remembered.cache.capacity == 128
