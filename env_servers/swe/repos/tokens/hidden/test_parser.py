import pytest

from tokens import ParseError, evaluate, parse, to_text


@pytest.mark.parametrize(("text", "value"), [
    ("1 - 2 - 3", -4),
    ("2 ** 3 ** 2", 512),
    ("-2 ** 2", -4),
    ("2 ** -1", 0.5),
    ("-(1 + 2) * 3", -9),
    ("7 // 2 + 7 % 4", 6),
    ("10 / 4", 2.5),
    ("2 * (3 + 4)", 14),
    ("--3", 3),
    ("8 / 2 / 2", 2.0),
    ("2 * 3 % 4", 2),
    ("-2 * 3", -6),
    ("1.5 * 2", 3.0),
    ("max(1, 2 + 3, 4)", 5),
    ("min(3, abs(-2))", 2),
    ("sum()", 0),
    ("sum(1, 2, 3) * 2", 12),
    ("round(2.6)", 3),
    ("x + y * 2", 11),
])
def test_values(text, value):
    assert evaluate(text, {"x": 5, "y": 3}) == value


@pytest.mark.parametrize("text", ["", "1 +", "(1", "1)", "1 2", "* 3", "f(1", "f(1,", "f(,)", ")", "2 + * 3", "f(1 2)"])
def test_what_is_no_expression_is_an_error(text):
    with pytest.raises(ParseError):
        parse(text)


def test_trees():
    assert parse("a + 2 * f(b)") == ("+", ("var", "a"), ("*", ("num", 2), ("call", "f", [("var", "b")])))
    assert parse("-x") == ("neg", ("var", "x"))
    assert parse("g()") == ("call", "g", [])


def test_names_that_are_not_there():
    with pytest.raises(NameError):
        evaluate("x")
    with pytest.raises(NameError):
        evaluate("nosuch(1)", {"nosuch": 1})


@pytest.mark.parametrize(("text", "shown"), [
    ("1+2*3", "1 + 2 * 3"),
    ("(1+2)*3", "(1 + 2) * 3"),
    ("1-(2-3)", "1 - (2 - 3)"),
    ("(1-2)-3", "1 - 2 - 3"),
    ("2**(3**2)", "2 ** 3 ** 2"),
    ("(2**3)**2", "(2 ** 3) ** 2"),
    ("(-x)**2", "(-x) ** 2"),
    ("-(x*y)", "-(x * y)"),
    ("-(x**y)", "-x ** y"),
    ("f(a, (b))", "f(a, b)"),
    ("f( )", "f()"),
])
def test_texts_have_the_parentheses_that_are_needed(text, shown):
    assert to_text(parse(text)) == shown
