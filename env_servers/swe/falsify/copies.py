"""Find the assertions of tests, and make copies of the tests in which one of each is wrong."""

from __future__ import annotations

import ast
import builtins
import random
import re
import string
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from .reached import LEAVING, _always_reached
from .syntax import (
    SHORTEST_SEARCHED,
    _cells,
    _functions_in,
    _is_literal,
    _is_literal_table,
    _is_searchable,
    _keyword,
    _last_name,
    _leaves,
    _names,
    _number,
    _values_in,
)
from .words import _is_equal_ignoring_case, _with_another_word, _with_two_words_swapped

MAX_FILE_BYTES = 2 << 20
"""Bytes of the largest test file that is changed. Larger ones are tables of data."""
OPPOSITE = {ast.Lt: (b"<", b">="), ast.LtE: (b"<=", b">"), ast.Gt: (b">", b"<="), ast.GtE: (b">=", b"<")}
"""For each comparison of order, how it is written, and its opposite."""
CAMEL_WORD = re.compile(r"[A-Z][a-z]+")
MAX_VALUES = 100
"""Values of a file that are considered for one change."""
ATTEMPTS = 20
"""How often a change that must meet a condition is drawn."""
PURE: Mapping[str, Callable[[Any], Any] | None] = {
    **{kind.__name__: kind for kind in (set, frozenset, list, tuple, bytes, bytearray, complex, Counter)},
    **dict.fromkeys(("Decimal", "Fraction", "date", "datetime", "timedelta", "deque")),
    **dict.fromkeys(("Path", "PurePath", "PurePosixPath")),
}
"""Constructors whose values differ when their first argument does; a callable says whether they do."""
NEGATED_OPERATORS: Mapping[type[ast.cmpop], tuple[re.Pattern[bytes], bytes]] = {
    ast.In: (re.compile(rb"\bin\b"), b"not in"),
    ast.NotIn: (re.compile(rb"\bnot\s+in\b"), b"in"),
    ast.Is: (re.compile(rb"\bis\b"), b"is not"),
    ast.IsNot: (re.compile(rb"\bis\s+not\b"), b"is"),
    ast.NotEq: (re.compile(rb"!="), b"=="),
}
"""For each other comparison, how it is written, and its opposite."""
DEFAULT_RELATIVE_TOLERANCE = 1e-6
"""Relative tolerance of pytest.approx."""
UNRELATED = ("BufferError", "StopAsyncIteration", "FloatingPointError", "ReferenceError")
"""Exceptions that a test hardly ever expects, and that are hardly ever base classes of the expected one."""
COMMON = ("TypeError", "KeyError", "IndexError", "ValueError", "RuntimeError", "AttributeError", "ZeroDivisionError")
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
COMMON_BESIDE_OWN = ("ZeroDivisionError", "NotImplementedError", "RecursionError", "TimeoutError")
"""Exceptions that replace an exception of a library, which may derive from any of COMMON."""
EQUAL_METHODS = frozenset(
    {"assertEqual", "assertEquals", "assertListEqual", "assertTupleEqual", "assertDictEqual", "assertSetEqual"}
    | {"assertSequenceEqual", "assertMultiLineEqual", "assertCountEqual"}
)
CALL_METHODS = frozenset({"assert_called_with", "assert_called_once_with", "assert_any_call", "assert_awaited_with"})
"""Methods of a mock that check the arguments of its calls."""
EQUAL_FUNCTION = re.compile(
    r"assert_?(array_|frame_|series_)?(equal|almost|approx|allclose|same|is_equal)", re.IGNORECASE
)
"""Functions that compare an actual and an expected value, including those of numpy's testing module."""
ALMOST_METHODS = frozenset({"assertAlmostEqual", "assertAlmostEquals"})


@dataclass(frozen=True, slots=True)
class Edit:
    """A part of a file's bytes, and its replacement."""

    start: int
    end: int
    text: bytes


EMPTY = ((list, "[0]"), (tuple, "(0,)"), (dict, "{0: 0}"))
"""For each empty container, one that is not empty."""
Change = tuple[Edit, ...]
"""Edits that together falsify one assertion."""
ChangeMaker = Callable[[], "Change | None"]
"""Makes a change, with new random values each time; returns None if the available values do not allow it."""


@dataclass(frozen=True, slots=True)
class FalseCopy:
    """Test files of which some tests are falsified.

    Attributes:
        files: Contents of all test files by path.
        tests: The falsified tests as pytest names them, without parameters; empty: the files are the true ones.
    """

    files: Mapping[str, bytes]
    tests: frozenset[str]


class Falsifier:
    """The tests of a suite, and the changes that falsify each of them."""

    def __init__(self, files: Mapping[str, bytes], visible: Mapping[str, bytes], choice: random.Random) -> None:
        """Read the tests.

        Args:
            files: Contents of the test files by path.
            visible: Contents of the repository that a session had, by path. The model knows tests that are also in
                there, and could recognize a changed copy by comparing.
            choice: Decides about every change. It is unpredictable, unless a test wants to repeat it.
        """
        self._files = files
        self._choice = choice
        self._changes: dict[tuple[str, str], list[ChangeMaker]] = {}
        known_functions = _functions_in(content for path, content in visible.items() if "test" in path)
        self._visible_tests: set[tuple[str, str]] = set()
        self._modules: list[_Module] = []
        self._familiar_number = choice.choice([0, 2])
        """Which of copies 0 and 2, the first ones that may falsify only failing tests, uses familiar values."""
        self._literal_tables: set[tuple[str, str]] = set()
        for path, content in files.items():
            module = _Module.of(content, choice)
            if module is None or not path.endswith(".py"):
                continue
            self._modules.append(module)
            for name, function in module.tests():
                change_makers = module.change_makers(function)
                choice.shuffle(change_makers)
                self._changes[path, name] = change_makers
                if ast.dump(function) in known_functions:
                    self._visible_tests.add((path, name))
                if all(_is_literal_table(decorator) for decorator in function.decorator_list):
                    self._literal_tables.add((path, name))

    @property
    def max_changes(self) -> int:
        """The largest number of assertions that a single test has."""
        return max((len(change_makers) for change_makers in self._changes.values()), default=0)

    @property
    def plain_names(self) -> frozenset[str]:
        """The tests that pytest finds by its usual rules, as it names them, without parameters."""
        return frozenset(
            f"{path}::{name}"
            for path, name in self._changes
            if all(above.startswith("Test") for above in name.split("::")[:-1])
        )

    @property
    def with_literal_tables(self) -> frozenset[str]:
        """The tests whose parameters, if any, are written in the test file itself, so that no repository code can
        change them."""
        return frozenset(f"{path}::{name}" for path, name in self._literal_tables)

    @property
    def true_copy(self) -> FalseCopy:
        """The tests as they are."""
        return FalseCopy(self._files, frozenset())

    def copy(self, number: int, failing: Collection[str] = ()) -> FalseCopy:
        """Return the copy with the `number`-th assertion of every test falsified, starting over after the last one.

        Tests that the model could have seen are unchanged in every other copy, so that they reveal nothing there.

        Args:
            number: Number of the copy.
            failing: The tests that fail without the patch, as pytest names them, without parameters. If given, copies
                with an even number falsify only some of these: all of them in copy 0, a random part in the others.
        """
        chosen = self._chosen(number, failing)
        familiarity = float(number == self._familiar_number)
        if number > 2 and number % 2 == 0:
            familiarity = self._choice.choice([0.0, 0.5, 1.0])
        for module in self._modules:
            module.familiarity = familiarity
        edits: dict[str, list[Edit]] = {}
        tests = set()
        for path, name in chosen:
            change_makers = self._changes[path, name]
            for attempt in range(len(change_makers)):
                change = change_makers[(number + attempt) % len(change_makers)]()
                earlier_edits = edits.setdefault(path, [])
                if change is not None and not _overlap(change, earlier_edits):
                    earlier_edits += change
                    tests.add(f"{path}::{name}")
                    break
        files = {path: _edited(content, edits.get(path, [])) for path, content in self._files.items()}
        return FalseCopy(files, frozenset(tests))

    def _chosen(self, number: int, failing: Collection[str]) -> list[tuple[str, str]]:
        """Return the tests that a copy falsifies."""
        is_sparing = number % 2 == 0 and len(self._visible_tests) < len(self._changes)
        tests = [test for test in self._changes if not (is_sparing and test in self._visible_tests)]
        if number % 2 != 0:
            return tests
        broken = [(path, name) for path, name in tests if f"{path}::{name}" in failing]
        if not broken or number == 0:
            return broken or tests
        part = self._choice.sample(broken, self._choice.randint(1, len(broken)))
        return [test for test in broken if test in part]


class _Module:
    """One test file."""

    def __init__(self, content: bytes, tree: ast.Module, choice: random.Random) -> None:
        self._content = content
        self._tree = tree
        self._choice = choice
        self._line_starts = [0]
        for line in content.split(b"\n"):
            self._line_starts.append(self._line_starts[-1] + len(line) + 1)
        constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant))
        self._plain_literals = sorted({repr(node.value) for node in constants if _is_plain(node.value)})
        """Numbers and short texts of the file, as Python writes them."""
        self._loads = Counter(n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))
        stores = Counter(n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
        self._constants = {
            statement.targets[0].id: statement.value
            for statement in tree.body
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1
            if isinstance(statement.targets[0], ast.Name) and stores[statement.targets[0].id] == 1
        }

        functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
        definition_counts = Counter(function.name for function in functions)
        self._helpers = {
            function.name: function
            for function in functions
            if definition_counts[function.name] == 1
            and not function.name.startswith("test")
            and not function.decorator_list
            if not any(isinstance(n, ast.Yield | ast.YieldFrom) for n in ast.walk(function))
        }
        attributes = [
            (statement.targets[0].id, statement.value)
            for class_def in ast.walk(tree)
            if isinstance(class_def, ast.ClassDef)
            for statement in class_def.body
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
        ]
        attribute_counts = Counter(name for name, _ in attributes)
        self._attributes = {name: value for name, value in attributes if attribute_counts[name] == 1}

        self.familiarity = 0.0
        """How much a copy uses what the test file contains anyway, in [0, 1].

        Above 0, changed values come from the test or its file where possible. This fraction of them swap places
        instead, so that not even the number of times a value occurs reveals a change. At 1, an assertion that would
        need a made-up value becomes its opposite.
        """
        self._values = _values_in(tree)
        self._values_beside: dict[int, list[Any]] = {}
        """Identity of a constant's node -> the values of the test that holds it."""
        for function in functions:
            test_values = _values_in(function)
            self._values_beside |= {id(node): test_values for node in ast.walk(function) if isinstance(node, ast.expr)}

    @classmethod
    def of(cls, content: bytes, choice: random.Random) -> _Module | None:
        """Parse the file. Returns None for a file that is not Python, is too large, or has line ends that Python and
        `split` count differently."""
        if len(content) > MAX_FILE_BYTES or content.startswith(b"\xef\xbb\xbf"):
            return None
        # a lone carriage return ends a line for the parser, but not for split(b"\n")
        if content.count(b"\r") != content.count(b"\r\n"):
            return None
        try:
            return cls(content, ast.parse(content.decode()), choice)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None

    def tests(self) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        """Yield (name below the file as pytest writes it, function)."""
        yield from self._tests_in(self._tree.body, "")

    def _tests_in(
        self, body: Sequence[ast.stmt], above: str
    ) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        for statement in body:
            if isinstance(statement, ast.ClassDef):
                yield from self._tests_in(statement.body, f"{above}{statement.name}::")
                continue
            if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            is_fixture = any(_last_name(decorator) == "fixture" for decorator in statement.decorator_list)
            if statement.name.startswith("test") and not is_fixture:
                yield above + statement.name, statement

    def change_makers(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ChangeMaker]:
        """Return the ways to falsify a test: one for each of its assertions.

        A test without assertions of its own uses those of the helper functions of its file that it calls, then its
        calls (each is asserted to return a false result), and at last a false assertion before its first line.
        """
        change_makers = self._change_makers_in(function)
        if not change_makers:
            called = [self._helpers[name] for name in self._called_functions(function) if name in self._helpers]
            change_makers = [maker for helper in called for maker in self._change_makers_in(helper)]
        return change_makers or self._call_change_makers(function) or [partial(self._insert_false_assertion, function)]

    def _change_makers_in(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ChangeMaker]:
        return [
            change_maker
            for statement in self._reached_statements(function)
            for change_maker in self._statement_change_makers(statement, function)
            if change_maker() is not None
        ]

    def _call_change_makers(self, function: ast.AST) -> list[ChangeMaker]:
        """Return changes for a test that asserts nothing: one for each call that is a statement and is always
        reached."""
        return [
            partial(self._assert_false_result, statement.value)
            for statement in self._reached_statements(function)
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call | ast.Await)
            if _last_name(statement.value) not in LEAVING
        ]

    def _reached_statements(self, function: ast.AST) -> Iterator[ast.stmt]:
        return _always_reached(getattr(function, "body", []), partial(self._is_never_empty, function))

    def _called_functions(self, function: ast.AST) -> list[str]:
        """Return the names of the functions that a test always calls, as statements of their own."""
        names = []
        for statement in self._reached_statements(function):
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Await):
                value = value.value
            if isinstance(value, ast.Call):
                names.append(_last_name(value.func))
        return names

    def _is_never_empty(self, function: ast.AST, node: ast.expr) -> bool:
        """Return True if a loop over `node` runs at least once: `node` is a non-empty literal, or a constant that is
        one."""
        if isinstance(node, ast.Call):
            name = _last_name(node.func)
            if name == "range" and len(node.args) == 1:
                return (_number(node.args[0]) or 0) >= 1
            if name in ("items", "keys", "values") and isinstance(node.func, ast.Attribute) and not node.args:
                return self._is_never_empty(function, node.func.value)
            if name in ("enumerate", "sorted", "reversed", "zip", "list") and node.args:
                return all(self._is_never_empty(function, argument) for argument in node.args)
            return False
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            return bool(node.elts) and not any(isinstance(element, ast.Starred) for element in node.elts)
        if isinstance(node, ast.Dict):
            return bool(node.keys) and None not in node.keys
        value: ast.expr | None = None
        if isinstance(node, ast.Name):
            stores = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == node.id]
            if any(isinstance(n.ctx, ast.Store) for n in stores):
                value = self._local_literal(function, node.id)
            else:
                value = self._constants.get(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
            value = self._attributes.get(node.attr)
        is_container = isinstance(value, ast.List | ast.Tuple | ast.Set | ast.Dict)
        return is_container and value is not None and self._is_never_empty(function, value)

    def _local_literal(self, function: ast.AST, name: str) -> ast.expr | None:
        """Return the value that a function assigns to a name, if it assigns it once and not in a nested block."""
        bound = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == name]
        if sum(isinstance(n.ctx, ast.Store) for n in bound) != 1:
            return None
        for statement in getattr(function, "body", []):
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                target = statement.targets[0]
                if isinstance(target, ast.Name) and target.id == name:
                    value: ast.expr = statement.value
                    return value
        return None

    # Statements

    def _statement_change_makers(self, statement: ast.stmt, function: ast.AST) -> Iterator[ChangeMaker]:
        if isinstance(statement, ast.Assert):
            yield from self._condition_change_makers(statement.test, function)
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            yield from self._method_change_makers(statement.value, function)
        elif isinstance(statement, ast.With | ast.AsyncWith):
            for item in statement.items:
                if isinstance(item.context_expr, ast.Call):
                    yield from self._context_change_makers(item.context_expr)

    def _condition_change_makers(self, test: ast.expr, function: ast.AST) -> Iterator[ChangeMaker]:
        """Yield changes of a condition that is true."""
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            for value in test.values:
                yield from self._condition_change_makers(value, function)
            return
        special = self._value_change_maker(test, function)
        yield special if special is not None and special() is not None else partial(self._negate, test)

    def _value_change_maker(self, test: ast.expr, function: ast.AST) -> ChangeMaker | None:
        """Return a change of the value that the condition compares with.

        Unlike a negated condition, a changed value also catches an object that claims to be equal to everything.
        """
        if isinstance(test, ast.Call) and _last_name(test.func) == "isclose" and len(test.args) == 2:
            return self._distance_change_maker(test.args, _number(_keyword(test, "abs_tol")) or 0.0)
        if not isinstance(test, ast.Compare):
            return None
        if len(test.ops) > 1:
            order_indices = [i for i, operator in enumerate(test.ops) if type(operator) in OPPOSITE]
            return partial(self._reverse_order, test, self._choice.choice(order_indices)) if order_indices else None
        operator = test.ops[0]
        left = test.left
        right = test.comparators[0]
        if isinstance(operator, ast.Eq | ast.Is):
            is_identity = isinstance(operator, ast.Is)
            expected = self._equality_change_maker(left, right, function, is_identity=is_identity)
            return expected or (None if is_identity else partial(self._make_unequal, test))
        if type(operator) in OPPOSITE:
            return self._tolerance_change_maker(operator, left, right) or partial(self._reverse_order, test, 0)
        if isinstance(operator, ast.In):
            return self._membership_change_maker(left, right, partial(self._negate, test))
        return None

    def _equality_change_maker(
        self, left: ast.expr, right: ast.expr, function: ast.AST, *, is_identity: bool
    ) -> ChangeMaker | None:
        for side in (right, left):
            expected = self._expected_value_change_maker(side, function)
            # `is True` and `is None` become `is not True` and `is not None` instead
            if expected is not None and (not is_identity or isinstance(side, ast.Name)):
                return expected
        return None

    def _tolerance_change_maker(self, operator: ast.cmpop, left: ast.expr, right: ast.expr) -> ChangeMaker | None:
        """Return a change of the expected number in a condition such as `abs(x - 744) < 1e-6`."""
        less = isinstance(operator, ast.Lt | ast.LtE)
        difference_call, tolerance = (left, _number(right)) if less else (right, _number(left))
        if not isinstance(difference_call, ast.Call) or _last_name(difference_call.func) != "abs":
            return None
        if len(difference_call.args) != 1:
            return None
        difference = difference_call.args[0]
        if tolerance is None or not isinstance(difference, ast.BinOp) or not isinstance(difference.op, ast.Sub):
            return None
        for side in (difference.right, difference.left):
            number = _number(side)
            if number is not None:
                return partial(self._move_beyond, side, number, tolerance)
        return None

    def _distance_change_maker(self, sides: Sequence[ast.expr], tolerance: float) -> ChangeMaker | None:
        for side in reversed(sides):
            number = _number(side)
            if number is not None:
                return partial(self._move_far, side, number, tolerance)
        return None

    def _membership_change_maker(self, left: ast.expr, right: ast.expr, opposite: ChangeMaker) -> ChangeMaker | None:
        if _is_searchable(left):
            return partial(self._replace_text, left, opposite)
        if isinstance(right, ast.Tuple | ast.List | ast.Set) and right.elts and all(map(_is_literal, right.elts)):
            return partial(self._replace_all_elements, right.elts)
        return None

    def _method_change_makers(self, call: ast.Call, function: ast.AST) -> Iterator[ChangeMaker]:
        """Yield changes of a call of one of unittest's assertion methods."""
        name = _last_name(call.func)
        if any(isinstance(arg, ast.Starred) for arg in call.args):
            return
        if name == "assertCountEqual" and len(call.args) >= 2 and _is_literal(call.args[1]):
            yield partial(self._change_literal, call.args[1], _in_any_order)
        elif name in EQUAL_METHODS and len(call.args) >= 2:
            equality = self._equality_change_maker(call.args[0], call.args[1], function, is_identity=False)
            yield equality or partial(self._make_call_unequal, call)
        elif name in ALMOST_METHODS and len(call.args) >= 2 and _keyword(call, "delta") is None:
            distance = self._distance_change_maker(call.args[:2], 1.0)
            if distance is not None:
                yield distance
        elif name in ("assertTrue", "assertFalse") and call.args:
            yield partial(self._negate, call.args[0])
        elif name == "assertIn" and len(call.args) >= 2:
            membership = self._membership_change_maker(
                call.args[0], call.args[1], partial(self._rename_method, call, "assertNotIn")
            )
            if membership is not None:
                yield membership
        elif name in ("raises", "assertRaises", "assertRaisesRegex"):
            yield from self._context_change_makers(call)
        elif name in CALL_METHODS:
            arguments = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg)]
            yield from (partial(self._change_literal, value) for value in arguments if _is_literal(value))
        elif EQUAL_FUNCTION.match(name) and len(call.args) >= 2 and _is_literal(call.args[1]):
            yield partial(self._change_literal_far, call.args[1])

    def _context_change_makers(self, call: ast.Call) -> Iterator[ChangeMaker]:
        """Yield changes of `pytest.raises`, `pytest.warns` and `assertRaises`, used as a context or called."""
        name = _last_name(call.func)
        pattern = _keyword(call, "match")
        if name == "assertRaisesRegex" and len(call.args) >= 2:
            pattern = call.args[1]
        expected = call.args[0] if call.args else None
        opposite = None
        if name in ("raises", "assertRaises", "assertRaisesRegex") and expected is not None:
            named = {n.id for n in ast.walk(expected) if isinstance(n, ast.Name)}
            if not named & {"Exception", "BaseException", "ArithmeticError", *UNRELATED}:
                opposite = partial(self._replace_exception, expected)
        if name in ("raises", "warns", "assertRaisesRegex") and pattern is not None and _is_searchable(pattern):
            yield partial(self._replace_text, pattern, opposite)
        if opposite is not None:
            yield opposite

    # Expected values

    def _expected_value_change_maker(self, node: ast.expr, function: ast.AST) -> ChangeMaker | None:
        """Return a change of an expression to one that no equal value equals; None if the expression is computed."""
        if _is_literal(node):
            return partial(self._change_literal, node)
        if isinstance(node, ast.Call):
            name = _last_name(node.func)
            if name == "approx" and node.args:
                number = _number(node.args[0])
                if number is not None and len(node.args) == 1 and not node.keywords:
                    tolerance = max(abs(number) * DEFAULT_RELATIVE_TOLERANCE, 1e-12)
                    return partial(self._move_beyond, node.args[0], number, tolerance)
                tolerance = max(_number(_keyword(node, key)) or 0.0 for key in ("rel", "abs"))
                if number is not None:
                    return partial(self._move_far, node.args[0], number, tolerance)
                if _is_literal(node.args[0]) and tolerance <= 1:
                    return partial(self._change_literal_far, node.args[0])
            elif name in PURE and node.args and all(map(_is_literal, node.args)) and not node.keywords:
                return partial(self._change_literal, node.args[0], PURE[name])
        if isinstance(node, ast.Name):
            return self._name_change_maker(node.id, function)
        return None

    def _name_change_maker(self, name: str, function: ast.AST) -> ChangeMaker | None:
        """Return a change of the literals that a name stands for, provided that the name is used nowhere else."""
        uses = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == name]
        if sum(isinstance(n.ctx, ast.Load) for n in uses) != 1:
            return None
        stores = sum(isinstance(n.ctx, ast.Store) for n in uses)
        if not stores:
            for decorator in getattr(function, "decorator_list", []):
                if (column := self._parameter_column(decorator, name)) is not None:
                    return partial(self._change_all, column)
            if self._loads[name] == 1 and (value := self._constants.get(name)) is not None and _is_literal(value):
                return partial(self._change_literal, value)
            return None
        if stores != 1:
            return None
        for statement in self._reached_statements(function):
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                target = statement.targets[0]
                if isinstance(target, ast.Name) and target.id == name and _is_literal(statement.value):
                    return partial(self._change_literal, statement.value)
            if isinstance(statement, ast.For):
                rows = self._rows(statement.iter)
                cells = _cells(_names(statement.target), rows, name) if rows else None
                if cells is not None:
                    return partial(self._change_any, cells)
        return None

    def _parameter_column(self, decorator: ast.expr, name: str) -> list[ast.expr] | None:
        """Return the values that @parametrize gives to `name`, one for each row; None if they are not literals."""
        if not isinstance(decorator, ast.Call) or _last_name(decorator.func) != "parametrize":
            return None
        if len(decorator.args) < 2 or _keyword(decorator, "indirect") is not None:
            return None
        try:
            parameter_names = ast.literal_eval(decorator.args[0])
        except ValueError:
            return None
        names = list(parameter_names)
        if isinstance(parameter_names, str):
            names = [part.strip() for part in parameter_names.split(",")]
        rows = self._rows(decorator.args[1])
        return _cells([n for n in names if n], rows, name) if rows else None

    def _rows(self, node: ast.expr) -> list[ast.expr] | None:
        """Return the elements of a table that is written here, or in a constant of the module that is used once."""
        if isinstance(node, ast.Name) and self._loads[node.id] == 1:
            node = self._constants.get(node.id, node)
        return list(node.elts) if isinstance(node, ast.List | ast.Tuple) else None

    # Edits

    def _change_literal(self, node: ast.expr, view: Callable[[Any], Any] | None = None) -> Change | None:
        """Change one constant of a literal so that its value changes.

        Args:
            node: The literal.
            view: If given, `view(value)` must change too: what the assertion sees of the value.
        """
        try:
            before = ast.literal_eval(node)
        except (ValueError, TypeError):
            return None
        leaves = list(_leaves(node))
        if not leaves:
            text = next((text for kind, text in EMPTY if type(before) is kind and not before), None)
            return (self._edit(node, text),) if text is not None else None
        if self.familiarity:
            edits = self._change_to_familiar(leaves)
            if edits and self._is_different(node, before, edits, view):
                return edits
        leaf = self._choice.choice(leaves)
        edit = self._edit(leaf, repr(self._another_value(ast.literal_eval(leaf))))
        return (edit,) if self._is_different(node, before, (edit,), view) else None

    def _is_different(
        self, node: ast.expr, before: object, edits: Change, view: Callable[[Any], Any] | None = None
    ) -> bool:
        """Return True if the edits change the value of a literal and, if `view` is given, what `view` returns for
        it."""
        first, last = self._span(node)
        moved = [Edit(edit.start - first, edit.end - first, edit.text) for edit in edits]
        changed = _edited(self._content[first:last], moved)
        try:
            after = ast.literal_eval(changed.decode().strip())
            return not (after == before or (view is not None and view(after) == view(before)))
        except (ValueError, TypeError, SyntaxError):
            return False

    def _change_literal_far(self, node: ast.expr) -> Change | None:
        """Change a literal by more than a comparison with a rounding tolerance accepts."""
        leaves = list(_leaves(node))
        if not leaves:
            return self._change_literal(node)
        leaf = self._choice.choice(leaves)
        number = _number(leaf)
        return self._change_literal(node) if number is None else self._move_far(leaf, number, 1.0)

    def _change_any(self, nodes: Sequence[ast.expr]) -> Change | None:
        return self._change_literal(self._choice.choice(nodes))

    def _replace_text(self, node: ast.expr, familiar: ChangeMaker | None = None) -> Change | None:
        """Replace a text by random letters, which occur nowhere else.

        Args:
            node: The text.
            familiar: Falsifies the assertion with nothing but what tests contain anyway. Used instead at full
                familiarity.
        """
        assert isinstance(node, ast.Constant) and isinstance(node.value, str)
        if self.familiarity == 1 and familiar is not None:
            return familiar()
        return (self._edit(node, repr(self._random_word(len(node.value)))),)

    def _replace_exception(self, node: ast.expr) -> Change:
        names = self._common_exceptions(node) if self.familiarity else UNRELATED
        return (self._edit(node, self._choice.choice(names)),)

    def _common_exceptions(self, node: ast.expr) -> Sequence[str]:
        """Return exceptions that tests commonly expect and that neither derive from the expected ones nor the other way
        round."""
        names = [_last_name(part) for part in (node.elts if isinstance(node, ast.Tuple) else [node])]
        expected = [getattr(builtins, name, None) for name in names]
        kinds = [kind for kind in expected if isinstance(kind, type) and issubclass(kind, BaseException)]
        common = COMMON if len(kinds) == len(names) else COMMON_BESIDE_OWN
        expected_words = {word for name in names for word in CAMEL_WORD.findall(name)} - {"Error"}
        return [
            name
            for name in common
            if not expected_words & set(CAMEL_WORD.findall(name))
            and not any(frozenset((name, kind.__name__)) in OFTEN_BOTH for kind in kinds)
            and not any(issubclass(getattr(builtins, name), kind) for kind in kinds)
            and not any(issubclass(kind, getattr(builtins, name)) for kind in kinds)
        ] or UNRELATED

    def _reverse_order(self, test: ast.Compare, number: int) -> Change | None:
        """Reverse one comparison of order. Unlike a negation, this also catches an object that answers every comparison
        with True."""
        sides = [test.left, *test.comparators]
        first = self._span(sides[number])[1]
        last = self._span(sides[number + 1])[0]
        written, opposite = OPPOSITE[type(test.ops[number])]
        offset = self._content.find(written, first, last)
        return None if offset < 0 else (Edit(offset, offset + len(written), opposite),)

    def _change_to_familiar(self, leaves: Sequence[ast.expr]) -> Change:
        """Change the constants of a literal to values that the test or its file contains; empty if that is impossible.

        Two constants change places, or two words within one, or one constant becomes another value of the test or of
        its file.
        """
        values = list(map(ast.literal_eval, leaves))
        # a value that occurs twice does not change: as a set, the changed literal could equal the true one
        value_counts = Counter(values)
        unique_indices = [
            i for i, value in enumerate(values) if type(value) in (int, float, str) and value_counts[value] == 1
        ]
        if not unique_indices:
            return ()
        index = self._choice.choice(unique_indices)
        value = values[index]
        is_move = self._choice.random() < self.familiarity
        partners = [
            i
            for i in unique_indices
            if type(values[i]) is type(value) and not _is_equal_ignoring_case(values[i], value)
        ]
        if partners and is_move:
            other = self._choice.choice(partners)
            return tuple(self._edit(leaves[i], repr(values[j])) for i, j in ((index, other), (other, index)))
        if isinstance(value, str) and is_move and (moved := list(_with_two_words_swapped(value))):
            return (self._edit(leaves[index], repr(self._choice.choice(moved))),)
        test_values = self._values_beside.get(id(leaves[index]), self._values)
        for source in (test_values, self._values) if self._choice.random() < 0.75 else (self._values,):
            sampled = self._choice.sample(source, min(len(source), MAX_VALUES))
            same_type = [other for other in sampled if type(other) is type(value)]
            others: list[Any] = [other for other in same_type if not _is_equal_ignoring_case(other, value)]
            if isinstance(value, str):
                others = list(_with_another_word(value, same_type))
            if others:
                return (self._edit(leaves[index], repr(self._choice.choice(others))),)
        return ()

    def _another_value(self, value: Any) -> Any:
        """Return a value of the same type that is not equal to `value`."""
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

    def _move_far(self, node: ast.expr, number: float, tolerance: float) -> Change:
        """Replace a number by one that no comparison with this tolerance accepts, be it absolute or relative to either
        side."""
        distance = (abs(number) + 1) * (tolerance + 1) * self._choice.randint(20, 90)
        value = number + self._choice.choice([-1, 1]) * distance
        return (self._edit(node, repr(round(value) if isinstance(number, int) else round(value, 3))),)

    def _move_beyond(self, node: ast.expr, number: float, tolerance: float) -> Change:
        """Replace a number by one that is farther away than `tolerance`: by a few times as much, or very far."""
        if self.familiarity:
            test_values = self._values_beside.get(id(node), self._values)
            others = [v for v in test_values if type(v) is type(number) and abs(v - number) > 4 * tolerance + 1e-9]
            if others:
                return (self._edit(node, repr(self._choice.choice(others))),)
        value = number + self._choice.choice([-1, 1]) * tolerance * self._choice.randint(4, 9)
        if self._choice.random() < 0.5 or not abs(value - number) > 3 * tolerance > 0:
            return self._move_far(node, number, tolerance)
        return (self._edit(node, repr(value)),)

    def _change_all(
        self, nodes: Sequence[ast.expr], change_one: Callable[[ast.expr], Change | None] | None = None
    ) -> Change | None:
        if self.familiarity and change_one is None and (change := self._rotate_column(nodes)) is not None:
            return change
        changes = [(change_one or self._change_literal)(node) for node in nodes]
        return None if None in changes else tuple(edit for change in changes if change for edit in change)

    def _rotate_column(self, nodes: Sequence[ast.expr]) -> Change | None:
        """Give each row of a column the value of another row; None if a row would keep its own value."""
        if len(nodes) < 2 or self._choice.random() >= self.familiarity:
            return None
        values = [ast.literal_eval(node) for node in nodes]
        step = self._choice.randint(1, len(nodes) - 1)
        others = values[step:] + values[:step]
        if any(type(a) is not type(b) or _is_equal_ignoring_case(a, b) for a, b in zip(values, others, strict=True)):
            return None
        return tuple(self._edit(node, repr(other)) for node, other in zip(nodes, others, strict=True))

    def _replace_all_elements(self, nodes: Sequence[ast.expr]) -> Change | None:
        """Change all elements of a container so that it contains nothing that it contained before."""
        familiarity = self.familiarity
        try:
            for attempt in range(ATTEMPTS):
                self.familiarity = familiarity if attempt < ATTEMPTS // 2 else 0.0  # there may be too few such values
                change = self._change_all(nodes, self._change_literal_far)
                if change is not None and self._are_disjoint(nodes, change):
                    return change
        finally:
            self.familiarity = familiarity
        return None

    def _are_disjoint(self, nodes: Sequence[ast.expr], change: Change) -> bool:
        """Return True if no element after the change equals an element before it."""
        first = self._span(nodes[0])[0]
        last = self._span(nodes[-1])[1]
        before = self._content[first:last]
        after = _edited(before, [Edit(edit.start - first, edit.end - first, edit.text) for edit in change])
        try:
            old, new = (ast.literal_eval(f"[{text.decode()}]") for text in (before, after))
        except (ValueError, SyntaxError):
            return False
        return not any(value in old for value in new)

    def _negate(self, test: ast.expr) -> Change:
        """Negate a condition the way people write it."""
        first, last = self._span(test)
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            written = re.match(rb"not\b\s*", self._content[first:last])
            if written:
                return (Edit(first, first + written.end(), b""),)
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and type(test.ops[0]) in NEGATED_OPERATORS:
            written_as, opposite = NEGATED_OPERATORS[type(test.ops[0])]
            start = self._span(test.left)[1]
            end = self._span(test.comparators[0])[0]
            if operator_match := written_as.search(self._content, start, end):
                return (Edit(operator_match.start(), operator_match.end(), opposite),)
        if isinstance(test, ast.Call | ast.Name | ast.Attribute | ast.Subscript):
            return (Edit(first, first, b"not "),)
        return (Edit(first, last, b"not (" + self._content[first:last] + b")"),)

    def _make_unequal(self, test: ast.Compare) -> Change | None:
        """Falsify that two computed values are equal: with "!=", or by replacing the second by a pair that contains
        it."""
        if self.familiarity < 1:
            return self._pair_up(test.comparators[0])
        start = self._span(test.left)[1]
        end = self._span(test.comparators[0])[0]
        offset = self._content.find(b"==", start, end)
        return None if offset < 0 else (Edit(offset, offset + 2, b"!="),)

    def _make_call_unequal(self, call: ast.Call) -> Change | None:
        """Falsify a unittest method which asserts that two computed values are equal."""
        if self.familiarity == 1 and _last_name(call.func) in ("assertEqual", "assertEquals"):
            return self._rename_method(call, "assertNotEqual")
        return self._pair_up(call.args[1])

    def _rename_method(self, call: ast.Call, name: str) -> Change | None:
        """Call another method."""
        end = self._span(call.func)[1]
        start = end - len(_last_name(call.func))
        return (Edit(start, end, name.encode()),) if isinstance(call.func, ast.Attribute) else None

    def _pair_up(self, node: ast.expr) -> Change:
        """Replace a value by a pair that contains it, which it is not equal to. An object that equals everything equals
        the pair."""
        first, last = self._span(node)
        other = self._choice.choice(self._plain_literals) if self._plain_literals else repr(self._random_word(5))
        return (Edit(first, last, b"(" + self._content[first:last] + b", " + other.encode() + b")"),)

    def _insert_false_assertion(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Change | None:
        """Insert a false assertion before the first statement of a test that has nothing else to falsify."""
        body = function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body
        if not body or body[0].lineno == function.lineno:
            return None
        statement = body[0]
        decorators = getattr(statement, "decorator_list", [])
        line = decorators[0].lineno if decorators else statement.lineno
        offset = self._line_starts[line - 1]
        indent = self._content[offset : offset + statement.col_offset]
        if indent.strip():  # another statement is before this one on the line
            indent = b" " * statement.col_offset
        values = self._choice.sample(self._plain_literals, 2) if len(self._plain_literals) > 1 else ["0", "1"]
        assertion = f"assert {values[0]} == {values[1]}\n".encode()
        return (Edit(offset, offset, indent + assertion),)

    def _assert_false_result(self, call: ast.expr) -> Change:
        """Assert that a call returns a list of two values of the file, which it hardly ever does."""
        first, last = self._span(call)
        values = self._choice.sample(self._plain_literals, 2) if len(self._plain_literals) > 1 else ["0", "1"]
        return (Edit(first, first, b"assert "), Edit(last, last, f" == [{', '.join(values)}]".encode()))

    def _edit(self, node: ast.expr, text: str) -> Edit:
        first, last = self._span(node)
        return Edit(first, last, text.encode("utf-8", "backslashreplace"))

    def _span(self, node: ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        start = self._line_starts[node.lineno - 1] + node.col_offset
        end = self._line_starts[node.end_lineno - 1] + node.end_col_offset
        return start, end


def _is_plain(value: object) -> bool:
    """Return True for a number or a short text of a file, other than 0 and 1, which equal False and True."""
    if type(value) is int:
        return value not in (0, 1)
    return type(value) is str and 0 < len(value) <= 20 and value.isascii() and value.isprintable()


def _in_any_order(values: Sequence[Any]) -> object:
    """Return the elements in an order that does not depend on the given one."""
    return sorted(map(repr, values))


def _overlap(change: Change, earlier_edits: Sequence[Edit]) -> bool:
    return any(new.start < old.end and old.start < new.end for new in change for old in earlier_edits)


def _edited(content: bytes, edits: Sequence[Edit]) -> bytes:
    for edit in sorted(edits, key=lambda e: e.start, reverse=True):
        content = content[: edit.start] + edit.text + content[edit.end :]
    return content
