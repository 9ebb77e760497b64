from tokens import evaluate, tokenize


def test_tokens_have_columns():
    assert tokenize("a + 1") == [("name", "a", 1), ("op", "+", 3), ("number", "1", 5)]


def test_multiplication_binds_more_than_addition():
    assert evaluate("2 + 3 * 4") == 14


def test_variables():
    assert evaluate("x * x", {"x": 5}) == 25
