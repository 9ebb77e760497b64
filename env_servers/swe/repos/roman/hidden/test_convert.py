import pytest

from roman import InvalidNumeral, from_roman, is_valid, to_roman

KNOWN = [(1, "I"), (4, "IV"), (9, "IX"), (14, "XIV"), (40, "XL"), (49, "XLIX"), (90, "XC"), (400, "CD"), (944, "CMXLIV"), (1666, "MDCLXVI"), (3999, "MMMCMXCIX")]


@pytest.mark.parametrize(("number", "numeral"), KNOWN)
def test_to_roman(number, numeral):
    assert to_roman(number) == numeral


@pytest.mark.parametrize(("number", "numeral"), KNOWN)
def test_from_roman(number, numeral):
    assert from_roman(numeral) == number


def test_lower_case_numerals_are_made_when_asked_for():
    assert to_roman(9, lower=True) == "ix"
    assert to_roman(9, lower=False) == "IX"


def test_spaces_around_and_lower_case_are_read():
    assert from_roman("  xiv ") == 14


@pytest.mark.parametrize("number", [0, -1, 4000])
def test_numbers_out_of_range_are_a_value_error(number):
    with pytest.raises(ValueError):
        to_roman(number)


@pytest.mark.parametrize("number", [1.0, "7", True])
def test_what_is_no_integer_is_a_type_error(number):
    with pytest.raises(TypeError):
        to_roman(number)


@pytest.mark.parametrize("text", ["", "  ", "A", "IIII", "VX", "IC", "MMMM", "IXI"])
def test_bad_numerals_are_invalid(text):
    with pytest.raises(InvalidNumeral):
        from_roman(text)
    assert is_valid(text) is False


def test_without_strict_long_forms_are_read():
    assert from_roman("IIII", strict=False) == 4
    assert from_roman("MMMM", strict=False) == 4000


def test_a_valid_numeral_is_valid():
    assert is_valid("mcmxc") is True
