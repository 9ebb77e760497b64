"""A test file: its syntax tree, what it contains, and where each node is in its bytes."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .syntax import Function, argument, column_of, is_fixture, last_name, values_in

COMMENT = re.compile(rb"#[^\n]*")
MAX_FILE_BYTES = 2 << 20
"""Bytes of the largest test file that is changed. Larger ones are tables of data."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A part of a file's bytes, and its replacement."""

    start: int
    end: int
    text: bytes


Change = tuple[Edit, ...]
"""Edits that together falsify one assertion."""


def overlap(change: Change, earlier_edits: Sequence[Edit]) -> bool:
    """Return True if a change replaces bytes that an earlier edit replaces as well."""
    return any(new.start < old.end and old.start < new.end for new in change for old in earlier_edits)


def edited(content: bytes, edits: Sequence[Edit]) -> bytes:
    """Return the content after edits that do not overlap."""
    # From the end, so that the offsets of the edits before it stay right.
    for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
        content = content[: edit.start] + edit.text + content[edit.end :]
    return content


class ParsedFile:
    """A test file.

    Attributes:
        content: Its bytes.
        constants: Name -> value of what the module assigns once, at its top level.
        attributes: Name -> value of what exactly one class of the file assigns in its body.
        helpers: Name -> function that is no test and no fixture, and has a name of its own.
        loads: How often each name is read.
        values: All numbers and texts of the file.
        plain_literals: Numbers and short texts of the file, as Python writes them.
    """

    def __init__(self, content: bytes, tree: ast.Module) -> None:
        self.content = content
        self._tree = tree
        self._line_starts = [0]
        for line in content.split(b"\n"):
            self._line_starts.append(self._line_starts[-1] + len(line) + 1)
        nodes = list(ast.walk(tree))
        names = [node for node in nodes if isinstance(node, ast.Name)]
        self.loads = Counter(name.id for name in names if isinstance(name.ctx, ast.Load))
        stores = Counter(name.id for name in names if isinstance(name.ctx, ast.Store))
        single = [node for node in tree.body if not isinstance(node, ast.Assign) or len(node.targets) == 1]
        self.constants = {name: value for name, value in _assignments(single) if stores[name] == 1}
        classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
        attributes = [pair for class_def in classes for pair in _assignments(class_def.body)]
        attribute_counts = Counter(name for name, _ in attributes)
        self.attributes = {name: value for name, value in attributes if attribute_counts[name] == 1}
        functions = [node for node in nodes if isinstance(node, Function)]
        function_counts = Counter(function.name for function in functions)
        self.helpers = {
            function.name: function
            for function in functions
            if function_counts[function.name] == 1 and _is_helper(function)
        }
        self.values = values_in(tree)
        self._values_beside: dict[int, list[Any]] = {}
        """Identity of a node -> the values of the test that holds it."""
        for function in functions:
            test_values = values_in(function)
            self._values_beside |= {id(node): test_values for node in ast.walk(function) if isinstance(node, ast.expr)}
        constants = [node.value for node in nodes if isinstance(node, ast.Constant)]
        self.plain_literals = sorted({repr(value) for value in constants if _is_plain(value)})

    @classmethod
    def of(cls, content: bytes) -> ParsedFile | None:
        """Parse a file.

        Returns:
            The file; None if it is not Python, is too large, or has line ends that Python and `split` count
            differently.
        """
        if len(content) > MAX_FILE_BYTES or content.startswith(b"\xef\xbb\xbf"):
            return None
        # A lone carriage return ends a line for the parser, but not for split(b"\n").
        if content.count(b"\r") != content.count(b"\r\n"):
            return None
        try:
            return cls(content, ast.parse(content.decode()))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None

    def tests(self) -> Iterator[tuple[str, Function, bool]]:
        """Yield (name below the file as pytest writes it, function, whether pytest finds it by its usual rules)."""
        yield from self._tests_in(self._tree.body, "", True)

    def _tests_in(self, body: Sequence[ast.stmt], above: str, is_plain: bool) -> Iterator[tuple[str, Function, bool]]:
        for statement in body:
            if isinstance(statement, ast.ClassDef):
                name = f"{above}{statement.name}::"
                yield from self._tests_in(statement.body, name, is_plain and _is_plain_class(statement))
            elif isinstance(statement, Function) and _is_test(statement):
                is_property = any("property" in last_name(decorator) for decorator in statement.decorator_list)
                yield above + statement.name, statement, is_plain and not is_property

    def span(self, node: ast.expr) -> tuple[int, int]:
        """Return where a node begins and ends, in bytes."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        start = self._line_starts[node.lineno - 1] + node.col_offset
        end = self._line_starts[node.end_lineno - 1] + node.end_col_offset
        return start, end

    def operator(self, left: ast.expr, right: ast.expr, written: re.Pattern[bytes]) -> tuple[int, int] | None:
        """Return where the operator between two nodes begins and ends, in bytes; None if it is written otherwise."""
        start, end = self.span(left)[1], self.span(right)[0]
        without_comments = COMMENT.sub(lambda comment: b" " * len(comment[0]), self.content[start:end])
        found = written.search(without_comments)
        return (start + found.start(), start + found.end()) if found else None

    def line_start(self, line: int) -> int:
        """Return where a line begins, in bytes; the first line is 1."""
        return self._line_starts[line - 1]

    def replace(self, node: ast.expr, text: str) -> Edit:
        """Return the edit that replaces a node."""
        start, end = self.span(node)
        return Edit(start, end, text.encode("utf-8", "backslashreplace"))

    def values_beside(self, node: ast.expr) -> list[Any]:
        """Return the numbers and texts of the test that holds a node; of the file if none does."""
        return self._values_beside.get(id(node), self.values)

    def rows(self, node: ast.expr) -> list[ast.expr] | None:
        """Return the elements of a table that is written here, or in a constant of the module that is used once."""
        if isinstance(node, ast.Name) and self.loads[node.id] == 1:
            node = self.constants.get(node.id, node)
        return list(node.elts) if isinstance(node, ast.List | ast.Tuple) else None

    def parameter_column(self, decorator: ast.expr, name: str) -> list[ast.expr] | None:
        """Return the values that @parametrize gives to `name`, one for each row; None if they are not literals."""
        if not isinstance(decorator, ast.Call) or last_name(decorator.func) != "parametrize":
            return None
        if len(decorator.args) != 2 or argument(decorator, "indirect") is not None:
            return None
        try:
            parameter_names = ast.literal_eval(decorator.args[0])
        except ValueError:
            return None
        if isinstance(parameter_names, str):
            parameter_names = [part.strip() for part in parameter_names.split(",")]
        rows = self.rows(decorator.args[1])
        return column_of(name, [parameter for parameter in parameter_names if parameter], rows) if rows else None


def _assignments(body: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    """Yield (name, value) of the assignments to a name; of `a = b = 1` only the first."""
    for statement in body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            yield statement.targets[0].id, statement.value


def _is_test(function: Function) -> bool:
    return function.name.startswith("test") and not is_fixture(function)


def _is_plain_class(class_def: ast.ClassDef) -> bool:
    """Return True for a class whose tests pytest finds by its usual rules: it says nothing else, and has no
    constructor."""
    names = {name for name, _ in _assignments(class_def.body)}
    names |= {statement.name for statement in class_def.body if isinstance(statement, Function)}
    return class_def.name.startswith("Test") and not names & {"__test__", "__init__", "__new__"}


def _is_helper(function: Function) -> bool:
    """Return True for a function that runs when it is called, and is no test."""
    is_generator = any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(function))
    return not function.name.startswith("test") and not function.decorator_list and not is_generator


def _is_plain(value: object) -> bool:
    """Return True for a number or a short text of a file, other than 0 and 1, which equal False and True."""
    if type(value) is int:
        return value not in (0, 1)
    return type(value) is str and 0 < len(value) <= 20 and value.isascii() and value.isprintable()
