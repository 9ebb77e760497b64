import random

import pytest

from pqueue import Heap, is_heap


def filled(*priorities):
    heap = Heap()
    for i, priority in enumerate(priorities):
        heap.push(i, priority)
    return heap


@pytest.mark.parametrize(("values", "yes"), [([], True), ([1], True), ([1, 2, 3], True), ([2, 1], False), ([1, 2, 0], False), ([1, 3, 2, 3, 4, 1], False), ([1, 1, 1], True), ([1, 3, 2, 4, 5, 2], True)])
def test_is_heap(values, yes):
    assert is_heap(values) is yes


def test_in_order():
    heap = filled(5, 2, 8, 1, 9, 3)
    assert heap.peek() == (3, 1)
    assert [heap.pop() for _ in range(6)] == [(3, 1), (1, 2), (5, 3), (0, 5), (2, 8), (4, 9)]
    assert len(heap) == 0


def test_equal_ones_in_the_order_in_which_they_came():
    assert filled(1, 1, 1, 0, 1, 1, 1).drain() == [3, 0, 1, 2, 4, 5, 6]


def test_empty():
    with pytest.raises(IndexError):
        Heap().pop()
    with pytest.raises(IndexError):
        Heap().peek()
    assert Heap().drain() == []


def test_twice_the_same():
    heap = filled(1)
    with pytest.raises(KeyError):
        heap.push(0, 5)
    heap.pop()
    heap.push(0, 5)
    assert heap.priority(0) == 5


def test_updates():
    heap = filled(5, 2, 8, 1, 9, 3)
    heap.update(4, 0)
    heap.update(3, 7)
    heap.update(0, 5)
    assert heap.priority(3) == 7
    assert heap.drain() == [4, 1, 5, 0, 3, 2]


def test_removal():
    heap = filled(5, 2, 8, 1, 9, 3)
    assert heap.remove(1) == 2
    assert 1 not in heap
    assert 2 in heap
    assert heap.remove(4) == 9
    with pytest.raises(KeyError):
        heap.remove(4)
    assert heap.drain() == [3, 5, 0, 2]


def test_removing_may_move_an_item_up():
    heap = filled(1, 10, 2, 11, 12, 3, 4)
    assert heap.remove(3) == 11
    assert heap.drain() == [0, 2, 5, 6, 1, 4]


def test_many_at_random():
    rng = random.Random(1)
    heap, model = Heap(), {}
    for i in range(200):
        p = rng.randrange(50)
        heap.push(i, p)
        model[i] = p
        if i % 3 == 0:
            j = rng.choice(sorted(model))
            model[j] = rng.randrange(50)
            heap.update(j, model[j])
        if i % 5 == 0:
            j = rng.choice(sorted(model))
            assert heap.remove(j) == model.pop(j)
    assert len(heap) == len(model)
    assert heap.drain() == sorted(model, key=lambda item: (model[item], item))
