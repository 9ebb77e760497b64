import pytest

from bank import allocate, format_cents, interest, parse_cents


@pytest.mark.parametrize(("text", "cents"), [("0", 0), ("7", 700), ("1.5", 150), ("1.05", 105), ("1,234.56", 123456), ("-3.20", -320), (" 12 ", 1200), ("1234567", 123456700), ("1,000,000", 100000000)])
def test_parsing(text, cents):
    assert parse_cents(text) == cents


@pytest.mark.parametrize("text", ["", "x", "1.234", "1,23", "1.", ".5", "--1", "1 2", "12,3456"])
def test_what_is_no_amount(text):
    with pytest.raises(ValueError):
        parse_cents(text)


@pytest.mark.parametrize(("cents", "text"), [(0, "0.00"), (5, "0.05"), (-5, "-0.05"), (123456, "1,234.56"), (-100, "-1.00"), (100000000, "1,000,000.00"), (99, "0.99")])
def test_formatting(cents, text):
    assert format_cents(cents) == text


def test_a_currency():
    assert format_cents(-250, "EUR") == "-2.50 EUR"


@pytest.mark.parametrize(("cents", "shares", "parts"), [(100, [1, 1, 1], [34, 33, 33]), (101, [1, 1, 1], [34, 34, 33]), (100, [3, 1], [75, 25]), (5, [0, 1, 1], [0, 3, 2]), (0, [1, 2], [0, 0]), (7, [1], [7]), (1, [1, 1], [1, 0])])
def test_allocation(cents, shares, parts):
    assert allocate(cents, shares) == parts


@pytest.mark.parametrize("shares", [[], [0, 0], [2, -1]])
def test_shares_that_are_not(shares):
    with pytest.raises(ValueError):
        allocate(10, shares)


@pytest.mark.parametrize(("cents", "percent", "days", "value"), [(10000, 5, 365, 500), (10000, 5, 73, 100), (10000, 0, 100, 0), (100, 1, 182, 0), (100, 1, 183, 1), (36500, 1, 1, 1), (10000, 5, 0, 0)])
def test_interest(cents, percent, days, value):
    assert interest(cents, percent, days) == value


def test_another_year():
    assert interest(36000, 1, 1, year=360) == 1
    assert interest(10000, 6, 30, year=360) == 50
    with pytest.raises(ValueError):
        interest(1, 1, -1)
