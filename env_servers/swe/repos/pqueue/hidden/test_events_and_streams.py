import pytest

from pqueue import Median, Scheduler, merge_sorted, top


def test_events_run_in_order():
    s, said = Scheduler(), []
    s.at(5, lambda: said.append("five"))
    s.after(2, lambda: said.append("two"))
    s.at(5, lambda: said.append("five again"))
    s.at(9, lambda: said.append("nine"))
    assert s.next_time() == 2
    assert s.run_until(5) == 3
    assert said == ["two", "five", "five again"]
    assert s.now == 5
    assert s.pending() == 1
    assert s.run_until(20) == 1
    assert s.now == 20
    assert s.next_time() is None


def test_what_has_passed():
    s = Scheduler(now=10)
    with pytest.raises(ValueError):
        s.at(9, lambda: None)
    s.at(10, lambda: None)
    assert s.run_until(10) == 1
    assert s.run_until(4) == 0
    assert s.now == 10


def test_events_may_add_events():
    s, said = Scheduler(), []
    s.at(1, lambda: (said.append(s.now), s.after(1, lambda: said.append(s.now))) and None)
    assert s.run_until(3) == 2
    assert said == [1, 2]


def test_every():
    s, said = Scheduler(now=1), []
    numbers = s.every(3, lambda: said.append(s.now), 3)
    assert len(numbers) == 3
    s.run_until(100)
    assert said == [4, 7, 10]
    assert s.every(1, lambda: None, 0) == []
    with pytest.raises(ValueError):
        s.every(0, lambda: None, 1)


def test_cancelling():
    s, said = Scheduler(), []
    a = s.at(1, lambda: said.append("a"))
    s.at(2, lambda: said.append("b"))
    assert s.cancel(a) is True
    assert s.cancel(a) is False
    assert s.cancel(99) is False
    assert s.run_until(5) == 1
    assert said == ["b"]


def test_top():
    assert top([3, 1, 4, 1, 5], 3) == [5, 4, 3]
    assert top([1, 2], 5) == [2, 1]
    assert top([1, 2], 0) == []
    assert top(["aa", "b", "cc", "ddd"], 2, key=len) == ["ddd", "aa"]
    with pytest.raises(ValueError):
        top([1], -1)


def test_merging():
    assert merge_sorted([1, 4, 9], [], [2, 4], [0]) == [0, 1, 2, 4, 4, 9]
    assert merge_sorted() == []


@pytest.mark.parametrize(("values", "median"), [([], None), ([4], 4), ([4, 2], 3.0), ([1, 2, 3, 4], 2.5), ([5, 4, 3, 2, 1], 3), ([1, 1, 9], 1), ([2, 9, 9, 9], 9.0), ([-3, -1], -2.0), ([3, 1, 2, 10, 0, 7], 2.5)])
def test_medians(values, median):
    m = Median()
    for value in values:
        m.add(value)
    assert m.value() == median
    assert len(m) == len(values)
