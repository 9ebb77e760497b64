import pytest

from csvtext import CsvError, parse, parse_records


@pytest.mark.parametrize(("text", "rows"), [
    ("", []),
    ("a", [["a"]]),
    ("a,", [["a", ""]]),
    (",a", [["", "a"]]),
    ("a\n\nb\n", [["a"], ["b"]]),
    ('""\n', [[""]]),
    ('"a,b",c', [["a,b", "c"]]),
    ('"a\nb",c\nd', [["a\nb", "c"], ["d"]]),
    ('"say ""hi"""', [['say "hi"']]),
    ("a,b\r\nc,d\r\n", [["a", "b"], ["c", "d"]]),
    ('a,""', [["a", ""]]),
    ('"",""\n"",b', [["", ""], ["", "b"]]),
    (" a , b ", [[" a ", " b "]]),
])
def test_rows(text, rows):
    assert parse(text) == rows


def test_another_separator():
    assert parse('a;b,c;"d;e"', ";") == [["a", "b,c", "d;e"]]


@pytest.mark.parametrize(("text", "line"), [('a\n"b', 2), ('a"b', 1), ('x\ny\n"a"b', 3), ('"a""', 1), ('"a\nb\nc', 3), ('"a\nb"c', 2), ('"a" "b"', 1)])
def test_errors_have_lines(text, line):
    with pytest.raises(CsvError) as error:
        parse(text)
    assert error.value.line == line


def test_types():
    record = parse_records("a,b,c,d,e,f,g\n1,-2.5,TRUE,false,,x1, 7 \n")[0]
    assert record == {"a": 1, "b": -2.5, "c": True, "d": False, "e": None, "f": "x1", "g": 7}


def test_without_types_all_are_texts():
    assert parse_records("a,b\n1,true", types=False) == [{"a": "1", "b": "true"}]


def test_missing_and_extra_fields():
    assert parse_records("a,b,c\n1\n") == [{"a": 1, "b": None, "c": None}]
    with pytest.raises(CsvError) as error:
        parse_records("a,b\n1,2\n1,2,3\n")
    assert error.value.line == 3


def test_names():
    assert parse_records(" a ; b \n1;2", ";") == [{"a": 1, "b": 2}]
    assert parse_records("") == []
    assert parse_records("a,b\n") == []
    with pytest.raises(CsvError):
        parse_records("a,a\n1,2")
