r"""Find out what kind of answer a spelt text is. Only its structure is read, no mathematics.

Scalar    x^2 + 1, 5 \text{ cm}, 50\%      one expression, its unit, and whether it is a percentage
Several   1, 2 and 3; x<2 or x>3           items in no order; `joint` is the word that joins them
Listed    (1, 2), [1, 2), \{1, 2\}         items between brackets; only braces have no order
Chain     x = 2, 1 < x \le 3, x \in (0,1)  expressions and the relations between them
Matrix    \begin{pmatrix} ...              rows of cells
Union     A \cup B, A \setminus B          sets and the operators between them
Congruence  x \equiv 1 \pmod{3}            left and right side, and the modulus
Words     even, (A), Thursday              compared letter by letter, in any case
Literal   1, 2, \ldots, n                  a text without an interpretation: only the same text is equal
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from .numerals import number
from .spelling import UNIT_LETTERS


class Literal(NamedTuple):
    """A text without an interpretation."""

    text: str


class Words(NamedTuple):
    """Words that are compared letter by letter."""

    text: str


class Scalar(NamedTuple):
    """One expression. `unit` is "" if it has none."""

    text: str
    unit: str = ""
    percent: bool = False


class Several(NamedTuple):
    """Items in no order. `joint` is "or", "and" or ","."""

    items: tuple[Form, ...]
    joint: str


class Listed(NamedTuple):
    """Items between brackets."""

    items: tuple[Form, ...]
    opening: str
    closing: str


class Chain(NamedTuple):
    """Expressions and the relations between them: terms[0] relations[0] terms[1] relations[1] ..."""

    terms: tuple[Form, ...]
    relations: tuple[str, ...]


class Matrix(NamedTuple):
    """Rows of cells."""

    rows: tuple[tuple[Form, ...], ...]


class Union(NamedTuple):
    """Sets and the operators between them, from left to right: parts[0] operators[0] parts[1] ..."""

    parts: tuple[Form, ...]
    operators: tuple[str, ...]


class Congruence(NamedTuple):
    """Two sides that are equal modulo a number."""

    left: Form
    right: Form
    modulus: str


Form = Literal | Words | Scalar | Several | Listed | Chain | Matrix | Union | Congruence

MAX_ITEMS = 64
"""Items of the longest list that is read."""
MAX_DEPTH = 12
"""Levels of brackets within brackets. A deeper text is compared as text."""

_TOKEN = re.compile(r"\\[a-zA-Z]+|\\.|[a-zA-Z]+|\d+|.", re.DOTALL)
_OPENING = {"(", "[", "{", r"\{", r"\lfloor", r"\lceil", r"\begin"}
_CLOSING = {")", "]", "}", r"\}", r"\rfloor", r"\rceil", r"\end"}
_RELATIONS = {"=": "=", "<": "<", ">": ">", r"\le": "<=", r"\ge": ">=", r"\ne": "!=", r"\in": "in"}
_JOINTS = {"or": "or", "and": "and", r"\lor": "or", r"\land": "and", ",": ",", ";": ",", "&": ","}
_UNIONS = {r"\cup": "union", r"\cap": "intersection", r"\setminus": "minus"}
# vmatrix is a determinant: a number, not a matrix.
_MATRIX = re.compile(
    r"(?P<factor>-?\s*(?:\d+(?:\.\d+|/\d+)?|\d*\s*[a-z]|\\frac\{\d+\}\{\d+\})?\s*(?:\\cdot\s*)?)\[?\s*\\begin\{(?P<name>[pbB]?matrix|smallmatrix|array)\}(?:\{[^{}]*\})?"
    r"(?P<body>.*)\\end\{(?P=name)\}\s*\]?(?P<transposed>\s*\^\s*\{?\s*(?:T|\\top|\\intercal)\s*\}?)?",
    re.DOTALL,
)
_CONGRUENCE = re.compile(r"(.+?)\\equiv(.+?)\s*(?:\\pmod\s*|\\?mod\s*)\{?(\w+)\}?")
_RATIO_IN_WORDS = re.compile(r"(\d+) to (\d+)")
_WORDS = re.compile(r"[A-Za-z][A-Za-z'\- ]*")
_CHOICE = re.compile(r"(?:(?i:option|choice)\s+)?(?:\(\s*([A-Z])\s*\)|([A-Z])\s*[).]?|([a-j])\))")
_NAMED_POINT = re.compile(r"(?:(?:the\s+)?point\s+)?([A-Z]'?(?:_\w|_\{\w+\})?)?\s*(\([^()]*\d[^()]*[,;][^()]*\))")
"""A point with its name before it: P(1, 2)."""
_SYMBOLS = "".join(letter for letter in map(chr, range(0x20A0, 0x20C1)) if unicodedata.category(letter) == "Sc")
"""Signs of currencies, the euro's among them."""
_MONEY = re.compile(
    rf"([+-]?)\s*(?P<sign>(?:US|CA?|AU?|NZ|HK|S)?\\?\$|[£¥{_SYMBOLS}]|USD\b|EUR\b|Rs\.?)\s*(?=[+-]?[\d.\\])"
)
_MONEY_BEHIND = re.compile(rf"(?P<number>.*\d)\s*\\?(?P<sign>[$£¥{_SYMBOLS}])")
_CURRENCIES = {
    "USD": "$", "US$": "$", "CA$": "C$", "AU$": "A$", "EUR": "euro", "€": "euro", "£": "pound", "¥": "yen",
    "Rs": "₹", "Rs.": "₹",
}  # fmt: skip
"""Sign or abbreviation of a currency -> its name here, if that is another."""
INDIAN = re.compile(r"\d{1,2}(?:,\d{2})+,\d{3}")
"""A numeral with the separators of lakh and crore."""
_TEMPERATURE = re.compile(r"(?P<number>.*[\d)}])\s*(?:\^\\circ\s*|degrees?\s+)(?P<scale>[CF])(?:elsius|ahrenheit)?")
_UNIT = re.compile(
    r"(?P<number>.*[\d)}a-z])\s*(?P<degrees>\^\\circ)$|"
    r"(?P<value>[+-]?\d+(?:\.\d*)?[eE][+-]?\d+|.*?(?:[\d)}.]|\\pi))(?P<gap>\s*)"
    r"(?P<unit>(?:[A-Za-zμΩ]+|\\(?:%|Omega))(?:[ /·.^{}\-\d]|\\cdot |[A-Za-zμΩ])*)$",
    re.DOTALL,
)
_FUNCTION = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc|circ|angle|ln|log|exp)(?![a-zA-Z])|\bcis\b")
_ALIASES = {
    "dollar": "$", "usd": "$", "€": "euro", "eur": "euro", "£": "pound", "rupee": "₹",
    "centimeter": "cm", "centimetre": "cm", "meter": "m", "metre": "m",
    "kilometer": "km", "kilometre": "km", "millimeter": "mm", "millimetre": "mm", "inch": "in", "inche": "in",
    "foot": "ft", "feet": "ft", "hour": "h", "hr": "h", "hrs": "h",
    "minute": "min", "second": "s", "sec": "s", "gram": "g",
    "kilogram": "kg", "liter": "l", "litre": "l", "mile": "mi", "deg": "degree", "mph": "mi/h",
    "kph": "km/h", "percent": "%", "unit": "", "people": "person", "children": "child",
    "lb": "pound", "lbs": "pound", "oz": "ounce", "yd": "yard", "yds": "yard", "gal": "gallon",
    "milliliter": "ml", "millilitre": "ml", "milligram": "mg", "yr": "year", "yrs": "year",
}  # fmt: skip
_SHORT_UNITS = {
    "cm", "mm", "km", "kg", "mg", "ml", "ft", "in", "yd", "mi", "lb", "lbs", "oz", "hr", "hrs", "min", "sec", "mph",
    "kph", "Hz", "kHz", "Pa", "kPa", "kJ", "kW", "mA", "usd", "USD", "eur", "EUR", "rad", "deg",
    "sq", "cu", "mL", "cl", "cL", "dl", "dL", "nm", "kN", "kV", "kB", "KB", "MB", "GB", "TB", "yr", "yrs",
}  # fmt: skip
_LETTER_UNITS = {"m", "s", "h", "g", "l"}
"""Units of one letter, which may as well be variables."""
_SMALLER_UNITS = {
    ("week", "day"): 7, ("day", "h"): 24, ("h", "min"): 60, ("h", "m"): 60, ("min", "s"): 60, ("year", "month"): 12,
    ("yard", "ft"): 3, ("ft", "in"): 12, ("pound", "ounce"): 16, ("$", "cent"): 100, ("euro", "cent"): 100,
    ("km", "m"): 1000, ("m", "cm"): 100, ("cm", "mm"): 10, ("kg", "g"): 1000, ("l", "ml"): 1000,
}  # fmt: skip
"""How many of a smaller unit make one of a unit before which they are named: 2 hours 30 minutes."""
_COMPOUND_PART = r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)\.?"
_COMPOUND = re.compile(rf"{_COMPOUND_PART}(?:(?:\s*,\s*|\s+)(?:and\s+)?{_COMPOUND_PART}){{1,3}}")
_SQUARED = re.compile(r"([A-Za-z]{2,})\.? (?:squared|(?:square|sq\.?)\Z)")
_CUBED = re.compile(r"([A-Za-z]{2,})\.? (?:cubed|(?:cubic|cu\.?)\Z)")
_BARE_POWER = re.compile(r"\b([ckm]?m|ft|in)([23])\b")
"""Powers of units behind them: units squared, cm sq., cm3."""
_OF = re.compile(r"(?:^| )of ((?:an? )?[A-Za-z]{3,}(?: [A-Za-z]{2,}){0,3})\Z")
"""What a number is a part of, or what its unit measures."""
MAX_UNIT_WORDS = 4
"""Words of the longest unit that is read, "square meters per second" and the like."""
_PARTS = {
    "half": 2, "halve": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8,
    "ninth": 9, "tenth": 10, "hundredth": 100, "thousandth": 1000,
}  # fmt: skip
"""Denominators as words, in the singular."""
_SCALES = {
    "hundred": 10**2, "thousand": 10**3, "lakh": 10**5, "million": 10**6, "crore": 10**7, "billion": 10**9,
    "trillion": 10**12, "quadrillion": 10**15, "quintillion": 10**18, "dozen": 12,
}  # fmt: skip
_COUNTED = {"dozens", "halves", "quarter", "quarters"}
"""Parts and scales that are things to count as well: 4 quarters are four coins, 2 halves those of a game."""
_TENS = {
    "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90
}  # fmt: skip
_UNITS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_NUMERALS = {**{word: value for value, word in enumerate(_UNITS)}, **_TENS}
"""Values of numbers as single words."""
_SHORT_WORDS = {
    "yes", "no", "odd", "all", "one", "two", "six", "ten", "red", "an", "the", "not", "top", "max", "min",
}  # fmt: skip
_NO_UNITS = {
    "and", "or", "more", "less", "than", "plus", "minus", "times", "over", "divided", "by", "to", "if", "is",
    "mod", "modulo", "when", "where", "for", "not", "otherwise", "at", "as", "undefined", "infinity", "sqrt", "of",
    "from", "between", "about", "approximately", "sin", "cos", "tan", "log", "ln", "exp", "choose", "pm", "am", "base",
    "approx", "roughly", "nearly", "almost", "around", "squared", "cubed", "factorial", "repeating", "recurring",
    "repeated", "root", "inverse", "doubled", "tripled", "halved", "negative", "rounded", "onward", "onwards",
    "upwards", "above", "below", "under", "up", "maximum", "minimum", "remainder", "except", "without", "ish",
}  # fmt: skip


def read(text: str, depth: int = 0) -> Form:
    """Return the form of a spelt text. It never raises because of the content of the text."""
    text = text.strip()
    if number(text):
        return Scalar(text)
    if (numeral := _numeral(canonical_words(text))) is not None:
        return Scalar(str(numeral))
    if (m := _CHOICE.fullmatch(text)) and text != "I":
        return Words(m[1] or m[2] or m[3])
    if not text or depth > MAX_DEPTH or r"\ldots" in text or r"\approx" in text or not _nests(text):
        return Literal(text)
    if m := _MATRIX.fullmatch(text):
        return _matrix(m["body"], m["factor"].strip(), depth, is_transposed=bool(m["transposed"]))
    if m := _RATIO_IN_WORDS.fullmatch(text):
        return Scalar(f"{m[1]}:{m[2]}")
    if text.count(r"\equiv") == 1 and (m := _CONGRUENCE.fullmatch(text)):
        return Congruence(read(m[1], depth + 1), read(m[2], depth + 1), m[3])
    scalar = _measured(text)
    if scalar is not None and number(scalar.text):
        return scalar
    if (point := _NAMED_POINT.fullmatch(text)) and not text.startswith("("):
        coordinates = read(point[2], depth + 1)
        return Chain((Scalar(point[1]), coordinates), ("=",)) if point[1] else coordinates
    if joined := _joined(text, depth):
        return joined
    if (cut := _cut(text, {r"\cup"})) and all(_cut(part, set(_RELATIONS)) for part in cut[0]):
        return Several(tuple(read(part, depth + 1) for part in cut[0]), "or")  # x < 1 \cup x > 2
    if cut := _cut(text, set(_RELATIONS)):
        return _chain(cut[0], tuple(_RELATIONS[name] for name in cut[1]), text, depth)
    if cut := _cut(text, set(_UNIONS)):
        sets = [re.sub(r"\A\s*\{(.*)\}\s*\Z", r"\\{\1\\}", part) for part in cut[0]]  # \mathbb{R} \setminus {0}
        return Union(tuple(read(part, depth + 1) for part in sets), tuple(_UNIONS[name] for name in cut[1]))
    if listed := _listed(text, depth):
        return listed
    if scalar is not None:
        return scalar
    if re.fullmatch(r"[A-Z]{2,}", text):
        return Words(text)  # points or choices in an order, no product
    if _WORDS.fullmatch(text) and (len(text.split()) > 1 or len(text) > 3 or text.casefold() in _SHORT_WORDS):
        return Words(text)
    return Scalar(text)


def _joined(text: str, depth: int) -> Form | None:
    """Return the items of "1, 2 or 3"; None if nothing joins any. Commas inside of what "or" joins make no lists."""
    for mark in ("or", "and", ","):
        cut = _cut(text, {name for name, joint in _JOINTS.items() if joint == mark})
        if cut is None:
            continue
        forms = [read(part, depth + 1) for part in cut[0] if part.strip()]
        names = [_assigned(form) for form in forms]
        is_repeated = sum(map(len, names)) > len(set().union(*names))
        items: list[Form] = []
        for form, assigned in zip(forms, names, strict=True):
            # x = 2, y = 3 or x = 3, y = 2: each list is a solution
            is_solution = is_repeated and len(assigned) > 1
            is_list = isinstance(form, Several) and form.joint == "," and not is_solution
            items += form.items if isinstance(form, Several) and is_list else [form]
        return Several(tuple(items), mark) if 1 < len(items) <= MAX_ITEMS else Literal(text)
    return None


def _assigned(form: Form) -> set[Form]:
    """Return the names that an equation, or a list of them, gives values to."""
    items = form.items if isinstance(form, Several) else (form,)
    return {item.terms[0] for item in items if isinstance(item, Chain) and item.relations == ("=",)}


def canonical_words(text: str) -> str:
    """Return words in lower case, with blanks instead of hyphens."""
    return " ".join(text.casefold().replace("-", " ").split())


def _tokens(text: str) -> list[tuple[str, int, int, int]]:
    """Return token, start, end and depth of brackets for every token of a text."""
    tokens = []
    depth = 0
    for m in _TOKEN.finditer(text):
        depth -= m[0] in _CLOSING
        tokens.append((m[0], m.start(), m.end(), depth))
        depth += m[0] in _OPENING
    return tokens


def _nests(text: str) -> bool:
    """Return True if every bracket is closed, by any bracket: an interval may end with another kind."""
    depth = 0
    for token in _TOKEN.findall(text):
        depth += (token in _OPENING) - (token in _CLOSING)
        if depth < 0:
            return False
    return depth == 0


def _cut(text: str, marks: set[str]) -> tuple[list[str], list[str]] | None:
    """Cut `text` at the marks outside of all brackets; None if there is none. A word is a mark between spaces only."""
    parts: list[str] = []
    names: list[str] = []
    at = 0
    for token, start, end, depth in _tokens(text):
        if depth or token not in marks:
            continue
        if token.isalpha() and not (_spaced(text, start - 1) and _spaced(text, end)):
            continue
        parts.append(text[at:start])
        names.append(token)
        at = end
    return ([*parts, text[at:]], names) if names else None


def _spaced(text: str, at: int) -> bool:
    return not 0 <= at < len(text) or text[at].isspace() or text[at] in ",;"


def _chain(parts: list[str], relations: tuple[str, ...], text: str, depth: int) -> Form:
    if not all(part.strip() for part in parts):
        return Literal(text)
    forms = [read(part, depth + 1) for part in parts]
    # F(1, 2) is a point by itself, and a value of a function in an equation.
    terms = [Scalar(part.strip()) if isinstance(form, Chain) else form for part, form in zip(parts, forms, strict=True)]
    return Chain(tuple(terms), relations)


def _listed(text: str, depth: int) -> Form | None:
    """Return the items between brackets that embrace all of `text`."""
    tokens = _tokens(text)
    opening = tokens[0][0]
    closing = tokens[-1][0]
    if opening == "{" and closing == "}" and ("," in text or re.match(r"\{\s*[a-zA-Z]\s*(?:[|:]|\\mid)", text)):
        # a set as a program writes it; LaTeX would show no braces
        opening = r"\{"
        closing = r"\}"
    if opening == "{" and closing == "}" and r"\choose" not in text and all(d > 0 for _, _, _, d in tokens[1:-1]):
        return read(text[1:-1], depth + 1) if text[1:-1].strip() else None
    embraced = opening in ("(", "[", r"\{") and closing in (")", "]", r"\}")
    if not embraced or any(d == 0 for _, _, _, d in tokens[1:-1]):
        return None
    inner = text[tokens[0][2] : tokens[-1][1]].strip()
    if opening == r"\{" and (built := _set_builder(inner, depth)):
        return built
    cut = _cut(inner, {",", ";"})
    parts = cut[0] if cut else [inner]
    if len(parts) == 1 and opening == "(" and closing == ")":
        return read(inner, depth + 1) if inner else None
    if not inner:
        return Literal(r"\emptyset" if opening == r"\{" else text)
    if len(parts) > MAX_ITEMS or not all(part.strip() for part in parts):
        return Literal(text)
    return Listed(tuple(read(part, depth + 1) for part in parts), opening, closing)


def _set_builder(inner: str, depth: int) -> Form | None:
    """Return the condition of {x | condition}; None if there is no bar, or no variable before it."""
    for bar in (r"\mid", "|", ":"):
        before, separator, after = inner.partition(bar)
        variable = before.partition(r"\in")[0].strip()
        if separator and re.fullmatch(r"[a-zA-Z]|\\[a-zA-Z]+", variable):
            condition = read(after, depth + 1)
            return condition if isinstance(condition, Chain | Several) else Literal(inner)
    return None


def _matrix(body: str, factor: str, depth: int, *, is_transposed: bool) -> Form:
    """Return the cells of a matrix, each multiplied by the factor before the matrix if there is one."""
    lines = re.split(r"\\\\(?:\s*\[[^\[\]]*\])?|\\cr(?![a-zA-Z])", body.replace(r"\hline", ""))
    factor = "-1" if factor == "-" else factor.removesuffix(r"\cdot")
    texts = [
        [f"({factor}) \\cdot ({cell})" if factor else cell for cell in row.split("&")] for row in lines if row.strip()
    ]
    cells = tuple(tuple(read(cell, depth + 1) for cell in row) for row in texts)
    if not cells or r"\begin" in body or any(len(row) != len(cells[0]) for row in cells):
        return Literal(body)
    return Matrix(tuple(zip(*cells, strict=True)) if is_transposed else cells)


def _measured(text: str) -> Scalar | None:
    """Return an expression without the currency, percent sign or unit that belongs to it; None if it has none."""
    if _COMPOUND.fullmatch(text) and (compound := _compound(text)):
        return compound
    if m := _MONEY.match(text):
        return _priced(m, text[m.end() :].strip())
    if m := _MONEY_BEHIND.fullmatch(text):
        return Scalar(m["number"], _CURRENCIES.get(m["sign"], m["sign"]))
    if text.endswith(r"\%"):
        return Scalar(text[:-2].strip(), percent=True)
    if m := _TEMPERATURE.fullmatch(text):
        return Scalar(m["number"].strip(), {"C": "celsius", "F": "fahrenheit"}[m["scale"]])
    m = _UNIT.fullmatch(text)
    if m is None:
        return None
    if m["degrees"]:
        value = m["number"].strip()
        return None if _FUNCTION.search(value) else Scalar(value, "degree")
    return _with_unit(m["value"].strip(), " ".join(m["unit"].split()), is_apart=bool(m["gap"]))


def _priced(money: re.Match[str], amount: str) -> Scalar | None:
    """Return an amount behind the sign of a currency; None if it has another unit as well.

    Args:
        money: The match of _MONEY: a plus or minus, and the currency.
        amount: The text behind it.
    """
    sign = money["sign"].replace("\\", "")
    currency = _CURRENCIES.get(sign, sign)
    if money[1] and amount.startswith(("+", "-")):
        return None
    if rate := re.fullmatch(r"(.*\d)\s*(?:/\s*(?=h\b|\w\w)|\b(?:per|an?)\b\s*)([A-Za-z]+)", amount):
        return Scalar(money[1] + rate[1], f"{currency}/{_unit(rate[2])}")  # $15 per hour
    signed = money[1] + (amount.replace(",", "") if INDIAN.fullmatch(amount) else amount)
    inner = _measured(signed)
    if inner is None:
        return Scalar(signed, currency)
    return Scalar(inner.text, currency) if inner.unit in ("", currency) and not inner.percent else None


def _compound(text: str) -> Scalar | None:
    """Return an amount in several units, 2 hours 30 minutes, in the first of them; None if they do not belong
    together."""
    parts = [(Fraction(value), _unit(UNIT_LETTERS.get(unit, unit))) for value, unit in re.findall(_COMPOUND_PART, text)]
    sizes = [_SMALLER_UNITS.get(pair) for pair in pairwise(unit for _, unit in parts)]
    total = Fraction(0)
    for (value, _), size in zip(reversed(parts), [*reversed(sizes), 1], strict=True):
        if size is None:
            return None
        total = (total + value) / size
    return Scalar(f"{total.numerator}/{total.denominator}", parts[0][1])


def with_unit_of(scalar: Scalar, other: Scalar) -> Scalar:
    """Return a number with a letter behind it as an amount in that unit if the other answer has it: 5 m, 5 meters."""
    m = re.fullmatch(r"(?P<value>.*[\d}])\s*(?P<letter>[A-Za-z])", scalar.text)
    if m is None or scalar.unit or not other.unit or other.unit != _unit(UNIT_LETTERS.get(m["letter"], "")):
        return scalar
    return Scalar(m["value"].strip(), other.unit)


def _with_unit(value: str, unit: str, *, is_apart: bool) -> Scalar | None:
    """Return a value with the unit behind it; None if the letters may be variables or words instead.

    Args:
        value: The text before the letters.
        unit: The letters, with single blanks.
        is_apart: True if there is a blank between the two.
    """
    unit = _SQUARED.sub(r"\1^2", _CUBED.sub(r"\1^3", _BARE_POWER.sub(r"\1^\2", unit)))
    whole = _OF.search(unit)  # 18 gallons of water, 5/6 of the cake
    if whole and not any(word in _NUMERALS for word in whole[1].casefold().split()):
        unit = unit[: whole.start()].strip()
    else:
        whole = None
    words = [word for word in re.split(r"[ /.\-]+", re.sub(r"\^\{?-?\d+\}?", "", unit)) if word]
    names = [word.casefold() for word in words]
    is_cut_off = bool(names) and names[-1] in ("square", "cubic", "sq", "cu")
    if is_cut_off or any(name in _NO_UNITS for name in names):
        return None
    if names and (whole or names[0] not in _COUNTED) and (scale := _scale(names[0])):
        behind = unit.split(" ", 1)[1] if len(words) > 1 else ""
        return Scalar(rf"({value}) \cdot \frac{{{scale.numerator}}}{{{scale.denominator}}}", _unit(behind))
    if names in (["percent"], ["pct"]):
        return Scalar(value, percent=True)
    if len(words) > MAX_UNIT_WORDS:
        return None
    if number(value):
        all_words = all(re.fullmatch(r"[A-Za-z]{3,}", word) for word in words)
        all_known = all(
            word in _SHORT_UNITS | _LETTER_UNITS or (i > 0 and re.fullmatch(r"[A-Za-z]{3,}", word))
            for i, word in enumerate(words)
        )
        may_be_variable = len(words) == 1 and words[0] in _LETTER_UNITS
        if (all_words and is_apart) or (all_known and not may_be_variable):
            return Scalar(value, _unit(unit))
    # Behind an expression, "3x min" must stay a product where the letters could be variables.
    if is_apart and all(word in _SHORT_UNITS or re.fullmatch(r"[A-Za-z]{4,}", word) for word in words):
        return Scalar(value, _unit(unit))
    return None


def _scale(word: str) -> Fraction | None:
    """Return what a word behind a number multiplies it by: million, dozen, thirds."""
    singular = word.removesuffix("s")
    if singular in _PARTS:
        return Fraction(1, _PARTS[singular])
    return Fraction(_SCALES[singular]) if singular in _SCALES else None


def _numeral(words: str) -> Fraction | None:
    """Return the number that words write, with blanks instead of hyphens: minus one hundred and five, two thirds."""
    total = 0  # of the scales that are read
    part = 0  # below the next scale
    room = 10**18  # what the next word must be below
    if m := re.fullmatch(r"(.+) and (?:a|one) (half|quarter)", words):
        whole = _numeral(m[1])
        return None if whole is None or whole < 0 else whole + Fraction(1, _PARTS[m[2]])
    first, *others = re.sub(r"\A(?:minus|negative) ", "- ", words).split() or [""]
    sign = -1 if first == "-" else 1
    names = others if first == "-" else [first, *others]
    if len(names) > 1 and names[-1].removesuffix("s") in _PARTS:
        top = _numeral(" ".join(names[:-1]))
        return None if top is None else sign * top / _PARTS[names[-1].removesuffix("s")]
    for i, name in enumerate(names):
        if name == "and" and 0 < i < len(names) - 1 and names[i - 1] in _SCALES:
            continue
        value = _NUMERALS.get(name)
        if value is not None and value < room:
            part += value
            room = 10 if value in _TENS.values() else 0
        elif name == "hundred" and 0 < part < 100:
            part *= 100
            room = 100
        elif name in _SCALES and name != "dozen" and part:
            total += part * _SCALES[name]
            part = 0
            room = 10**18
        else:
            return None
    return sign * Fraction(total + part) if names else None


def _unit(text: str) -> str:
    """Return one name for a unit: in the singular, with "square" and "cubic" as powers."""
    text = text.casefold().strip(". ").replace("{", "").replace("}", "")
    text = re.sub(r"\s*(?:/|\bper\b)\s*", "/", text)
    text = re.sub(r"\b(?:square|sq)\.? ([a-z]+)", r"\1^2", text)
    text = re.sub(r"\bcubic ([a-z]+)", r"\1^3", text)
    return re.sub(r"[a-z$€£]+", lambda m: _singular(m[0]), text)


def _singular(word: str) -> str:
    if word in _ALIASES:
        return _ALIASES[word]
    word = word[:-1] if word.endswith("s") and not word.endswith("ss") and len(word) > 3 else word
    return _ALIASES.get(word, word)
