import pytest

from roman import Roman, from_roman, is_valid, to_roman


@pytest.mark.parametrize(("number", "numeral"), [(1, "I"), (3, "III"), (10, "X"), (2024, "MMXXIV")])
def test_both_ways(number, numeral):
    assert to_roman(number) == numeral
    assert from_roman(numeral) == number


def test_a_letter_that_is_no_digit():
    assert not is_valid("ABC")


def test_addition():
    assert str(Roman("X") + Roman("V")) == "XV"
