from lru import LRUCache, memoize


def test_the_oldest_goes_first():
    cache = LRUCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    cache.put("c", 3)
    assert cache.keys() == ["b", "c"]


def test_memoize():
    calls = []
    square = memoize()(lambda x: calls.append(x) or x * x)
    assert [square(3), square(3)] == [9, 9]
    assert calls == [3]
