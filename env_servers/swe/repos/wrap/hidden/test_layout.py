from wrap import columns, table


def test_alignment():
    rows = [["name", "n"], ["a", 10], ["bcd", 7]]
    assert table(rows, ["left", "right"]) == ["name   n", "----  --", "a     10", "bcd    7"]
    assert table([["abcde"], ["x"], ["yy"]], ["center"]) == ["abcde", "-----", "  x", " yy"]


def test_rows_of_different_lengths():
    assert table([["a", "b"], ["c"]], header=False) == ["a  b", "c"]
    assert table([["a"], ["c", "d"]], header=False, gap=1) == ["a", "c d"]


def test_no_rows():
    assert table([]) == []


def test_a_header_has_dashes_as_wide_as_its_column():
    assert table([["a"], ["bbbb"]]) == ["a", "----", "bbbb"]
    assert table([["a", "b"]], gap=3) == ["a   b", "-   -"]


def test_center_with_an_odd_rest():
    assert table([["abcd", "|"], ["x", "|"]], ["center", "left"], header=False) == ["abcd  |", " x    |"]


def test_columns_go_down_first():
    assert columns(["a", "b", "c", "d", "e"], 7) == ["a  c  e", "b  d"]
    assert columns(["a", "b", "c"], 1) == ["a", "b", "c"]
    assert columns(["aaa", "b", "cc"], 8) == ["aaa  cc", "b"]
    assert columns(["aaa", "b"], 7) == ["aaa", "b"]
    assert columns([], 10) == []
    assert columns(["aa", "bb"], 5, gap=1) == ["aa bb"]
    assert columns(["toolong"], 3) == ["toolong"]
