from csvtext import parse, parse_records, render


def test_rows():
    assert parse("a,b\n1,2\n") == [["a", "b"], ["1", "2"]]


def test_records_have_types():
    assert parse_records("n,x\n1,2.5\n") == [{"n": 1, "x": 2.5}]


def test_writing():
    assert render([{"a": 1, "b": None}]) == "a,b\n1,\n"
