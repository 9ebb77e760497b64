"""Make copies of hidden tests in which one assertion of each test is wrong, so that no right solution passes them.

    assert to_roman(4) == "IV"                    ->  assert to_roman(4) == "QV"
    @parametrize("n, numeral", [(4, "IV")])       ->  @parametrize("n, numeral", [(4, "IQ")])
    assert abs(area(2) - 12.5) < 1e-6             ->  assert abs(area(2) - 391.5) < 1e-6
    with pytest.raises(ValueError, match="none")  ->  with pytest.raises(ValueError, match="kvor")
    assert is_valid("IV")                         ->  assert not (is_valid("IV"))

A process that runs patched code can make its tests report anything. It cannot know which of two copies is the true one
without knowing what is right, since both are ordinary tests with the same names, in the same files, at the same lines.
`examine` believes a run of the true tests only if the falsified ones fail in other processes with the same code.

A falsified test must always fail for a right solution. So an assertion is falsified only where it is surely reached,
and in a way that contradicts the true one. The remaining text of a file does not change.

A copy must not be recognizable either: not by its text, not by how many of its tests fail, and not by how far its
values are from the true ones. So some copies falsify only tests that fail without the patch: honest code that fixes
nothing fails the same tests there as among the true ones. Half of the changed values lie close to the true ones. A
negation is written as people write it. And since a misspelt word, or a number that occurs nowhere else, reveals a
change, some copies are made of what the tests contain anyway: their changed values are words and numbers of the same
test, or of its file, and the opposite of an assertion is used instead of a word or an error that no test expects.
"""

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

MAX_FILE_BYTES = 2 << 20
"""Bytes of the largest test file that is changed. Larger ones are tables of data."""
OPPOSITE = {ast.Lt: (b"<", b">="), ast.LtE: (b"<=", b">"), ast.Gt: (b">", b"<="), ast.GtE: (b">=", b"<")}
"""For each comparison of order, how it is written, and its opposite."""
WORD = re.compile(r"[A-Za-z0-9]+")
CAMEL_WORD = re.compile(r"[A-Z][a-z]+")
MAX_SEARCHED = 500
"""Characters of a text in which words are looked for."""
MAX_VALUES = 100
"""Values of a file that are considered for one change."""
ATTEMPTS = 20
"""How often a change that must meet a condition is drawn."""
SHORTEST_SEARCHED = 4
"""Characters of the shortest text whose falsified copy is surely not found within another text."""
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
LEAVING = ("skip", "xfail", "exit", "skipTest")
"""Calls that end a passing test before its last line."""
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
        """Number of the copy, of the first two that may falsify only failing tests, that is made of familiar values."""
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
    def most_changes(self) -> int:
        """The number of assertions of the test that has most of them."""
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
        """The tests whose parameters, if any, are all written down beside them, so that no code changes them."""
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
        moves = float(number == self._familiar_number)
        if number > 2 and number % 2 == 0:
            moves = self._choice.choice([0.0, 0.5, 1.0])
        for module in self._modules:
            module.moves = moves
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
        self._starts = [0]
        for line in content.split(b"\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)
        constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant))
        self._words = sorted({repr(node.value) for node in constants if _is_plain(node.value)})
        """Numbers and short texts of the file, as they are written."""
        self._loads = Counter(n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))
        stores = Counter(n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
        self._constants = {
            statement.targets[0].id: statement.value
            for statement in tree.body
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1
            if isinstance(statement.targets[0], ast.Name) and stores[statement.targets[0].id] == 1
        }

        functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
        times = Counter(function.name for function in functions)
        self._helpers = {
            function.name: function
            for function in functions
            if times[function.name] == 1 and not function.name.startswith("test") and not function.decorator_list
            if not any(isinstance(n, ast.Yield | ast.YieldFrom) for n in ast.walk(function))
        }
        attributes = [
            (statement.targets[0].id, statement.value)
            for holder in ast.walk(tree)
            if isinstance(holder, ast.ClassDef)
            for statement in holder.body
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
        ]
        often = Counter(name for name, _ in attributes)
        self._attributes = {name: value for name, value in attributes if often[name] == 1}

        self.moves = 0.0
        """Over 0: changed values are made of what the test or its file holds, where that can be. So many of them, of 1,
        are values that change places where they can, so that not even how often each occurs tells. 1: assertions that
        could only be changed by something strange become their opposite."""
        self._values = _values_in(tree)
        self._values_beside: dict[int, list[Any]] = {}
        """Identity of a constant's node -> the values of the test that holds it."""
        for function in functions:
            beside = _values_in(function)
            self._values_beside |= {id(node): beside for node in ast.walk(function) if isinstance(node, ast.expr)}

    @classmethod
    def of(cls, content: bytes, choice: random.Random) -> _Module | None:
        """Return the file's module; None for one that is no Python of ours, or too large."""
        if len(content) > MAX_FILE_BYTES or content.startswith(b"\xef\xbb\xbf"):
            return None
        if content.count(b"\r") != content.count(b"\r\n"):  # lines that are not counted by their ends
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
        """Return what falsifies the test: a change for each assertion, or a false assertion before its first line.

        A test that has none of its own has those of the functions of its file that it calls.
        """
        change_makers = self._change_makers_in(function)
        if not change_makers:
            called = [self._helpers[name] for name in self._called(function) if name in self._helpers]
            change_makers = [maker for helper in called for maker in self._change_makers_in(helper)]
        return change_makers or self._of_calls(function) or [partial(self._false_line, function)]

    def _change_makers_in(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ChangeMaker]:
        return [
            change_maker
            for statement in self._reached(function)
            for change_maker in self._of_statement(statement, function)
            if change_maker() is not None
        ]

    def _of_calls(self, function: ast.AST) -> list[ChangeMaker]:
        """Return changes of a test that asserts nothing: one for each call that is a statement and surely reached."""
        return [
            partial(self._false_result, statement.value)
            for statement in self._reached(function)
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call | ast.Await)
            if _last_name(statement.value) not in LEAVING
        ]

    def _reached(self, function: ast.AST) -> Iterator[ast.stmt]:
        return _surely_run(getattr(function, "body", []), partial(self._is_filled, function))

    def _called(self, function: ast.AST) -> list[str]:
        """Return the functions that a test surely calls, as statements of their own."""
        names = []
        for statement in self._reached(function):
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Await):
                value = value.value
            if isinstance(value, ast.Call):
                names.append(_last_name(value.func))
        return names

    def _is_filled(self, function: ast.AST, node: ast.expr) -> bool:
        """Return True for what a loop goes over at least once: literals, and constants that are literals."""
        if isinstance(node, ast.Call):
            name = _last_name(node.func)
            if name == "range" and len(node.args) == 1:
                return (_number(node.args[0]) or 0) >= 1
            if name in ("items", "keys", "values") and isinstance(node.func, ast.Attribute) and not node.args:
                return self._is_filled(function, node.func.value)
            if name in ("enumerate", "sorted", "reversed", "zip", "list") and node.args:
                return all(self._is_filled(function, argument) for argument in node.args)
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
        return is_container and value is not None and self._is_filled(function, value)

    def _local_literal(self, function: ast.AST, name: str) -> ast.expr | None:
        """Return the value of a name that a function binds once, at its own level."""
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

    def _of_statement(self, statement: ast.stmt, function: ast.AST) -> Iterator[ChangeMaker]:
        if isinstance(statement, ast.Assert):
            yield from self._of_condition(statement.test, function)
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            yield from self._of_method(statement.value, function)
        elif isinstance(statement, ast.With | ast.AsyncWith):
            for item in statement.items:
                if isinstance(item.context_expr, ast.Call):
                    yield from self._of_context(item.context_expr)

    def _of_condition(self, test: ast.expr, function: ast.AST) -> Iterator[ChangeMaker]:
        """Yield changes of a condition that holds."""
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            for value in test.values:
                yield from self._of_condition(value, function)
            return
        special = self._special(test, function)
        yield special if special is not None and special() is not None else partial(self._negated, test)

    def _special(self, test: ast.expr, function: ast.AST) -> ChangeMaker | None:
        """Return a change of a value that the condition compares with, which finds what is equal to everything too."""
        if isinstance(test, ast.Call) and _last_name(test.func) == "isclose" and len(test.args) == 2:
            return self._of_distance(test.args, _number(_keyword(test, "abs_tol")) or 0.0)
        if not isinstance(test, ast.Compare):
            return None
        if len(test.ops) > 1:
            ordered = [i for i, operator in enumerate(test.ops) if type(operator) in OPPOSITE]
            return partial(self._turned, test, self._choice.choice(ordered)) if ordered else None
        operator = test.ops[0]
        left = test.left
        right = test.comparators[0]
        if isinstance(operator, ast.Eq | ast.Is):
            exact = isinstance(operator, ast.Is)
            expected = self._of_equality(left, right, function, exact=exact)
            return expected or (None if exact else partial(self._unequal, test))
        if type(operator) in OPPOSITE:
            return self._of_tolerance(operator, left, right) or partial(self._turned, test, 0)
        if isinstance(operator, ast.In):
            return self._of_membership(left, right, partial(self._negated, test))
        return None

    def _of_equality(self, left: ast.expr, right: ast.expr, function: ast.AST, *, exact: bool) -> ChangeMaker | None:
        for side in (right, left):
            expected = self._expected(side, function)
            # identity of texts and numbers is no value's: only True and False are certain
            if expected is not None and (not exact or isinstance(side, ast.Name)):
                return expected
        return None

    def _of_tolerance(self, operator: ast.cmpop, left: ast.expr, right: ast.expr) -> ChangeMaker | None:
        """abs(x - 744) < 1e-6"""
        less = isinstance(operator, ast.Lt | ast.LtE)
        near, tolerance = (left, _number(right)) if less else (right, _number(left))
        if not isinstance(near, ast.Call) or _last_name(near.func) != "abs" or len(near.args) != 1:
            return None
        difference = near.args[0]
        if tolerance is None or not isinstance(difference, ast.BinOp) or not isinstance(difference.op, ast.Sub):
            return None
        for side in (difference.right, difference.left):
            number = _number(side)
            if number is not None:
                return partial(self._beyond, side, number, tolerance)
        return None

    def _of_distance(self, sides: Sequence[ast.expr], tolerance: float) -> ChangeMaker | None:
        for side in reversed(sides):
            number = _number(side)
            if number is not None:
                return partial(self._far_from, side, number, tolerance)
        return None

    def _of_membership(self, left: ast.expr, right: ast.expr, opposite: ChangeMaker) -> ChangeMaker | None:
        if _is_searchable(left):
            return partial(self._another_word, left, opposite)
        if isinstance(right, ast.Tuple | ast.List | ast.Set) and right.elts and all(map(_is_literal, right.elts)):
            return partial(self._none_of, right.elts)
        return None

    def _of_method(self, call: ast.Call, function: ast.AST) -> Iterator[ChangeMaker]:
        """Yield changes of a method of unittest."""
        name = _last_name(call.func)
        if any(isinstance(arg, ast.Starred) for arg in call.args):
            return
        if name == "assertCountEqual" and len(call.args) >= 2 and _is_literal(call.args[1]):
            yield partial(self._literal, call.args[1], _in_any_order)
        elif name in EQUAL_METHODS and len(call.args) >= 2:
            equality = self._of_equality(call.args[0], call.args[1], function, exact=False)
            yield equality or partial(self._unequal_call, call)
        elif name in ALMOST_METHODS and len(call.args) >= 2 and _keyword(call, "delta") is None:
            distance = self._of_distance(call.args[:2], 1.0)
            if distance is not None:
                yield distance
        elif name in ("assertTrue", "assertFalse") and call.args:
            yield partial(self._negated, call.args[0])
        elif name == "assertIn" and len(call.args) >= 2:
            membership = self._of_membership(call.args[0], call.args[1], partial(self._renamed, call, "assertNotIn"))
            if membership is not None:
                yield membership
        elif name in ("raises", "assertRaises", "assertRaisesRegex"):
            yield from self._of_context(call)
        elif name in CALL_METHODS:
            given = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg)]
            yield from (partial(self._literal, value) for value in given if _is_literal(value))
        elif EQUAL_FUNCTION.match(name) and len(call.args) >= 2 and _is_literal(call.args[1]):
            yield partial(self._far_literal, call.args[1])

    def _of_context(self, call: ast.Call) -> Iterator[ChangeMaker]:
        """Yield changes of pytest.raises and its kin, as a context or called."""
        name = _last_name(call.func)
        pattern = _keyword(call, "match")
        if name == "assertRaisesRegex" and len(call.args) >= 2:
            pattern = call.args[1]
        expected = call.args[0] if call.args else None
        opposite = None
        if name in ("raises", "assertRaises", "assertRaisesRegex") and expected is not None:
            named = {n.id for n in ast.walk(expected) if isinstance(n, ast.Name)}
            if not named & {"Exception", "BaseException", "ArithmeticError", *UNRELATED}:
                opposite = partial(self._another_exception, expected)
        if name in ("raises", "warns", "assertRaisesRegex") and pattern is not None and _is_searchable(pattern):
            yield partial(self._another_word, pattern, opposite)
        if opposite is not None:
            yield opposite

    # Expected values

    def _expected(self, node: ast.expr, function: ast.AST) -> ChangeMaker | None:
        """Return a change of an expression that another value is equal to; None for one that is computed."""
        if _is_literal(node):
            return partial(self._literal, node)
        if isinstance(node, ast.Call):
            name = _last_name(node.func)
            if name == "approx" and node.args:
                number = _number(node.args[0])
                if number is not None and len(node.args) == 1 and not node.keywords:
                    tolerance = max(abs(number) * DEFAULT_RELATIVE_TOLERANCE, 1e-12)
                    return partial(self._beyond, node.args[0], number, tolerance)
                tolerance = max(_number(_keyword(node, key)) or 0.0 for key in ("rel", "abs"))
                if number is not None:
                    return partial(self._far_from, node.args[0], number, tolerance)
                if _is_literal(node.args[0]) and tolerance <= 1:
                    return partial(self._far_literal, node.args[0])
            elif name in PURE and node.args and all(map(_is_literal, node.args)) and not node.keywords:
                return partial(self._literal, node.args[0], PURE[name])
        if isinstance(node, ast.Name):
            return self._of_name(node.id, function)
        return None

    def _of_name(self, name: str, function: ast.AST) -> ChangeMaker | None:
        """Return a change of the literals that a name stands for, where it is used for nothing else."""
        uses = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == name]
        if sum(isinstance(n.ctx, ast.Load) for n in uses) != 1:
            return None
        stores = sum(isinstance(n.ctx, ast.Store) for n in uses)
        if not stores:
            for decorator in getattr(function, "decorator_list", []):
                if (column := self._column(decorator, name)) is not None:
                    return partial(self._all_of, column)
            if self._loads[name] == 1 and (value := self._constants.get(name)) is not None and _is_literal(value):
                return partial(self._literal, value)
            return None
        if stores != 1:
            return None
        for statement in self._reached(function):
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                target = statement.targets[0]
                if isinstance(target, ast.Name) and target.id == name and _is_literal(statement.value):
                    return partial(self._literal, statement.value)
            if isinstance(statement, ast.For):
                rows = self._rows(statement.iter)
                cells = _cells(_names(statement.target), rows, name) if rows else None
                if cells is not None:
                    return partial(self._one_of, cells)
        return None

    def _column(self, decorator: ast.expr, name: str) -> list[ast.expr] | None:
        """Return the values that @parametrize gives to `name`, one for each row; None where they are no literals."""
        if not isinstance(decorator, ast.Call) or _last_name(decorator.func) != "parametrize":
            return None
        if len(decorator.args) < 2 or _keyword(decorator, "indirect") is not None:
            return None
        try:
            given = ast.literal_eval(decorator.args[0])
        except ValueError:
            return None
        names = [part.strip() for part in given.split(",")] if isinstance(given, str) else list(given)
        rows = self._rows(decorator.args[1])
        return _cells([n for n in names if n], rows, name) if rows else None

    def _rows(self, node: ast.expr) -> list[ast.expr] | None:
        """Return the elements of a table that stands here, or in a constant of the module that is used once."""
        if isinstance(node, ast.Name) and self._loads[node.id] == 1:
            node = self._constants.get(node.id, node)
        return list(node.elts) if isinstance(node, ast.List | ast.Tuple) else None

    # Edits

    def _literal(self, node: ast.expr, made: Callable[[Any], Any] | None = None) -> Change | None:
        """Change one constant of a literal, so that its value, and what is `made` of it, is another."""
        try:
            before = ast.literal_eval(node)
        except (ValueError, TypeError):
            return None
        leaves = list(_leaves(node))
        if not leaves:
            text = next((text for kind, text in EMPTY if type(before) is kind and not before), None)
            return (self._edit(node, text),) if text is not None else None
        if self.moves and (edits := self._familiar(leaves)) and self._differs(node, before, edits, made):
            return edits
        leaf = self._choice.choice(leaves)
        edit = self._edit(leaf, repr(self._other(ast.literal_eval(leaf))))
        return (edit,) if self._differs(node, before, (edit,), made) else None

    def _differs(self, node: ast.expr, before: object, edits: Change, made: Callable[[Any], Any] | None = None) -> bool:
        """Return True if the value of a literal, and what is `made` of it, is another one after some edits."""
        first, last = self._span(node)
        moved = [Edit(edit.start - first, edit.end - first, edit.text) for edit in edits]
        changed = _edited(self._content[first:last], moved)
        try:
            after = ast.literal_eval(changed.decode().strip())
            return not (after == before or (made is not None and made(after) == made(before)))
        except (ValueError, TypeError, SyntaxError):
            return False

    def _far_literal(self, node: ast.expr) -> Change | None:
        """Change a literal by more than a comparison that allows for rounding lets pass."""
        leaves = list(_leaves(node))
        if not leaves:
            return self._literal(node)
        leaf = self._choice.choice(leaves)
        number = _number(leaf)
        return self._literal(node) if number is None else self._far_from(leaf, number, 1.0)

    def _one_of(self, nodes: Sequence[ast.expr]) -> Change | None:
        return self._literal(self._choice.choice(nodes))

    def _another_word(self, node: ast.expr, familiar: ChangeMaker | None = None) -> Change | None:
        """Replace a text by one that is found nowhere, which is no word.

        Args:
            node: The text.
            familiar: Falsifies the assertion by nothing that tests do not hold anyway.
        """
        assert isinstance(node, ast.Constant) and isinstance(node.value, str)
        if self.moves == 1 and familiar is not None:
            return familiar()
        return (self._edit(node, repr(self._word(len(node.value)))),)

    def _another_exception(self, node: ast.expr) -> Change:
        return (self._edit(node, self._choice.choice(self._common_exceptions(node) if self.moves else UNRELATED)),)

    def _common_exceptions(self, node: ast.expr) -> Sequence[str]:
        """Return exceptions as tests expect them of which none is a kind of the expected ones, nor they of it."""
        names = [_last_name(part) for part in (node.elts if isinstance(node, ast.Tuple) else [node])]
        expected = [getattr(builtins, name, None) for name in names]
        kinds = [kind for kind in expected if isinstance(kind, type) and issubclass(kind, BaseException)]
        common = COMMON if len(kinds) == len(names) else COMMON_BESIDE_OWN
        words = {word for name in names for word in CAMEL_WORD.findall(name)} - {"Error"}
        return [
            name
            for name in common
            if not words & set(CAMEL_WORD.findall(name))
            and not any(frozenset((name, kind.__name__)) in OFTEN_BOTH for kind in kinds)
            and not any(issubclass(getattr(builtins, name), kind) for kind in kinds)
            and not any(issubclass(kind, getattr(builtins, name)) for kind in kinds)
        ] or UNRELATED

    def _turned(self, test: ast.Compare, number: int) -> Change | None:
        """Turn one order round. Unlike a negation, what answers every question with yes agrees with it."""
        sides = [test.left, *test.comparators]
        first = self._span(sides[number])[1]
        last = self._span(sides[number + 1])[0]
        written, opposite = OPPOSITE[type(test.ops[number])]
        at = self._content.find(written, first, last)
        return None if at < 0 else (Edit(at, at + len(written), opposite),)

    def _familiar(self, leaves: Sequence[ast.expr]) -> Change:
        """Change the constants of a literal by what the test or its file holds; empty where that cannot be.

        Two of them change places, two words of one do, or one becomes another value of the test, or else of its file.
        """
        values = list(map(ast.literal_eval, leaves))
        # what is there twice does not change: it would be equal to what compares as a set
        times = Counter(values)
        once = [i for i, value in enumerate(values) if type(value) in (int, float, str) and times[value] == 1]
        if not once:
            return ()
        at = self._choice.choice(once)
        value = values[at]
        is_move = self._choice.random() < self.moves
        partners = [i for i in once if type(values[i]) is type(value) and not _is_alike(values[i], value)]
        if partners and is_move:
            other = self._choice.choice(partners)
            return tuple(self._edit(leaves[i], repr(values[j])) for i, j in ((at, other), (other, at)))
        if isinstance(value, str) and is_move and (moved := list(_with_words_exchanged(value))):
            return (self._edit(leaves[at], repr(self._choice.choice(moved))),)
        near = self._values_beside.get(id(leaves[at]), self._values)
        for source in (near, self._values) if self._choice.random() < 0.75 else (self._values,):
            some = self._choice.sample(source, min(len(source), MAX_VALUES))
            same_type = [other for other in some if type(other) is type(value)]
            others: list[Any] = [other for other in same_type if not _is_alike(other, value)]
            if isinstance(value, str):
                others = list(_with_another_word(value, same_type))
            if others:
                return (self._edit(leaves[at], repr(self._choice.choice(others))),)
        return ()

    def _other(self, value: Any) -> Any:
        """Return a value of the same type that is not equal to this one."""
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
            return self._other(value.decode("latin-1")).encode("latin-1", "replace")
        if isinstance(value, str):
            places = [i for i, letter in enumerate(value) if letter.isascii() and letter.isalnum()]
            if not places:
                return value + self._word(3)
            at = choice.choice(places)
            return value[:at] + self._letter(value[at]) + value[at + 1 :]
        return choice.randint(3, 97)

    def _letter(self, letter: str) -> str:
        """Return another letter of the same class; two that differ by case only count as one."""
        letters = string.digits if letter.isdigit() else string.ascii_lowercase
        at = letters.index(letter.lower())
        if self._choice.random() < 0.5:
            other = letters[(at + self._choice.choice([-1, 1])) % len(letters)]
        else:
            other = self._choice.choice(letters[:at] + letters[at + 1 :])
        return other.upper() if letter.isupper() else other

    def _word(self, length: int) -> str:
        return "".join(self._choice.choices(string.ascii_lowercase, k=max(SHORTEST_SEARCHED, min(length, 12))))

    def _far_from(self, node: ast.expr, number: float, tolerance: float) -> Change:
        """Replace a number by one that no comparison with such a tolerance lets pass, whatever it is relative to."""
        distance = (abs(number) + 1) * (tolerance + 1) * self._choice.randint(20, 90)
        value = number + self._choice.choice([-1, 1]) * distance
        return (self._edit(node, repr(round(value) if isinstance(number, int) else round(value, 3))),)

    def _beyond(self, node: ast.expr, number: float, tolerance: float) -> Change:
        """Replace a number by one that is farther away than `tolerance`: just so far, or very far."""
        if self.moves:
            near = self._values_beside.get(id(node), self._values)
            others = [v for v in near if type(v) is type(number) and abs(v - number) > 4 * tolerance + 1e-9]
            if others:
                return (self._edit(node, repr(self._choice.choice(others))),)
        value = number + self._choice.choice([-1, 1]) * tolerance * self._choice.randint(4, 9)
        if self._choice.random() < 0.5 or not abs(value - number) > 3 * tolerance > 0:
            return self._far_from(node, number, tolerance)
        return (self._edit(node, repr(value)),)

    def _all_of(
        self, nodes: Sequence[ast.expr], change_one: Callable[[ast.expr], Change | None] | None = None
    ) -> Change | None:
        if self.moves and change_one is None and (change := self._moved_on(nodes)) is not None:
            return change
        changes = [(change_one or self._literal)(node) for node in nodes]
        return None if None in changes else tuple(edit for change in changes if change for edit in change)

    def _moved_on(self, nodes: Sequence[ast.expr]) -> Change | None:
        """Give each row of a column the value of another row; None where a row would keep its own."""
        if len(nodes) < 2 or self._choice.random() >= self.moves:
            return None
        values = [ast.literal_eval(node) for node in nodes]
        step = self._choice.randint(1, len(nodes) - 1)
        others = values[step:] + values[:step]
        if any(type(a) is not type(b) or _is_alike(a, b) for a, b in zip(values, others, strict=True)):
            return None
        return tuple(self._edit(node, repr(other)) for node, other in zip(nodes, others, strict=True))

    def _none_of(self, nodes: Sequence[ast.expr]) -> Change | None:
        """Change all elements of a container so that it holds nothing that it held before."""
        moves = self.moves
        try:
            for attempt in range(ATTEMPTS):
                self.moves = moves if attempt < ATTEMPTS // 2 else 0.0  # there may be too few such values
                change = self._all_of(nodes, self._far_literal)
                if change is not None and self._are_apart(nodes, change):
                    return change
        finally:
            self.moves = moves
        return None

    def _are_apart(self, nodes: Sequence[ast.expr], change: Change) -> bool:
        """Return True if no element is after a change what any was before it."""
        first = self._span(nodes[0])[0]
        last = self._span(nodes[-1])[1]
        before = self._content[first:last]
        after = _edited(before, [Edit(edit.start - first, edit.end - first, edit.text) for edit in change])
        try:
            old, new = (ast.literal_eval(f"[{text.decode()}]") for text in (before, after))
        except (ValueError, SyntaxError):
            return False
        return not any(value in old for value in new)

    def _negated(self, test: ast.expr) -> Change:
        """Negate a condition as people write it."""
        first, last = self._span(test)
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            written = re.match(rb"not\b\s*", self._content[first:last])
            if written:
                return (Edit(first, first + written.end(), b""),)
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and type(test.ops[0]) in NEGATED_OPERATORS:
            written_as, opposite = NEGATED_OPERATORS[type(test.ops[0])]
            start = self._span(test.left)[1]
            end = self._span(test.comparators[0])[0]
            if found := written_as.search(self._content, start, end):
                return (Edit(found.start(), found.end(), opposite),)
        if isinstance(test, ast.Call | ast.Name | ast.Attribute | ast.Subscript):
            return (Edit(first, first, b"not "),)
        return (Edit(first, last, b"not (" + self._content[first:last] + b")"),)

    def _unequal(self, test: ast.Compare) -> Change | None:
        """Falsify that two computed values are equal: with "!=", or by a pair that the second becomes."""
        if self.moves < 1:
            return self._wrapped(test.comparators[0])
        start = self._span(test.left)[1]
        end = self._span(test.comparators[0])[0]
        at = self._content.find(b"==", start, end)
        return None if at < 0 else (Edit(at, at + 2, b"!="),)

    def _unequal_call(self, call: ast.Call) -> Change | None:
        """Falsify a method of unittest by which two computed values are equal."""
        if self.moves == 1 and _last_name(call.func) in ("assertEqual", "assertEquals"):
            return self._renamed(call, "assertNotEqual")
        return self._wrapped(call.args[1])

    def _renamed(self, call: ast.Call, name: str) -> Change | None:
        """Call another method."""
        end = self._span(call.func)[1]
        start = end - len(_last_name(call.func))
        return (Edit(start, end, name.encode()),) if isinstance(call.func, ast.Attribute) else None

    def _wrapped(self, node: ast.expr) -> Change:
        """Make a pair of a value, which it is not equal to. What is equal to everything is equal to the pair too."""
        first, last = self._span(node)
        other = self._choice.choice(self._words) if self._words else repr(self._word(5))
        return (Edit(first, last, b"(" + self._content[first:last] + b", " + other.encode() + b")"),)

    def _false_line(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Change | None:
        """A false assertion of its own before the first statement, for a test without any that can be falsified."""
        body = function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body
        if not body or body[0].lineno == function.lineno:
            return None
        statement = body[0]
        decorated = getattr(statement, "decorator_list", [])
        line = decorated[0].lineno if decorated else statement.lineno
        at = self._starts[line - 1]
        indent = b" " * statement.col_offset
        text = self._content[at : at + statement.col_offset]
        values = self._choice.sample(self._words, 2) if len(self._words) > 1 else ["0", "1"]
        return (Edit(at, at, (text if not text.strip() else indent) + f"assert {values[0]} == {values[1]}\n".encode()),)

    def _false_result(self, call: ast.expr) -> Change:
        """Assert that a call returns what it hardly ever does: a list of two values of the file."""
        first, last = self._span(call)
        values = self._choice.sample(self._words, 2) if len(self._words) > 1 else ["0", "1"]
        return (Edit(first, first, b"assert "), Edit(last, last, f" == [{', '.join(values)}]".encode()))

    def _edit(self, node: ast.expr, text: str) -> Edit:
        first, last = self._span(node)
        return Edit(first, last, text.encode("utf-8", "backslashreplace"))

    def _span(self, node: ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._starts[node.lineno - 1] + node.col_offset, self._starts[node.end_lineno - 1] + node.end_col_offset


def _surely_run(body: Sequence[ast.stmt], is_filled: Callable[[ast.expr], bool]) -> Iterator[ast.stmt]:
    """Yield the statements of a function that are reached whenever it passes, and end it when they raise.

    Args:
        body: The statements.
        is_filled: Tells of an expression that a loop goes over whether it surely has an element.
    """
    for statement in body:
        if isinstance(statement, ast.Return | ast.Raise | ast.Break | ast.Continue):
            return
        yield statement
        if isinstance(statement, ast.With | ast.AsyncWith):
            if not any(_catches(item.context_expr) for item in statement.items):
                yield from _surely_run(statement.body, is_filled)
        elif isinstance(statement, ast.For):
            is_left_early = any(isinstance(node, ast.Break | ast.Continue) for node in ast.walk(statement))
            if not is_left_early and is_filled(statement.iter):
                yield from _surely_run(statement.body, is_filled)
        elif isinstance(statement, ast.Try) and not statement.handlers:
            yield from _surely_run(statement.body, is_filled)
        if _may_leave(statement):
            return


def _catches(context: ast.expr) -> bool:
    """Return True for a context that may take an exception for itself, which is any that is not known."""
    name = _last_name(context).lower()
    return not any(word in name for word in ("warn", "subtest", "open", "patch", "chdir", "temporarydirectory"))


def _may_leave(statement: ast.stmt) -> bool:
    """Return True if a test may end successfully within the statement."""
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            continue
        if isinstance(node, ast.Return):
            return True
        if isinstance(node, ast.Call) and _last_name(node.func) in LEAVING:
            return True
        waiting += ast.iter_child_nodes(node)
    return False


def _is_plain(value: object) -> bool:
    """Return True for a number or a short text that stands in a file, other than 0 and 1, which are equal to bools."""
    if type(value) is int:
        return value not in (0, 1)
    return type(value) is str and 0 < len(value) <= 20 and value.isascii() and value.isprintable()


def _values_in(tree: ast.AST) -> list[Any]:
    """Return the numbers and texts that stand in a part of a file; a number with its sign."""
    signed = [node for node in ast.walk(tree) if isinstance(node, ast.UnaryOp) and _number(node) is not None]
    inner = {id(node.operand) for node in signed}
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in inner]
    values = [*(_number(node) for node in signed), *(node.value for node in constants)]
    return [value for value in values if type(value) in (int, float, str)]


def _in_any_order(values: Sequence[Any]) -> object:
    """Return what two collections of the same elements have in common."""
    return sorted(map(repr, values))


def _is_alike(value: Any, other: Any) -> bool:
    """Return True for equal values, and for texts that differ by case only."""
    if isinstance(value, str) and isinstance(other, str):
        return value.casefold() == other.casefold()
    return bool(value == other)


def _with_words_exchanged(text: str) -> Iterator[str]:
    """Yield the text with two of its words exchanged."""
    words = list(WORD.finditer(text[:MAX_SEARCHED]))[:20]
    for i, a in enumerate(words):
        for b in words[i + 1 :]:
            if a.group().casefold() != b.group().casefold():
                yield text[: a.start()] + b.group() + text[a.end() : b.start()] + a.group() + text[b.end() :]


def _with_another_word(text: str, texts: Sequence[str]) -> Iterator[str]:
    """Yield the text with one of its words replaced by a word of other texts, written as that word was.

    Texts that differ by case only count as one.
    """
    words = sorted({word for other in texts for word in WORD.findall(other[:MAX_SEARCHED])})
    for found in WORD.finditer(text[:MAX_SEARCHED]):
        word = found.group()
        for other in words:
            if other.isdigit() != word.isdigit():
                continue
            written = other
            if word.islower():
                written = other.lower()
            elif word.isupper():
                written = other.upper()
            elif word.istitle():
                written = other.capitalize()
            if written.casefold() != word.casefold():
                yield text[: found.start()] + written + text[found.end() :]


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _is_literal_table(decorator: ast.expr) -> bool:
    """Return True for @parametrize with values that stand there, and for any other decorator."""
    if not isinstance(decorator, ast.Call) or _last_name(decorator.func) != "parametrize":
        return True
    table = decorator.args[1] if len(decorator.args) > 1 else None
    if not isinstance(table, ast.List | ast.Tuple):
        return False
    rows = [row.args if isinstance(row, ast.Call) and _last_name(row) == "param" else [row] for row in table.elts]
    return all(_is_literal(value) for row in rows for value in row)


def _is_searchable(node: ast.expr) -> bool:
    """Return True for a text of which a changed copy is surely found nowhere."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) >= SHORTEST_SEARCHED


def _leaves(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the constants of a literal whose change changes its value: of a dict, the values."""
    if isinstance(node, ast.Constant | ast.UnaryOp):  # a sign is part of its number
        yield node
    elif isinstance(node, ast.Dict):
        for value in node.values:
            yield from _leaves(value)
    elif isinstance(node, ast.List | ast.Tuple | ast.Set):
        for element in node.elts:
            yield from _leaves(element)


def _cells(names: Sequence[str], rows: Sequence[ast.expr], name: str) -> list[ast.expr] | None:
    """Return the cells of a table in the column `name`; None where one is no literal."""
    if name not in names:
        return None
    at = names.index(name)
    cells: list[ast.expr] = []
    for row in rows:
        values: Sequence[ast.expr] = [row]
        if isinstance(row, ast.Call) and _last_name(row.func) == "param":
            values = row.args
        elif len(names) > 1:
            values = row.elts if isinstance(row, ast.Tuple | ast.List) else []
        if at >= len(values) or not _is_literal(values[at]):
            return None
        cells.append(values[at])
    return cells or None


def _names(target: ast.expr) -> list[str]:
    """Return the names that a loop binds, in their order."""
    targets = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
    return [t.id if isinstance(t, ast.Name) else "" for t in targets]


def _number(node: ast.expr | None) -> int | float | None:
    try:
        value = ast.literal_eval(node) if node is not None else None
    except (ValueError, TypeError):
        return None
    return value if type(value) in (int, float) else None


def _keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        node = node.func
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _functions_in(contents: Iterator[bytes]) -> set[str]:
    """Return the functions of files, in a form that does not depend on where they stand."""
    found: set[str] = set()
    for content in contents:
        try:
            tree = ast.parse(content.decode())
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        found |= {ast.dump(n) for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
    return found


def _overlap(change: Change, taken: Sequence[Edit]) -> bool:
    return any(new.start < old.end and old.start < new.end for new in change for old in taken)


def _edited(content: bytes, edits: Sequence[Edit]) -> bytes:
    for edit in sorted(edits, key=lambda e: e.start, reverse=True):
        content = content[: edit.start] + edit.text + content[edit.end :]
    return content
