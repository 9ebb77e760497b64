"""Read values from the source of a script without running it.

Names are followed to what is assigned to them, in the script and in modules beside it. What only a run can tell is
UNKNOWN.
"""

from __future__ import annotations

import ast
import operator
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .definitions import Definitions
from .syntax import Tests, bindings, called, has_target_in, put_into, root_name, statements

UNKNOWN = object()
"""The value of an expression that only a run can tell."""
MAX_DEPTH = 20
"""Expressions inside one another that are followed."""
DEPENDS_ON_RUN = "depends on what only a run can tell. It is taken in: leave it out of the recipe if the run had not."
CONFIGS = ("GRPOConfig", "RLOOConfig", "SFTConfig", "AsyncGRPOConfig")
LOADERS = ("from_pretrained", "from_config", "get_peft_model", "prepare_model_for_kbit_training")
"""Functions whose first argument is a model or a tokenizer, or its name."""
MODEL_KEYWORDS = ("model_name", "pretrained_model_name_or_path", "model_name_or_path", "model")
"""What a loader calls its first argument."""
MOVES = ("to", "cuda", "bfloat16", "half", "float", "eval", "train")
"""Methods of a model that give the model itself."""
CASTS: dict[str, Callable[[Any], Any]] = {"int": int, "float": float, "str": str, "bool": bool}
CHANGES = ("update", "setdefault", "pop", "popitem", "clear", "append", "extend", "insert", "remove")
"""Methods that change a table or a list."""
ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
}
ENVIRONMENT = ("os.environ.get", "os.getenv", "getenv", "environ.get")
"""Functions that read a variable of the environment."""


def literal(node: ast.expr) -> Any:
    """Return the value of a literal; UNKNOWN for anything else."""
    try:
        return ast.literal_eval(node)
    except (ValueError, SyntaxError, TypeError):
        return UNKNOWN


def _computed(node: ast.BinOp, left: Any, right: Any) -> Any:
    """Return the value of an operator between two values; UNKNOWN where it has none."""
    if isinstance(node.op, ast.Add) and type(left) is type(right) and isinstance(left, str | list):
        return left + right
    if not isinstance(left, int | float) or not isinstance(right, int | float):
        return literal(node)  # 1 + 2j
    try:
        return ARITHMETIC[type(node.op)](left, right)
    except ArithmeticError:
        return UNKNOWN


def _compared(sign: ast.cmpop, left: Any, right: Any) -> Any:
    """Return the value of a comparison of two values; UNKNOWN where it has none."""
    if left is UNKNOWN or right is UNKNOWN:
        return UNKNOWN
    try:
        return COMPARISONS[type(sign)](left, right)
    except TypeError:
        return UNKNOWN


class SourceReader(Definitions):
    """Evaluates what literals and names of a script can tell."""

    def __init__(self, tree: ast.Module, flags: dict[str, Any], directory: Path = Path()) -> None:
        """Take a script's tree.

        Args:
            tree: The script.
            flags: The values of its arguments, by name; UNKNOWN where there is none.
            directory: Where modules beside the script are found.
        """
        super().__init__(tree, directory)
        self.flags = flags
        self.notes: list[str] = []
        """What reading could not tell for certain, a sentence each."""
        self.assigned: dict[str, ast.expr] = {}
        """The last value that each name is given."""
        self._values: dict[str, list[tuple[int, ast.expr, Tests]]] = {}
        """All values that each name is given, each with the last line of the statement and the conditions of it, in the
        order of the lines."""
        self._depth = 0
        """How many expressions the one that is being evaluated is inside of."""
        self._deciding: set[int] = set()
        """Ids of the conditions that are being evaluated, whose own names may be set under them."""
        self._parameters = self._bound_parameters()
        """Lines of each function that the script calls in one place, with what its parameters are given there."""
        self._truths: dict[int, bool | None] = {}
        """Id of a condition -> whether it holds, of those that were evaluated on their own."""
        self._statements = sorted(statements(tree.body, into_functions=True), key=lambda pair: pair[0].lineno)
        for statement, tests in self._statements:
            self._remember(statement, tests)

    def _remember(self, statement: ast.stmt, tests: Tests) -> None:
        """Remember what a statement gives to names."""
        match statement:
            case ast.Assign(targets=[target], value=value):
                self._assign(target, value, statement, tests)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, value, statement, tests)

    def _bound_parameters(self) -> list[tuple[range, dict[str, ast.expr]]]:
        """Return the lines of each function at the top level that is called in one place, with its parameters."""
        calls = [n for n in ast.walk(self.tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
        bound = []
        for function in (n for n in self.tree.body if isinstance(n, ast.FunctionDef)):
            of_it = [call for call in calls if called(call) == function.name]
            if len(of_it) == 1 and not any(node is of_it[0] for node in ast.walk(function)):
                lines = range(function.lineno, (function.end_lineno or function.lineno) + 1)
                bound.append((lines, bindings(function, of_it[0])))
        return bound

    def _assign(self, target: ast.expr, value: ast.expr, statement: ast.stmt, tests: Tests) -> None:
        """Remember what a name is given; of `a, b = f()` the first is what a loader of models returns."""
        match target, value:
            case ast.Name() | ast.Attribute(), _:  # an attribute goes by its source, self.rewards
                self._give(ast.unparse(target), value, statement.end_lineno or statement.lineno, tests)
            case ast.Tuple(elts=targets), ast.Tuple(elts=values) if len(targets) == len(values):
                for part, part_value in zip(targets, values, strict=True):
                    self._assign(part, part_value, statement, tests)
            case ast.Tuple(elts=[first, *_]), ast.Call() if called(value) in LOADERS:
                self._assign(first, value, statement, tests)

    def _give(self, name: str, value: ast.expr, line: int, tests: Tests) -> None:
        self.assigned[name] = value
        self._values.setdefault(name, []).append((line, value, tests))

    def given(self, name: ast.Name | ast.Attribute) -> ast.expr | None:
        """Return what a name or an attribute holds where it is used: the last value above it, or else the last one.

        A value that is given under a condition which does not hold is none. A parameter of a function that is called in
        one place holds what it is given there.
        """
        source = ast.unparse(name)
        values = self._values.get(source, [])
        for lines, parameters in self._parameters:
            if source not in parameters:
                continue
            if name.lineno in lines:
                inside = [(v, tests) for line, v, tests in values if lines.start <= line < name.lineno]
                return next((v for v, tests in reversed(inside) if self.may_hold(tests)), parameters[source])
            values = [value for value in values if value[0] not in lines]  # a name of that function alone
        above = [(value, tests) for line, value, tests in values if line < name.lineno]
        below = [(value, tests) for line, value, tests in values if line >= name.lineno]
        for value, tests in [*reversed(above), *reversed(below)]:
            if self.may_hold(tests):
                return value
        return None

    def may_hold(self, tests: Tests) -> bool:
        """Return False if one of the conditions is known not to hold."""
        return all(self._truth(test) is not False for test in tests)

    def _truth(self, test: ast.expr) -> bool | None:
        """Return whether a condition holds; None if only a run can tell, or if the answer depends on itself."""
        if id(test) in self._truths:
            return self._truths[id(test)]
        if id(test) in self._deciding:
            return None
        self._deciding.add(id(test))
        try:
            value = self.value(test)
        finally:
            self._deciding.remove(id(test))
        truth = None if value is UNKNOWN else bool(value)
        if not self._deciding:
            self._truths[id(test)] = truth
        return truth

    def chosen(self, node: ast.expr | None) -> ast.expr | None:
        """Return the expression that names and conditional expressions lead to.

        Of a condition that only a run can tell it is the part that is not None, and `notes` says so.
        """
        for _ in range(MAX_DEPTH):
            if isinstance(node, ast.Name) and (held := self.given(node)) is not None:
                node = held
            elif isinstance(node, ast.IfExp):
                truth = self._truth(node.test)
                if truth is None:
                    self.notes.append(f"line {node.lineno}: {ast.unparse(node)[:120]} {DEPENDS_ON_RUN}")
                    body_is_none = isinstance(node.body, ast.Constant) and node.body.value is None
                    truth = not body_is_none
                node = node.body if truth else node.orelse
            else:
                break
        return node

    def source(self, node: ast.expr | None) -> str:
        """Return the source of an expression, that of the last assignment where it is a name."""
        if isinstance(node, ast.Name) and node.id in self.assigned:
            node = self.assigned[node.id]
        return "" if node is None else ast.unparse(node)

    def held_by(self, name: str) -> str:
        """Return the source of a lambda, or of a call of the script's own, that a name inside of a function holds.

        Empty where it holds nothing of the kind.
        """
        held = self.assigned.get(name)
        if held is None or not (isinstance(held, ast.Lambda) or self.called_with_own(ast.unparse(held))):
            return ""
        return ast.unparse(held)

    def with_values(self, source: str) -> str:
        """Return the source of an expression with values in the place of attributes that reading tells."""
        return ast.unparse(_WithValues(self).visit(ast.parse(source, mode="eval").body))

    def is_dropped(self, call: ast.Call) -> bool:
        """Return True for a call whose value only goes to names that nothing reads."""
        names = {name for name, values in self._values.items() if any(value is call for _, value, _ in values)}
        expressions = (node for node in ast.walk(self.tree) if isinstance(node, ast.Name | ast.Attribute))
        return bool(names) and not any(
            isinstance(node.ctx, ast.Load) and ast.unparse(node) in names for node in expressions
        )

    def arguments(self, call: ast.Call, positions: Sequence[str]) -> dict[str, ast.expr]:
        """Return the arguments of a call by name, those by position included."""
        found: dict[str, ast.expr] = dict(zip(positions, call.args, strict=False))
        return found | {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}

    def keywords(self, call: ast.Call) -> dict[str, Any]:
        """Return the arguments of a call by name, `**table` included where reading tells what it holds."""
        values: dict[str, Any] = {}
        for keyword in call.keywords:
            value = self.value(keyword.value)
            if keyword.arg is not None:
                values[keyword.arg] = value
            elif isinstance(value, dict):
                values |= value
            elif called(call) in (*self.kinds(CONFIGS), "LoraConfig"):
                self.notes.append(
                    f"line {call.lineno}: {called(call)}(**{ast.unparse(keyword.value)}): only a run can tell what it"
                    " holds. Its arguments are left at TRL's defaults: correct the recipe."
                )
        return values

    def module_beside(self, name: str) -> SourceReader | None:
        """Return a reader of a module beside the script; None where there is none, or none that is Python."""
        path = self.local_module(name)
        if path is None:
            return None
        try:
            return SourceReader(ast.parse(path.read_text(encoding="utf-8-sig")), {}, self.directory)
        except (OSError, UnicodeDecodeError, SyntaxError):
            return None

    def trees(self) -> list[ast.Module]:
        """Return the script's tree, and those of the modules beside it that it imports names from."""
        sources = {n.module or "" for n in ast.walk(self.tree) if isinstance(n, ast.ImportFrom)}
        readers = map(self.module_beside, sorted(sources))
        return [self.tree, *(reader.tree for reader in readers if reader is not None)]

    def calls(self) -> list[ast.Call]:
        """Return the calls that a run may make, in the order of their lines.

        Those under a condition that is known not to hold are left out.
        """
        found = [
            call for statement, tests in self._statements if self.may_hold(tests) for call in self._calls_in(statement)
        ]
        return sorted(found, key=lambda call: call.lineno)

    def _calls_in(self, node: ast.AST) -> Iterator[ast.Call]:
        """Yield the calls in a statement's own expressions, without those of a branch that is not taken."""
        if isinstance(node, ast.Call):
            yield node
        parts: Iterator[ast.AST] = ast.iter_child_nodes(node)
        if isinstance(node, ast.IfExp) and (truth := self._truth(node.test)) is not None:
            parts = iter((node.test, node.body if truth else node.orelse))
        for part in parts:
            if not isinstance(part, ast.stmt | ast.ExceptHandler | ast.match_case):
                yield from self._calls_in(part)

    def set_later(self, trainers_args: ast.expr | None = None) -> dict[str, Any]:
        """Return `training_args.x = value`, of names that hold one of TRL's configs or are called args.

        `trainers_args`: what the trainer is given as its args; a name there is one of these, and one that holds another
        config is not.
        """
        kinds = self.kinds(CONFIGS)
        configs = {name for name, made in self.assigned.items() if isinstance(made, ast.Call) and called(made) in kinds}
        given = self.chosen(trainers_args)
        others: set[str] = set()
        if isinstance(given, ast.Call) and called(given) in kinds:
            others = {name for name in configs if all(made is not given for _, made, _ in self._values[name])}
        if isinstance(trainers_args, ast.Name):
            configs.add(trainers_args.id)
        later = {}
        for statement, tests in self._statements:
            match statement:
                case ast.Assign(targets=[ast.Attribute(value=ast.Name(id=owner), attr=name), *_], value=value):
                    is_config = owner in configs or "args" in owner
                    if is_config and owner not in others and self.may_hold(tests):
                        later[name] = self.value(value)
        return later

    def value(self, node: ast.expr) -> Any:
        """Return an expression's value, UNKNOWN where only a run can tell."""
        if self._depth > MAX_DEPTH:
            return UNKNOWN
        self._depth += 1
        try:
            return self._value(node)
        finally:
            self._depth -= 1

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Name(id="__name__"):
                return "__main__"
            case ast.Name() if (held := self.given(node)) is not None:
                value = self.value(held)
                return self._filled(node, held, value) if isinstance(value, dict) else value
            case ast.Attribute(value=ast.Name(), attr=name) if name in self.flags:  # model_args.model_name_or_path
                return self.flags[name]
            case ast.Attribute(value=ast.Name(id="torch"), attr="bfloat16" | "float16" | "float32" as dtype):
                return dtype
            case ast.Attribute() if (held := self.given(node)) is not None:
                return self.value(held)
            case ast.Call():
                return self._of_call(node)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                holds = self.value(test)
                return UNKNOWN if holds is UNKNOWN else self.value(body if holds else orelse)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                negated = self.value(operand)
                return UNKNOWN if negated is UNKNOWN else not negated
            case ast.BoolOp():
                return self._first_that_decides(node)
            case ast.Compare(ops=[sign], comparators=[right]) if type(sign) in COMPARISONS:
                return _compared(sign, self.value(node.left), self.value(right))
            case ast.JoinedStr(values=parts):
                texts = [self.value(p.value if isinstance(p, ast.FormattedValue) else p) for p in parts]
                return UNKNOWN if any(text is UNKNOWN for text in texts) else "".join(map(str, texts))
            case ast.Subscript(value=table, slice=key) if ast.unparse(table) == "os.environ":
                return self._of_environment([key], UNKNOWN)
            case ast.Subscript(value=table, slice=key):  # CONFIG["lr"]
                return self._item(table, [key], UNKNOWN)
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                values = [self.value(part) for part in parts]
                return UNKNOWN if any(value is UNKNOWN for value in values) else values
            case ast.Dict():
                return self._table(node)
            case ast.BinOp(left=left, right=right) if type(node.op) in ARITHMETIC:
                return _computed(node, self.value(left), self.value(right))
        return literal(node)

    def _of_call(self, call: ast.Call) -> Any:
        """Return the value of a call of one of the few functions whose results reading tells."""
        name = called(call)
        table = call.func.value if isinstance(call.func, ast.Attribute) else None
        if ast.unparse(call.func) in ENVIRONMENT:
            return self._of_environment(call.args)
        if name in CASTS and len(call.args) == 1:
            return self._cast(name, self.value(call.args[0]))
        if table is not None and name == "get" and call.args:
            return self._item(table, call.args)
        if table is not None and name in MOVES:  # from_pretrained(name).to("cuda")
            return self.value(table)
        if name in LOADERS:  # the model's name, where a model is meant
            named = [k.value for keyword in MODEL_KEYWORDS for k in call.keywords if k.arg == keyword]
            first = [*call.args[:1], *named]
            return self.value(first[0]) if first else UNKNOWN
        if name == "dict" and not call.args:
            return self.keywords(call)
        return literal(call)

    def _first_that_decides(self, node: ast.BoolOp) -> Any:
        """Return the value of `a or b`, `a and b`."""
        wanted = isinstance(node.op, ast.Or)
        value: Any = UNKNOWN
        for part in node.values:
            value = self.value(part)
            if value is UNKNOWN or bool(value) == wanted:
                return value
        return value

    def _item(self, table: ast.expr, arguments: Sequence[ast.expr], missing: Any = None) -> Any:
        """Return table.get(key, default); UNKNOWN where table or key is not known.

        Args:
            table: The table.
            arguments: The key, and the default where there is one.
            missing: What is given for a key that is not there, without a default.
        """
        items, key = self.value(table), self.value(arguments[0])
        if not isinstance(items, dict) or not isinstance(key, str):
            return UNKNOWN
        if key in items:
            return items[key]
        return self.value(arguments[1]) if len(arguments) > 1 else missing

    def _cast(self, kind: str, value: Any) -> Any:
        """Return int(value) and the like; UNKNOWN where that cannot be known or would fail."""
        if value is UNKNOWN:
            return UNKNOWN
        try:
            return CASTS[kind](value)
        except (ValueError, TypeError, OverflowError):
            return UNKNOWN

    def _of_environment(self, words: Sequence[ast.expr], missing: Any = None) -> Any:
        """Return the variable of this environment that `os.environ.get(name, default)` and its like read."""
        values = [self.value(word) for word in words]
        if not values or not isinstance(values[0], str):
            return UNKNOWN
        return os.environ.get(values[0], values[1] if len(values) > 1 else missing)

    def _table(self, node: ast.Dict) -> Any:
        """Return a dict whose keys are all known. A value that is not known stays UNKNOWN."""
        table: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            read = self.value(value)
            if key is None:  # **other
                if not isinstance(read, dict):
                    return UNKNOWN
                table |= read
                continue
            name = self.value(key)
            if name is UNKNOWN or isinstance(name, list | dict):
                return UNKNOWN
            table[name] = read
        return table

    def _filled(self, name: ast.Name, made: ast.expr, table: dict[Any, Any]) -> dict[Any, Any]:
        """Return the table of a name with what statements put into it before it is used.

        Args:
            name: The name, where it is used.
            made: The expression that it was given.
            table: The value of that expression.
        """
        filled = dict(table)
        first = self.first_line(name, made)
        for statement, tests in self._statements:
            if not first < statement.lineno < name.lineno or not self._changes(statement, name.id):
                continue
            if not self.may_hold(tests):
                continue
            more = put_into(statement, name.id)
            added = UNKNOWN if more is None else self.value(more)
            if not isinstance(added, dict):
                self.notes.append(
                    f"line {statement.lineno}: {ast.unparse(statement)[:120]}: only a run can tell what it changes."
                    " Correct the recipe."
                )
                continue
            if any(self._truth(test) is None for test in tests):
                self.notes.append(f"line {statement.lineno}: {ast.unparse(statement)[:120]} {DEPENDS_ON_RUN}")
            filled |= added
        return filled

    def first_line(self, name: ast.Name, made: ast.expr) -> int:
        """Return the line behind which statements change what a name holds: that of the function whose parameter it
        is, which may be called further below, or of the expression that it was given."""
        for lines, parameters in self._parameters:
            if name.lineno in lines and parameters.get(name.id) is made:
                return lines.start
        return made.lineno

    def _changes(self, statement: ast.stmt, name: str) -> bool:
        """Return True if a statement changes the table of a name, or what is in it."""
        if put_into(statement, name) is not None or has_target_in(statement, name):
            return True
        return any(
            isinstance(call.func, ast.Attribute) and called(call) in CHANGES and root_name(call.func.value) == name
            for call in self._calls_in(statement)
        )


class _WithValues(ast.NodeTransformer):
    """Puts values in the place of attributes such as args.length, where reading tells them."""

    def __init__(self, reader: SourceReader) -> None:
        self.reader = reader

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        value = self.reader.value(node)
        return ast.copy_location(ast.Constant(value), node) if isinstance(value, int | float | str) else node
