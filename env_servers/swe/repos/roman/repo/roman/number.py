"""A number that shows itself as a numeral."""

from .convert import MAX, MIN, from_roman, to_roman


class Roman:
    """Made from an integer or a numeral; adds, compares and counts like the integer."""

    def __init__(self, value):
        self.value = from_roman(value) if isinstance(value, str) else value
        if not MIN <= self.value <= MAX:
            raise ValueError(f"{self.value} has no numeral")

    def __str__(self):
        return to_roman(self.value)

    def __repr__(self):
        return f"Roman({str(self)!r})"

    def __int__(self):
        return self.value

    def __eq__(self, other):
        return isinstance(other, Roman) and self.value == other.value

    def __hash__(self):
        return hash(self.value)

    def __lt__(self, other):
        return self.value < other.value

    def __add__(self, other):
        return Roman(self.value + int(other))

    def __sub__(self, other):
        return Roman(self.value - int(other))

    def next(self, step=1):
        """The number `step` further; after MMMCMXCIX it begins again with I."""
        return Roman((self.value - MIN + step) % MAX + MIN)


def total(numerals):
    """The sum of some numerals, as an integer; of none, 0."""
    result = 0
    for numeral in numerals:
        result += from_roman(numeral)
    return result
