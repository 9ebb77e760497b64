import pytest

from tokens import LexError, tokenize


@pytest.mark.parametrize(("text", "tokens"), [
    ("", []),
    ("  ", []),
    ("12", [("number", "12", 1)]),
    ("1.5", [("number", "1.5", 1)]),
    (".5", [("number", ".5", 1)]),
    ("1.5.2", [("number", "1.5", 1), ("number", ".2", 4)]),
    ("a_1 _b", [("name", "a_1", 1), ("name", "_b", 5)]),
    ("2**3", [("number", "2", 1), ("op", "**", 2), ("number", "3", 4)]),
    ("7//2", [("number", "7", 1), ("op", "//", 2), ("number", "2", 4)]),
    ("2*3/4%5", [("number", "2", 1), ("op", "*", 2), ("number", "3", 3), ("op", "/", 4), ("number", "4", 5), ("op", "%", 6), ("number", "5", 7)]),
    ("f(x,y)", [("name", "f", 1), ("op", "(", 2), ("name", "x", 3), ("op", ",", 4), ("name", "y", 5), ("op", ")", 6)]),
    ("1 # two", [("number", "1", 1)]),
    ("\t-x\n", [("op", "-", 2), ("name", "x", 3)]),
])
def test_tokens(text, tokens):
    assert tokenize(text) == tokens


@pytest.mark.parametrize(("text", "column"), [("$", 1), ("1 + ?", 5), ("a = 2", 3), (".", 1), ("1.a!", 4)])
def test_what_begins_no_token_is_an_error_with_its_column(text, column):
    with pytest.raises(LexError) as error:
        tokenize(text)
    assert error.value.column == column
