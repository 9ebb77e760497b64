"""Find the assertions of a test, and for each the change that falsifies it.

    a test -> the statements that are reached (reached.py) -> their assertions:

        assert ..., and its parts joined by `and`
        self.assertEqual(...), mock.assert_called_with(...), np.testing.assert_allclose(...)
        with pytest.raises(...), pytest.warns(...), self.assertRaises(...)

A change of the expected value is preferred to a negation: it also catches an object that claims to be equal to
everything. The expected value is a literal, or a name that stands for literals: a parameter, a constant, a loop over a
table.
"""

from __future__ import annotations

import ast
import builtins
import random
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

from .changes import OPPOSITE, UNRELATED, Changes
from .parsed_file import Change, ParsedFile
from .reached import LEAVING, called_functions, reached_statements
from .syntax import Function, argument, bound_names, column_of, is_literal, is_searchable, last_name, number_of

ChangeMaker = Callable[[Changes], Change | None]
"""Makes a change of one assertion, with new random values each time; None if the available values do not allow it."""
PURE: Mapping[str, Callable[[Any], Any] | None] = {
    **{kind.__name__: kind for kind in (set, frozenset, list, tuple, bytes, bytearray, complex, Counter)},
    **{kind.__name__: kind for kind in (Decimal, Fraction)},
    **dict.fromkeys(("date", "datetime", "timedelta", "deque")),
    **dict.fromkeys(("Path", "PurePath", "PurePosixPath")),
}
"""Constructors whose values differ when their first argument does; a callable says whether they do."""
DEFAULT_RELATIVE_TOLERANCE = 1e-6
"""Relative tolerance of pytest.approx."""
DEFAULT_ABSOLUTE_TOLERANCE = 1e-12
"""Absolute tolerance of pytest.approx."""
EQUAL_METHODS = frozenset(
    {
        "assertEqual",
        "assertEquals",
        "assertListEqual",
        "assertTupleEqual",
        "assertDictEqual",
        "assertSetEqual",
        "assertSequenceEqual",
        "assertMultiLineEqual",
        "assertCountEqual",
    }
)
ALMOST_METHODS = frozenset({"assertAlmostEqual", "assertAlmostEquals"})
CALL_METHODS = frozenset({"assert_called_with", "assert_called_once_with", "assert_awaited_with"})
"""Methods of a mock that check the arguments of its calls."""
RAISES = ("raises", "assertRaises", "assertRaisesRegex")
"""Functions that expect an exception, used as a context or called."""
EQUAL_FUNCTION = re.compile(
    r"assert_?(array_|frame_|series_)?(equal|almost|approx|allclose|same|is_equal)", re.IGNORECASE
)
"""Functions that compare an actual and an expected value, including those of numpy's testing module."""


class AssertionFinder:
    """Finds the changes that falsify the tests of one file."""

    def __init__(self, file: ParsedFile, choice: random.Random, of_fixtures: Collection[str]) -> None:
        """Create a finder.

        Args:
            file: The file.
            choice: Decides where an assertion can be falsified in several places.
            of_fixtures: Arguments of fixtures. A test's parameter of such a name is the fixtures' too, so what they
                make changes with it.
        """
        self._of_fixtures = of_fixtures
        self._file = file
        self._choice = choice
        self._trial = Changes(file, choice)
        """Shows whether a change can be made at all."""

    def change_makers(self, function: Function) -> list[ChangeMaker]:
        """Return the ways to falsify a test: one for each of its assertions.

        A test without assertions of its own uses those of the helper functions of its file that it calls, then its
        calls (each is asserted to return a false result), and at last a false assertion before its first line.
        """
        change_makers = self._of_assertions(function)
        if not change_makers:
            helpers = [self._file.helpers.get(name) for name in called_functions(self._file, function)]
            change_makers = [maker for helper in helpers if helper for maker in self._of_assertions(helper)]
        if not change_makers:
            change_makers = self._of_calls(function)
        return change_makers or [partial(Changes.insert_false_assertion, function=function)]

    def _of_assertions(self, function: Function) -> list[ChangeMaker]:
        return [
            change_maker
            for statement in reached_statements(self._file, function)
            for change_maker in self._of_statement(statement, function)
            if change_maker(self._trial) is not None
        ]

    def _of_calls(self, function: Function) -> list[ChangeMaker]:
        """Return changes for a test that asserts nothing: one for each reached call that is a statement."""
        return [
            partial(Changes.assert_false_result, call=statement.value)
            for statement in reached_statements(self._file, function)
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call | ast.Await)
            if last_name(statement.value) not in LEAVING
        ]

    def _of_statement(self, statement: ast.stmt, function: Function) -> Iterator[ChangeMaker]:
        if isinstance(statement, ast.Assert):
            yield from self._of_condition(statement.test, function)
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            yield from self._of_method(statement.value, function)
        elif isinstance(statement, ast.With | ast.AsyncWith):
            for item in statement.items:
                if isinstance(item.context_expr, ast.Call):
                    yield from self._of_context(item.context_expr)

    # Conditions

    def _of_condition(self, test: ast.expr, function: Function) -> Iterator[ChangeMaker]:
        """Yield changes of a condition that is true."""
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            for value in test.values:
                yield from self._of_condition(value, function)
            return
        change_maker = self._of_compared_value(test, function)
        if change_maker is not None and change_maker(self._trial) is not None:
            yield change_maker
        else:
            yield partial(Changes.negate, test=test)

    def _of_compared_value(self, test: ast.expr, function: Function) -> ChangeMaker | None:
        """Return a change of the value that the condition compares with; None if only its negation falsifies it."""
        if isinstance(test, ast.Call) and last_name(test.func) == "isclose" and len(test.args) == 2:
            return self._of_distance(test.args, number_of(argument(test, "abs_tol")) or 0.0)
        if not isinstance(test, ast.Compare):
            return None
        if len(test.ops) > 1:
            orders = [i for i, operator in enumerate(test.ops) if type(operator) in OPPOSITE]
            if not orders:
                return None
            return partial(Changes.reverse_order, test=test, number=self._choice.choice(orders))
        operator = test.ops[0]
        left = test.left
        right = test.comparators[0]
        if isinstance(operator, ast.Eq):
            return self._of_equality(left, right, function) or partial(Changes.make_unequal, test=test)
        if isinstance(operator, ast.Is):
            return self._of_identity(left, right, function)
        if type(operator) in OPPOSITE:
            tolerance = self._of_tolerance(operator, left, right)
            return tolerance or partial(Changes.reverse_order, test=test, number=0)
        if isinstance(operator, ast.In):
            return self._of_membership(left, right, partial(Changes.negate, test=test))
        return None

    def _of_equality(self, left: ast.expr, right: ast.expr, function: Function) -> ChangeMaker | None:
        return self._of_expected(right, function) or self._of_expected(left, function)

    def _of_identity(self, left: ast.expr, right: ast.expr, function: Function) -> ChangeMaker | None:
        """Return a change of a name. `is True` and `is None` become `is not True` and `is not None` instead."""
        for side in (right, left):
            change_maker = self._of_expected(side, function)
            if change_maker is not None and isinstance(side, ast.Name):
                return change_maker
        return None

    def _of_tolerance(self, operator: ast.cmpop, left: ast.expr, right: ast.expr) -> ChangeMaker | None:
        """Return a change of the expected number in a condition such as `abs(x - 744) < 1e-6`."""
        if isinstance(operator, ast.Lt | ast.LtE):
            distance = left
            tolerance = number_of(right)
        else:
            distance = right
            tolerance = number_of(left)
        if not isinstance(distance, ast.Call) or last_name(distance.func) != "abs" or len(distance.args) != 1:
            return None
        difference = distance.args[0]
        if tolerance is None or not isinstance(difference, ast.BinOp) or not isinstance(difference.op, ast.Sub):
            return None
        for side in (difference.right, difference.left):
            number = number_of(side)
            if number is not None:
                return partial(Changes.move_beyond, node=side, number=number, tolerance=tolerance)
        return None

    def _of_distance(self, sides: Sequence[ast.expr], tolerance: float) -> ChangeMaker | None:
        """Return a change of the number among two values that are compared with a tolerance."""
        for side in reversed(sides):
            number = number_of(side)
            if number is not None:
                return partial(Changes.move_far, node=side, number=number, tolerance=tolerance)
        return None

    def _of_membership(self, left: ast.expr, right: ast.expr, opposite: ChangeMaker) -> ChangeMaker | None:
        """Return a change of the text that is looked for, or of all elements of the container."""
        if is_searchable(left):
            return partial(Changes.replace_text, node=left, opposite=opposite)
        if isinstance(right, ast.Tuple | ast.List | ast.Set) and right.elts and all(map(is_literal, right.elts)):
            return partial(Changes.replace_all_elements, nodes=right.elts)
        return None

    # Methods and contexts

    def _of_method(self, call: ast.Call, function: Function) -> Iterator[ChangeMaker]:
        """Yield changes of a call that asserts something: of unittest, of a mock, of numpy, or `pytest.raises(...)`."""
        name = last_name(call.func)
        if any(isinstance(value, ast.Starred) for value in call.args):
            return
        if name in RAISES:
            yield from self._of_context(call)
            return
        if name in CALL_METHODS:
            values = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg)]
            yield from (partial(Changes.change_literal, node=value) for value in values if is_literal(value))
            return
        if name == "assert_any_call":
            yield from self._of_any_call([*call.args, *(keyword.value for keyword in call.keywords if keyword.arg)])
            return
        if name in ("assertTrue", "assertFalse") and call.args:
            yield partial(Changes.negate, test=call.args[0])
            return
        if len(call.args) < 2:
            return
        change_maker = self._of_two_arguments(name, call, function)
        if change_maker is not None:
            yield change_maker

    def _of_any_call(self, values: Sequence[ast.expr]) -> Iterator[ChangeMaker]:
        """Yield changes to values that no other call of the mock had: close or familiar ones may be those of one."""
        for value in values:
            number = number_of(value)
            if number is not None:
                yield partial(Changes.move_far, node=value, number=number, tolerance=0.0)
            elif isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield partial(Changes.replace_text, node=value)

    def _of_two_arguments(self, name: str, call: ast.Call, function: Function) -> ChangeMaker | None:
        """Return a change of a call that compares its first two arguments."""
        actual, expected = call.args[:2]
        if name == "assertCountEqual" and is_literal(expected):
            return partial(Changes.change_literal, node=expected, view=_in_any_order)
        if name in EQUAL_METHODS:
            return self._of_equality(actual, expected, function) or partial(Changes.make_call_unequal, call=call)
        if name in ALMOST_METHODS and argument(call, "delta") is None:
            return self._of_distance((actual, expected), 1.0)
        if name == "assertIn":
            return self._of_membership(actual, expected, partial(Changes.rename_method, call=call, name="assertNotIn"))
        if EQUAL_FUNCTION.match(name) and is_literal(expected):
            return partial(Changes.change_literal_far, node=expected, view=_in_any_order)
        return None

    def _of_context(self, call: ast.Call) -> Iterator[ChangeMaker]:
        """Yield changes of `pytest.raises`, `pytest.warns` and `assertRaises`, used as a context or called."""
        name = last_name(call.func)
        pattern = argument(call, "match")
        if name == "assertRaisesRegex" and len(call.args) >= 2:
            pattern = call.args[1]
        opposite = None
        if name in RAISES and call.args:
            expected = call.args[0]
            names = {node.id for node in ast.walk(expected) if isinstance(node, ast.Name)}
            if not all(hasattr(builtins, name) for name in names):  # a parameter may be any error of the file
                names |= self._file.loads.keys() & {"KeyboardInterrupt"}
            # These catch the exceptions that would replace them. An interrupt that nobody catches ends pytest.
            if not names & {"Exception", "BaseException", "ArithmeticError", "KeyboardInterrupt", *UNRELATED}:
                opposite = partial(Changes.replace_exception, node=expected)
        if name in ("raises", "warns", "assertRaisesRegex") and pattern is not None and is_searchable(pattern):
            yield partial(Changes.replace_text, node=pattern, opposite=opposite)
        if opposite is not None:
            yield opposite

    # Expected values

    def _of_expected(self, node: ast.expr, function: Function) -> ChangeMaker | None:
        """Return a change of an expression to one that no equal value equals; None if the expression is computed."""
        if is_literal(node):
            return partial(Changes.change_literal, node=node)
        if isinstance(node, ast.Call) and node.args:
            name = last_name(node.func)
            if name == "approx":
                return self._of_approx(node)
            if name in PURE and all(map(is_literal, node.args)) and not node.keywords:
                return partial(Changes.change_literal, node=node.args[0], view=PURE[name])
        if isinstance(node, ast.Name):
            return self._of_name(node.id, function)
        return None

    def _of_approx(self, call: ast.Call) -> ChangeMaker | None:
        """Return a change of the value of `pytest.approx(value, ...)`."""
        expected = call.args[0]
        number = number_of(expected)
        if number is not None and len(call.args) == 1 and not call.keywords:
            tolerance = max(abs(number) * DEFAULT_RELATIVE_TOLERANCE, DEFAULT_ABSOLUTE_TOLERANCE)
            return partial(Changes.move_beyond, node=expected, number=number, tolerance=tolerance)
        tolerance = max(number_of(argument(call, name)) or 0.0 for name in ("rel", "abs"))
        if number is not None:
            return partial(Changes.move_far, node=expected, number=number, tolerance=tolerance)
        if is_literal(expected) and tolerance <= 1:
            return partial(Changes.change_literal_far, node=expected)
        return None

    def _of_name(self, name: str, function: Function) -> ChangeMaker | None:
        """Return a change of the literals that a name stands for, provided that the name is used nowhere else."""
        uses = [node for node in ast.walk(function) if isinstance(node, ast.Name) and node.id == name]
        if sum(isinstance(use.ctx, ast.Load) for use in uses) != 1:
            return None
        stores = sum(isinstance(use.ctx, ast.Store) for use in uses)
        if stores == 0:
            return self._of_parameter(name, function) or self._of_constant(name)
        return self._of_variable(name, function) if stores == 1 else None

    def _of_parameter(self, name: str, function: Function) -> ChangeMaker | None:
        if name in self._of_fixtures:
            return None
        for decorator in function.decorator_list:
            column = self._file.parameter_column(decorator, name)
            if column is not None:
                return partial(Changes.change_all, nodes=column)
        return None

    def _of_constant(self, name: str) -> ChangeMaker | None:
        value = self._file.constants.get(name)
        if value is None or not is_literal(value) or self._file.loads[name] != 1:
            return None
        return partial(Changes.change_literal, node=value)

    def _of_variable(self, name: str, function: Function) -> ChangeMaker | None:
        """Return a change of what a test assigns to a name, or of the table over which it loops."""
        for statement in reached_statements(self._file, function):
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                target = statement.targets[0]
                if isinstance(target, ast.Name) and target.id == name and is_literal(statement.value):
                    return partial(Changes.change_literal, node=statement.value)
            if isinstance(statement, ast.For):
                rows = self._file.rows(statement.iter)
                column = column_of(name, bound_names(statement.target), rows) if rows else None
                if column is not None:
                    return partial(Changes.change_any, nodes=column)
        return None


def _in_any_order(value: object) -> object:
    """Return the letters of a value, so that neither the order of its elements nor that of their words counts."""
    return sorted(repr(value))
