import pytest

from lru import LRUCache


def filled(capacity, keys="abc"):
    cache = LRUCache(capacity)
    for i, key in enumerate(keys, 1):
        cache.put(key, i)
    return cache


def test_reading_makes_recent():
    cache = filled(3)
    assert cache.get("a") == 1
    assert cache.keys() == ["b", "c", "a"]
    assert cache.put("d", 4) == "b"
    assert cache.keys() == ["c", "a", "d"]


def test_putting_again_replaces_and_makes_recent():
    cache = filled(3)
    assert cache.put("a", 9) is None
    assert cache.keys() == ["b", "c", "a"]
    assert cache.get("a") == 9
    assert len(cache) == 3


def test_nothing_goes_while_there_is_room():
    cache = LRUCache(2)
    assert cache.put("a", 1) is None
    assert cache.put("b", 1) is None
    assert cache.put("c", 1) == "a"


def test_peek_moves_and_counts_nothing():
    cache = filled(3)
    assert cache.peek("a") == 1
    assert cache.peek("z", 7) == 7
    assert cache.keys() == ["a", "b", "c"]
    assert (cache.hits, cache.misses) == (0, 0)


def test_hits_and_misses():
    cache = filled(3)
    assert cache.hit_rate() == 0.0
    cache.get("a")
    cache.get("z")
    cache.get("b")
    cache.get("y")
    cache.get("c")
    assert (cache.hits, cache.misses) == (3, 2)
    assert cache.hit_rate() == 0.6


def test_defaults():
    assert LRUCache(1).get("x") is None
    assert LRUCache(1).get("x", 5) == 5


def test_delete():
    cache = filled(3)
    assert cache.delete("b") is True
    assert cache.delete("b") is False
    assert "b" not in cache
    assert "a" in cache


def test_resize():
    cache = filled(4, "abcd")
    assert cache.resize(2) == ["a", "b"]
    assert cache.keys() == ["c", "d"]
    assert cache.resize(5) == []
    assert cache.capacity == 5
    assert cache.resize(1) == ["c"]


@pytest.mark.parametrize("capacity", [0, -1])
def test_no_room_is_an_error(capacity):
    with pytest.raises(ValueError):
        LRUCache(capacity)
    with pytest.raises(ValueError):
        LRUCache(1).resize(capacity)


def test_a_value_of_none_is_a_value():
    cache = LRUCache(1)
    cache.put("a", None)
    assert "a" in cache
    assert cache.get("a", 3) is None
    assert cache.delete("a") is True
