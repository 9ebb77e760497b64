from pqueue import Heap, Median, top


def test_the_smallest_first():
    heap = Heap()
    for item, priority in (("a", 3), ("b", 1), ("c", 2)):
        heap.push(item, priority)
    assert heap.drain() == ["b", "c", "a"]


def test_a_median():
    m = Median()
    for value in (5, 1, 3):
        m.add(value)
    assert m.value() == 3


def test_the_best():
    assert top([1, 5, 3], 2) == [5, 3]
