"""Conversion between integers and Roman numerals."""

MIN, MAX = 1, 3999
SYMBOLS = [
    (1000, "M"),
    (900, "CM"),
    (500, "D"),
    (400, "CD"),
    (100, "C"),
    (90, "XC"),
    (50, "L"),
    (40, "XL"),
    (10, "X"),
    (9, "IX"),
    (5, "V"),
    (4, "IV"),
    (1, "I"),
]
VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}


class InvalidNumeral(ValueError):
    """A text that is no Roman numeral."""


def to_roman(number, lower=False):
    """The numeral of an integer from 1 to 3999; in lower case if asked for."""
    if isinstance(number, bool) or not isinstance(number, int):
        raise TypeError("only integers have Roman numerals")
    if number < MIN or number > MAX:
        raise ValueError(f"{number} is not between {MIN} and {MAX}")
    parts = []
    for value, symbol in SYMBOLS:
        while number >= value:
            parts.append(symbol)
            number -= value
    numeral = "".join(parts)
    return numeral.lower() if lower else numeral


def from_roman(text, strict=True):
    """The integer of a numeral. Not `strict`: forms such as IIII and VIIII are read as well."""
    numeral = text.strip().upper()
    if not numeral:
        raise InvalidNumeral("an empty text is no numeral")
    total = 0
    largest = 0
    for letter in reversed(numeral):
        if letter not in VALUES:
            raise InvalidNumeral(f"{letter!r} is no Roman digit")
        value = VALUES[letter]
        if value < largest:
            total -= value
        else:
            total += value
            largest = value
    if strict and (total > MAX or to_roman(total) != numeral):
        raise InvalidNumeral(f"{text!r} is not written as a numeral should be")
    return total


def is_valid(text):
    """Whether `from_roman` takes the text."""
    try:
        from_roman(text)
    except ValueError:
        return False
    return True
