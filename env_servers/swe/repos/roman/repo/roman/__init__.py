"""Roman numerals."""

from .convert import InvalidNumeral, from_roman, is_valid, to_roman
from .number import Roman, total

__all__ = ["InvalidNumeral", "Roman", "from_roman", "is_valid", "to_roman", "total"]
