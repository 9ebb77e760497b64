from wrap import table, wrap


def test_wrapping():
    assert wrap("one two three", 7) == ["one two", "three"]


def test_a_table():
    assert table([["a", "bb"], ["ccc", "d"]]) == ["a    bb", "---  --", "ccc  d"]
