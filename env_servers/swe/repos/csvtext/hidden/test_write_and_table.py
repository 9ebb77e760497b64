from csvtext import group_by, join, parse, render, select, sort_by

PEOPLE = [{"name": "Ann", "age": 30, "city": "Bonn"}, {"name": "Bob", "age": None, "city": "Rome"}, {"name": "Cy", "age": 25, "city": "Bonn"}, {"name": "Di", "age": 30, "city": "Rome"}]


def test_quotes_where_needed():
    assert render([{"a": "x,y", "b": 'say "hi"', "c": " z", "d": "l1\nl2", "e": "plain text"}]) == 'a,b,c,d,e\n"x,y","say ""hi""","" z"","l1\nl2",plain text\n'.replace('"" z""', '" z"')


def test_columns():
    assert render([{"a": 1}, {"b": 2, "a": 3}]) == "a,b\n1,\n3,2\n"
    assert render([{"a": 1, "b": 2}], ["b"]) == "b\n2\n"
    assert render([{"a": 1, "b": 2}], ["b", "a", "c"], ";") == "b;a;c\n2;1;\n"
    assert render([], ["a"]) == "a\n"


def test_there_and_back():
    rows = [["a", 'b"', "c;d"], ["", " x", "y\nz"]]
    text = render([dict(zip("123", row)) for row in rows], separator=";")
    assert parse(text, ";") == [["1", "2", "3"], *rows]


def test_select():
    assert select(PEOPLE, ["name"], city="Bonn") == [{"name": "Ann"}, {"name": "Cy"}]
    assert select(PEOPLE, ["name", "age"], limit=1) == [{"name": "Ann", "age": 30}]
    assert select(PEOPLE, ["name"], limit=0) == []
    assert select(PEOPLE, ["name"], city="Rome", age=30) == [{"name": "Di"}]
    assert select(PEOPLE, ["zip"], name="Ann") == [{"zip": None}]


def test_sort():
    assert [p["name"] for p in sort_by(PEOPLE, "age")] == ["Cy", "Ann", "Di", "Bob"]
    assert [p["name"] for p in sort_by(PEOPLE, "age", descending=True)] == ["Ann", "Di", "Cy", "Bob"]


def test_group():
    groups = group_by(PEOPLE, "city", "age")
    assert groups == {"Bonn": {"count": 2, "sum": 55, "min": 25, "max": 30, "mean": 27.5}, "Rome": {"count": 2, "sum": 30, "min": 30, "max": 30, "mean": 30.0}}
    assert group_by([{"a": 1}], "a", "b") == {1: {"count": 1, "sum": 0}}


def test_join():
    cities = [{"city": "Bonn", "country": "DE", "name": "x"}, {"city": "Oslo", "country": "NO"}]
    assert join(PEOPLE[:2], cities, "city") == [{"city": "Bonn", "country": "DE", "name": "Ann", "age": 30}]
    assert join([{"k": 1}], [{"k": 1, "v": 1}, {"k": 1, "v": 2}], "k") == [{"k": 1, "v": 1}, {"k": 1, "v": 2}]
