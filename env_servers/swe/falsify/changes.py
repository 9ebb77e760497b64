"""Make the edits of one copy: each method falsifies one kind of assertion, and returns None if it cannot.

    a literal           change_literal, change_literal_far, change_any, change_all, replace_all_elements
    a number            move_far, move_beyond: farther away than the assertion's tolerance
    a text, an error    replace_text, replace_exception
    a condition         negate, reverse_order, make_unequal, make_call_unequal, rename_method
    no assertion        assert_false_result, insert_false_assertion

Random choices follow one another in a fixed order, so that a seed repeats a copy.
"""

from __future__ import annotations

import ast
import builtins
import random
import re
import string
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from .parsed_file import Change, Edit, ParsedFile, edited
from .syntax import SHORTEST_SEARCHED, Function, constants_in, last_name, number_of
from .words import is_equal_ignoring_case, with_another_word, with_two_words_swapped

OPPOSITE: Mapping[type[ast.cmpop], tuple[re.Pattern[bytes], bytes]] = {
    ast.Lt: (re.compile(rb"<"), b">="),
    ast.LtE: (re.compile(rb"<="), b">"),
    ast.Gt: (re.compile(rb">"), b"<="),
    ast.GtE: (re.compile(rb">="), b"<"),
}
"""For each comparison of order, how it is written, and its opposite."""
NEGATED_OPERATORS: Mapping[type[ast.cmpop], tuple[re.Pattern[bytes], bytes]] = {
    ast.In: (re.compile(rb"\bin\b"), b"not in"),
    ast.NotIn: (re.compile(rb"\bnot\s+in\b"), b"in"),
    ast.Is: (re.compile(rb"\bis\b"), b"is not"),
    ast.IsNot: (re.compile(rb"\bis\s+not\b"), b"is"),
    ast.NotEq: (re.compile(rb"!="), b"=="),
}
"""For each other comparison, how it is written, and its opposite."""
EQUAL = re.compile(rb"==")
EMPTY = ((list, "[0]"), (tuple, "(0,)"), (dict, "{0: 0}"))
"""For each empty container, one that is not empty."""
CAMEL_WORD = re.compile(r"[A-Z][a-z]+")
MAX_VALUES = 100
"""Values of a file that are considered for one change."""
ATTEMPTS = 20
"""How often a change that must meet a condition is drawn."""
UNRELATED = ("BufferError", "StopAsyncIteration", "FloatingPointError", "ReferenceError")
"""Exceptions that a test hardly ever expects, and that are hardly ever base classes of the expected one."""
COMMON = ("TypeError", "KeyError", "IndexError", "ValueError", "RuntimeError", "AttributeError", "ZeroDivisionError")
"""Exceptions that tests often expect."""
COMMON_BESIDE_OWN = ("ZeroDivisionError", "RecursionError", "StopIteration", "UnicodeDecodeError")
"""Exceptions that replace an exception of a library, which may derive from any of COMMON but hardly from these."""
OFTEN_BOTH = {
    frozenset(pair)
    for pair in (
        ("ValueError", "IndexError"),  # numpy's AxisError
        ("ValueError", "KeyError"),
        ("ValueError", "TypeError"),
        ("KeyError", "AttributeError"),
        ("KeyError", "IndexError"),
        ("TypeError", "AttributeError"),
    )
}
"""Pairs of built-in exceptions that an exception of a library sometimes derives from at once."""


class Changes:
    """Makes the changes of one copy of a file, with random values."""

    def __init__(
        self, file: ParsedFile, choice: random.Random, familiarity: float = 0.0, bases: Collection[str] = ()
    ) -> None:
        """Create the changes of one copy.

        Args:
            file: The file.
            choice: Decides about every change.
            familiarity: How much the copy uses what the test file contains anyway, in [0, 1]. Above 0, changed values
                come from the test or its file where possible. This fraction of them swap places instead, so that not
                even the number of times a value occurs reveals a change. At 1, an assertion that would need a made-up
                value becomes its opposite.
            bases: Names of classes from which exceptions of the repository may derive.
        """
        self._bases = bases
        self._file = file
        self._choice = choice
        self._familiarity = familiarity

    # Literals

    def change_literal(self, node: ast.expr, view: Callable[[Any], Any] | None = None) -> Change | None:
        """Change one constant of a literal so that its value changes.

        Args:
            node: The literal.
            view: If given, `view(value)` must change too: what the assertion sees of the value.
        """
        try:
            before = ast.literal_eval(node)
        except (ValueError, TypeError):
            return None
        constants = list(constants_in(node))
        if not constants:
            not_empty = next((text for kind, text in EMPTY if type(before) is kind and not before), None)
            return (self._file.replace(node, not_empty),) if not_empty is not None else None
        if self._familiarity:
            edits = self._change_to_familiar(constants)
            if edits and self._is_different(node, before, edits, view):
                return edits
        constant = self._choice.choice(constants)
        edit = self._file.replace(constant, repr(self._another_value(ast.literal_eval(constant))))
        return (edit,) if self._is_different(node, before, (edit,), view) else None

    def _is_different(self, node: ast.expr, before: object, edits: Change, view: Callable[[Any], Any] | None) -> bool:
        """Return True if the edits change the value of a literal, and what `view` returns for it if it is given."""
        try:
            after = ast.literal_eval(self._edited_between(self._file.span(node), edits).strip())
            return not (after == before or (view is not None and view(after) == view(before)))
        except (ValueError, TypeError, SyntaxError, ArithmeticError):  # Decimal("x") is an ArithmeticError
            return False

    def _edited_between(self, span: tuple[int, int], edits: Change) -> str:
        """Return a part of the file after edits within it."""
        start, end = span
        moved = [Edit(edit.start - start, edit.end - start, edit.text) for edit in edits]
        return edited(self._file.content[start:end], moved).decode()

    def change_literal_far(self, node: ast.expr, view: Callable[[Any], Any] | None = None) -> Change | None:
        """Change a literal by more than a comparison with a rounding tolerance accepts. `view` is as in
        `change_literal`."""
        constants = list(constants_in(node))
        if constants:
            constant = self._choice.choice(constants)
            number = number_of(constant)
            if number is not None:
                return self.move_far(constant, number, 1.0)
        return self.change_literal(node, view)

    def change_any(self, nodes: Sequence[ast.expr]) -> Change | None:
        """Change one of several literals."""
        return self.change_literal(self._choice.choice(nodes))

    def change_all(self, nodes: Sequence[ast.expr]) -> Change | None:
        """Change each of several literals: the column of a table. None if one of them cannot be changed."""
        if self._familiarity:
            change = self._rotate_column(nodes)
            if change is not None:
                return change
        return _joined([self.change_literal(node) for node in nodes])

    def _rotate_column(self, nodes: Sequence[ast.expr]) -> Change | None:
        """Give each row of a column the value of another row; None if a row would keep its own value."""
        if len(nodes) < 2 or self._choice.random() >= self._familiarity:
            return None
        values = [ast.literal_eval(node) for node in nodes]
        step = self._choice.randint(1, len(nodes) - 1)
        others = values[step:] + values[:step]
        for value, other in zip(values, others, strict=True):
            if type(value) is not type(other) or is_equal_ignoring_case(value, other):
                return None
        return tuple(self._file.replace(node, repr(other)) for node, other in zip(nodes, others, strict=True))

    def replace_all_elements(self, nodes: Sequence[ast.expr]) -> Change | None:
        """Change all elements of a container so that it contains nothing that it contained before."""
        made_up = Changes(self._file, self._choice)
        for attempt in range(ATTEMPTS):
            changes = self if attempt < ATTEMPTS // 2 else made_up  # there may be too few familiar values
            change = _joined([changes.change_literal_far(node) for node in nodes])
            if change is not None and self._are_disjoint(nodes, change):
                return change
        return None

    def _are_disjoint(self, nodes: Sequence[ast.expr], change: Change) -> bool:
        """Return True if no element after the change equals an element before it."""
        span = self._file.span(nodes[0])[0], self._file.span(nodes[-1])[1]
        try:
            before = ast.literal_eval(f"[{self._edited_between(span, ())}]")
            after = ast.literal_eval(f"[{self._edited_between(span, change)}]")
        except (ValueError, SyntaxError):
            return False
        return not any(value in before for value in after)

    # Values

    def _change_to_familiar(self, constants: Sequence[ast.expr]) -> Change:
        """Change the constants of a literal to values that the test or its file contains; empty if that is impossible.

        Two constants change places, or two words within one, or one constant becomes another value of the test or of
        its file.
        """
        values = [ast.literal_eval(constant) for constant in constants]
        # A value that occurs twice does not change: as a set, the changed literal could equal the true one.
        value_counts = Counter(values)
        unique_indices = [
            i for i, value in enumerate(values) if type(value) in (int, float, str) and value_counts[value] == 1
        ]
        if not unique_indices:
            return ()
        index = self._choice.choice(unique_indices)
        node = constants[index]
        value = values[index]
        is_move = self._choice.random() < self._familiarity
        partners = [
            i for i in unique_indices if type(values[i]) is type(value) and not is_equal_ignoring_case(values[i], value)
        ]
        if partners and is_move:
            partner = self._choice.choice(partners)
            return (
                self._file.replace(node, repr(values[partner])),
                self._file.replace(constants[partner], repr(value)),
            )
        if isinstance(value, str) and is_move:
            swapped = list(with_two_words_swapped(value))
            if swapped:
                return (self._file.replace(node, repr(self._choice.choice(swapped))),)
        test_values = self._file.values_beside(node)
        sources = (test_values, self._file.values) if self._choice.random() < 0.75 else (self._file.values,)
        for source in sources:
            others = self._familiar_values(value, source)
            if others:
                return (self._file.replace(node, repr(self._choice.choice(others))),)
        return ()

    def _familiar_values(self, value: Any, source: Sequence[Any]) -> list[Any]:
        """Return values of the source, or texts with a word of the source, that can replace a value."""
        sampled = self._choice.sample(source, min(len(source), MAX_VALUES))
        same_type = [other for other in sampled if type(other) is type(value)]
        if isinstance(value, str):
            return list(with_another_word(value, same_type))
        return [other for other in same_type if not is_equal_ignoring_case(other, value)]

    def _another_value(self, value: Any) -> Any:
        """Return a value of the same type that is not equal to `value`: close to it, or far away."""
        choice = self._choice
        is_close = choice.random() < 0.5
        sign = choice.choice([-1, 1])
        if isinstance(value, bool):
            return not value
        if isinstance(value, int):
            return value + sign * (1 if is_close else choice.randint(3, 97))
        if isinstance(value, float):
            close = value + sign * max(1.0, abs(value)) * choice.randint(1, 99) * 1e-4
            if is_close and close != value:
                return close
            return round(value + sign * choice.randint(3, 97) * max(1.0, abs(value)), 6)
        if isinstance(value, complex):
            return value + choice.randint(3, 97)
        if isinstance(value, bytes):
            return self._another_value(value.decode("latin-1")).encode("latin-1", "replace")
        if isinstance(value, str):
            indices = [i for i, letter in enumerate(value) if letter.isascii() and letter.isalnum()]
            if not indices:
                return value + self._random_word(3)
            index = choice.choice(indices)
            return value[:index] + self._another_letter(value[index]) + value[index + 1 :]
        return choice.randint(3, 97)

    def _another_letter(self, letter: str) -> str:
        """Return another letter, or another digit, of the same case. Letters that differ by case only count as one."""
        letters = string.digits if letter.isdigit() else string.ascii_lowercase
        index = letters.index(letter.lower())
        if self._choice.random() < 0.5:
            other = letters[(index + self._choice.choice([-1, 1])) % len(letters)]
        else:
            other = self._choice.choice(letters[:index] + letters[index + 1 :])
        return other.upper() if letter.isupper() else other

    def _random_word(self, length: int) -> str:
        return "".join(self._choice.choices(string.ascii_lowercase, k=max(SHORTEST_SEARCHED, min(length, 12))))

    # Numbers

    def move_far(self, node: ast.expr, number: float, tolerance: float) -> Change:
        """Replace a number by one that no comparison with this tolerance accepts, be it absolute or relative to either
        side."""
        distance = (abs(number) + 1) * (tolerance + 1) * self._choice.randint(20, 90)
        value = number + self._choice.choice([-1, 1]) * distance
        value = round(value) if isinstance(number, int) else round(value, 3)
        return (self._file.replace(node, repr(value)),)

    def move_beyond(self, node: ast.expr, number: float, tolerance: float) -> Change:
        """Replace a number by one that is farther away than `tolerance`: by a few times as much, or very far."""
        if self._familiarity:
            others = [
                value
                for value in self._file.values_beside(node)
                if type(value) is type(number) and abs(value - number) > 4 * tolerance + 1e-9
            ]
            if others:
                return (self._file.replace(node, repr(self._choice.choice(others))),)
        value = number + self._choice.choice([-1, 1]) * tolerance * self._choice.randint(4, 9)
        # A tolerance of 0, or one that rounding swallows, leaves only a far value.
        if self._choice.random() < 0.5 or not abs(value - number) > 3 * tolerance > 0:
            return self.move_far(node, number, tolerance)
        return (self._file.replace(node, repr(value)),)

    # Texts and errors

    def replace_text(self, node: ast.expr, opposite: Callable[[Changes], Change | None] | None = None) -> Change | None:
        """Replace a text by random letters, which occur nowhere else.

        Args:
            node: The text.
            opposite: Falsifies the assertion with nothing but what tests contain anyway. Used instead at full
                familiarity.
        """
        if self._familiarity == 1 and opposite is not None:
            return opposite(self)
        assert isinstance(node, ast.Constant) and isinstance(node.value, str)
        return (self._file.replace(node, repr(self._random_word(len(node.value)))),)

    def replace_exception(self, node: ast.expr) -> Change | None:
        """Replace the exception, or the tuple of exceptions, that a test expects; None if nothing else is surely not
        one of them."""
        names = _common_exceptions(node) if self._familiarity else UNRELATED
        if not _are_builtin(_expected_names(node)):
            # a parameter may be any error of the file, an exception of the repository derive from any of its bases
            names = self._beside_own(names) or self._beside_own(UNRELATED)
        return (self._file.replace(node, self._choice.choice(names)),) if names else None

    def _beside_own(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if name not in self._file.loads and name not in self._bases]

    # Conditions

    def negate(self, test: ast.expr) -> Change:
        """Negate a condition the way people write it."""
        start, end = self._file.span(test)
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            written = re.match(rb"not\b\s*", self._file.content[start:end])
            if written:
                return (Edit(start, start + written.end(), b""),)
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and type(test.ops[0]) in NEGATED_OPERATORS:
            pattern, opposite = NEGATED_OPERATORS[type(test.ops[0])]
            operator = self._file.operator(test.left, test.comparators[0], pattern)
            if operator:
                return (Edit(*operator, opposite),)
        if isinstance(test, ast.Call | ast.Name | ast.Attribute | ast.Subscript):
            return (Edit(start, start, b"not "),)
        return (Edit(start, end, b"not (" + self._file.content[start:end] + b")"),)

    def reverse_order(self, test: ast.Compare, number: int) -> Change | None:
        """Reverse the `number`-th comparison of order of a chain.

        Unlike a negation, this also catches an object that answers every comparison with True.
        """
        sides = [test.left, *test.comparators]
        written, opposite = OPPOSITE[type(test.ops[number])]
        return self._replace_operator(sides[number], sides[number + 1], written, opposite)

    def make_unequal(self, test: ast.Compare) -> Change | None:
        """Falsify that two computed values are equal: with "!=", or by replacing the second by a pair that contains
        it."""
        if self._familiarity < 1:
            return self._pair_up(test.comparators[0])
        return self._replace_operator(test.left, test.comparators[0], EQUAL, b"!=")

    def _replace_operator(
        self, left: ast.expr, right: ast.expr, written: re.Pattern[bytes], opposite: bytes
    ) -> Change | None:
        operator = self._file.operator(left, right, written)
        return (Edit(*operator, opposite),) if operator else None

    def make_call_unequal(self, call: ast.Call) -> Change | None:
        """Falsify a unittest method which asserts that two computed values are equal."""
        if self._familiarity == 1 and last_name(call.func) in ("assertEqual", "assertEquals"):
            return self.rename_method(call, "assertNotEqual")
        return self._pair_up(call.args[1])

    def rename_method(self, call: ast.Call, name: str) -> Change | None:
        """Call another method."""
        _, end = self._file.span(call.func)
        start = end - len(last_name(call.func))
        return (Edit(start, end, name.encode()),) if isinstance(call.func, ast.Attribute) else None

    def _pair_up(self, node: ast.expr) -> Change:
        """Replace a value by a pair that contains it, which it is not equal to. An object that equals everything equals
        the pair."""
        literals = self._file.plain_literals
        other = self._choice.choice(literals) if literals else repr(self._random_word(5))
        start, end = self._file.span(node)
        return (Edit(start, end, b"(" + self._file.content[start:end] + b", " + other.encode() + b")"),)

    # Tests without an assertion

    def assert_false_result(self, call: ast.expr) -> Change:
        """Assert that a call returns a list of two values of the file, which it hardly ever does."""
        start, end = self._file.span(call)
        return (
            Edit(start, start, b"assert "),
            Edit(end, end, f" == [{', '.join(self._two_literals())}]".encode()),
        )

    def insert_false_assertion(self, function: Function) -> Change | None:
        """Insert a false assertion before the first statement of a test that has nothing else to falsify."""
        body = function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body
        if not body or body[0].lineno == function.lineno:
            return None
        statement = body[0]
        decorators = getattr(statement, "decorator_list", [])
        offset = self._file.line_start(decorators[0].lineno if decorators else statement.lineno)
        indent = self._file.content[offset : offset + statement.col_offset]
        if indent.strip():  # another statement is before this one on the line
            indent = b" " * statement.col_offset
        first, second = self._two_literals()
        return (Edit(offset, offset, indent + f"assert {first} == {second}\n".encode()),)

    def _two_literals(self) -> list[str]:
        """Return two different constants, of the file if it has as many."""
        literals = self._file.plain_literals
        return self._choice.sample(literals, 2) if len(literals) > 1 else ["0", "1"]


def _joined(changes: Sequence[Change | None]) -> Change | None:
    """Return all edits of some changes; None if one of these could not be made."""
    edits: list[Edit] = []
    for change in changes:
        if change is None:
            return None
        edits += change
    return tuple(edits)


def _common_exceptions(node: ast.expr) -> Sequence[str]:
    """Return exceptions that tests commonly expect and that neither derive from the expected ones nor the other way
    round."""
    names = _expected_names(node)
    builtin = [getattr(builtins, name, None) for name in names]
    expected = [kind for kind in builtin if isinstance(kind, type) and issubclass(kind, BaseException)]
    # A library's exception that has a word of a common one in its name may derive from it: DivisionByZero.
    expected_words = {word for name in names for word in CAMEL_WORD.findall(name)} - {"Error"}
    candidates = COMMON if _are_builtin(names) else COMMON_BESIDE_OWN
    unrelated = [
        name
        for name in candidates
        if not expected_words & set(CAMEL_WORD.findall(name)) and not any(_is_related(name, kind) for kind in expected)
    ]
    return unrelated or UNRELATED


def _expected_names(node: ast.expr) -> list[str]:
    """Return the names of the exceptions that a test expects."""
    return [last_name(part) for part in (node.elts if isinstance(node, ast.Tuple) else [node])]


def _are_builtin(names: Sequence[str]) -> bool:
    """Return True if all names are those of built-in exceptions."""
    kinds = [getattr(builtins, name, None) for name in names]
    return all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds)


def _is_related(name: str, expected: type[BaseException]) -> bool:
    """Return True if something may be caught as both exceptions."""
    candidate = getattr(builtins, name)
    return (
        frozenset((name, expected.__name__)) in OFTEN_BOTH
        or issubclass(candidate, expected)
        or issubclass(expected, candidate)
    )
