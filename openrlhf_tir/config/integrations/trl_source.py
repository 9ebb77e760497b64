"""Read values from the source of a TRL script without running it.

Names are followed to what is assigned to them, in the script and in modules beside it. What only a run can tell is
UNKNOWN.
"""

from __future__ import annotations

import ast
import math
import operator
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Tests = tuple[ast.expr, ...]
"""The conditions under which a statement is executed: all of them hold."""
UNKNOWN = object()
"""The value of an expression that only a run can tell."""
CONFIGS = ("GRPOConfig", "RLOOConfig", "SFTConfig", "AsyncGRPOConfig")
LOADERS = ("from_pretrained", "from_config", "get_peft_model", "prepare_model_for_kbit_training")
"""Functions whose first argument is a model or a tokenizer, or its name."""
MODEL_KEYWORDS = ("model_name", "pretrained_model_name_or_path", "model_name_or_path", "model")
"""What a loader calls its first argument."""
MOVES = ("to", "cuda", "bfloat16", "half", "float", "eval", "train")
"""Methods of a model that give the model itself."""
LEFT_OUT = ("trl", "accelerate")
"""Packages whose names no reward function or tool needs; an import of them is not copied."""
CASTS: dict[str, Callable[[Any], Any]] = {"int": int, "float": float, "str": str, "bool": bool}
CHANGES = ("update", "setdefault", "pop", "popitem", "clear", "append", "extend", "insert", "remove")
"""Methods that change a table or a list."""
READERS = ("safe_load", "full_load", "load")
"""Functions of yaml and json that read an open file."""
ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}


FOLLOWED = (
    *(ast.List, ast.Tuple, ast.Name, ast.Subscript, ast.ListComp),
    *(ast.Attribute, ast.IfExp, ast.Constant, ast.BinOp),
)
"""What a name that holds functions may hold, where `names` goes on to read."""
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


def called(call: ast.Call) -> str:
    """The last part of what is called: trl.GRPOTrainer is GRPOTrainer."""
    node = call.func
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_table(columns: dict[Any, Any]) -> bool:
    """Return True for lists of the same length by name, which Dataset.from_dict takes."""
    return (
        all(isinstance(column, list) for column in columns.values())
        and len({len(column) for column in columns.values()}) == 1
    )


def _is_environ(node: ast.expr) -> bool:
    """Return True for an expression that reads a variable of the environment."""
    target = node.value if isinstance(node, ast.Subscript) else node.func if isinstance(node, ast.Call) else None
    return target is not None and ast.unparse(target) in (
        "os.environ",
        "os.environ.get",
        "os.getenv",
        "getenv",
        "environ.get",
    )


_EXPONENT = re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+")
"""Numbers that YAML 1.1 reads as text: 1e-6 has no dot, or no sign in its exponent."""


def _number(value: Any) -> Any:
    """Return a value of a YAML file, with a number such as 1e-6 as a number."""
    return float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value


class _Named(ast.NodeTransformer):
    """Puts a constant in the place of a name."""

    def __init__(self, name: str, value: Any) -> None:
        self.name = name
        self.value = value

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.copy_location(ast.Constant(self.value), node) if node.id == self.name else node


class _Known(ast.NodeTransformer):
    """Puts values in the place of attributes such as args.length, where reading tells them."""

    def __init__(self, reader: SourceReader) -> None:
        self.reader = reader

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        value = self.reader.value(node)
        return ast.copy_location(ast.Constant(value), node) if isinstance(value, int | float | str) else node


def _bound(node: ast.stmt) -> set[str]:
    """Return the names that a function binds itself: arguments, what it assigns, functions inside of it."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return set()
    arguments = [n.arg for n in ast.walk(node.args) if isinstance(n, ast.arg)]
    stored = [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    inner = [
        n.name
        for n in ast.walk(node)
        if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and n is not node
    ]
    return {*arguments, *stored, *inner}


def _names_in(source: str) -> list[str]:
    """Return the names in the source of an expression."""
    return [n.id for n in ast.walk(ast.parse(source, mode="eval")) if isinstance(n, ast.Name)]


def _moved(node: ast.expr, line: int) -> ast.expr:
    """Return an expression whose names count as used at a line."""
    for part in ast.walk(node):
        if isinstance(part, ast.expr):
            part.lineno = line
    return node


def _statements(
    body: Sequence[ast.stmt], tests: Tests = (), *, into_functions: bool = False
) -> Iterator[tuple[ast.stmt, Tests]]:
    """Yield all statements, each with the conditions under which it is executed.

    Args:
        body: Statements in order.
        tests: The conditions under which these are executed.
        into_functions: Whether to go into functions and classes that they define.
    """
    for statement in body:
        yield statement, tests
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not into_functions:
            continue
        if isinstance(statement, ast.If):
            otherwise = (*tests, ast.UnaryOp(ast.Not(), statement.test))
            yield from _statements(statement.body, (*tests, statement.test), into_functions=into_functions)
            yield from _statements(statement.orelse, otherwise, into_functions=into_functions)
            continue
        parts = [statement, *getattr(statement, "handlers", []), *getattr(statement, "cases", [])]
        for part in parts:
            for name in ("body", "orelse", "finalbody"):
                inner = getattr(part, name, None)
                if isinstance(inner, list):
                    yield from _statements(inner, tests, into_functions=into_functions)


def _bindings(function: ast.FunctionDef, call: ast.Call) -> dict[str, ast.expr]:
    """Return what the parameters of a function are given by a call, `**others` as a table.

    Parameters whose value stands in a `*list` or a `**table` of the call are left out.
    """
    arguments = function.args
    plain = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    named = [*plain, *(a.arg for a in arguments.kwonlyargs)]
    is_spread = any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords)
    bound: dict[str, ast.expr] = {}
    if not is_spread:
        bound |= dict(zip(reversed(plain), reversed(arguments.defaults), strict=False))
        pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        bound |= {a.arg: default for a, default in pairs if default is not None}
        bound |= dict(zip(plain, call.args, strict=False))
    bound |= {k.arg: k.value for k in call.keywords if k.arg in named}
    if arguments.kwarg is not None and not is_spread:
        others = [k for k in call.keywords if k.arg not in named]
        table = ast.Dict([ast.Constant(k.arg) for k in others], [k.value for k in others])
        bound[arguments.kwarg.arg] = ast.fix_missing_locations(ast.copy_location(table, call))
    return bound


def _added_to(statement: ast.stmt, name: str) -> ast.expr | None:
    """Return what a statement adds to the list of a name; None where it adds nothing."""
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
        return statement.value if isinstance(statement.target, ast.Name) and statement.target.id == name else None
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or not call.args:
        return None
    of_name = isinstance(call.func.value, ast.Name) and call.func.value.id == name
    return call.args[0] if of_name and called(call) in ("append", "extend") else None


def _put_into(statement: ast.stmt, name: str) -> ast.expr | None:
    """Return the table of what a statement puts into the table of a name: `t["k"] = v`, `t.update(more)`, `t |= more`.

    None where it puts nothing into it.
    """
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    if isinstance(statement, ast.Assign) and isinstance(target, ast.Subscript):
        of_name = isinstance(target.value, ast.Name) and target.value.id == name
        return ast.copy_location(ast.Dict([target.slice], [statement.value]), statement) if of_name else None
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.BitOr):
        return statement.value if isinstance(statement.target, ast.Name) and statement.target.id == name else None
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or called(call) != "update":
        return None
    if not isinstance(call.func.value, ast.Name) or call.func.value.id != name:
        return None
    keys: list[ast.expr | None] = [None for _ in call.args]
    keys += [ast.Constant(k.arg) if k.arg else None for k in call.keywords]
    table = ast.Dict(keys, [*call.args, *(k.value for k in call.keywords)])
    return ast.fix_missing_locations(ast.copy_location(table, call))


def _root(node: ast.expr) -> str:
    """Return the name that an expression such as table["a"]["b"] begins with; empty where it begins with none."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _has_target_in(statement: ast.stmt, name: str) -> bool:
    """Return True if a statement assigns or deletes something inside the table of a name."""
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign | ast.Delete):
        targets = statement.targets
    elif isinstance(statement, ast.AugAssign | ast.AnnAssign):
        targets = [statement.target]
    parts = [part for target in targets for part in ast.walk(target) if isinstance(part, ast.Subscript)]
    return any(not isinstance(part.ctx, ast.Load) and _root(part) == name for part in parts)


class SourceReader:
    """Evaluates what literals and names can tell."""

    def __init__(self, tree: ast.Module, flags: dict[str, Any], directory: Path = Path()) -> None:
        """Take a script's tree.

        Args:
            tree: The script.
            flags: The values of its arguments, by name; UNKNOWN where there is none.
            directory: Where modules beside the script are found.
        """
        self.tree = tree
        self.flags = flags
        self.directory = directory
        self.modules: dict[str, SourceReader] = {}
        """Name of a function -> the module beside the script that defines it; of functions that `names` found there."""
        self.notes: list[str] = []
        """What `names` could not tell for certain, a sentence each."""
        self.assigned: dict[str, ast.expr] = {}
        """The last value that each name is given."""
        self._values: dict[str, list[tuple[int, ast.expr, Tests]]] = {}
        """All values that each name is given, each with the last line of the statement and the conditions of it, in the
        order of the lines."""
        self._deciding: set[int] = set()
        """Ids of the conditions that are being evaluated, whose own names may be set under them."""
        self._reading: set[int] = set()
        """Ids of the expressions in which `names` is looking."""
        self._parameters = self._bound_parameters()
        """Lines of each function that the script calls in one place, with what its parameters are given there."""
        self._truths: dict[int, bool | None] = {}
        """Id of a condition -> whether it holds, of those that were evaluated on their own."""
        statements = _statements(tree.body, into_functions=True)
        self._statements = sorted(statements, key=lambda pair: pair[0].lineno)
        for node, tests in self._statements:
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                self._assign(node.targets[0], node.value, node, tests)
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                self._assign(node.target, node.value, node, tests)
            elif isinstance(node, ast.With):  # with open(path) as file
                for item in node.items:
                    if isinstance(item.optional_vars, ast.Name):
                        self.assigned[item.optional_vars.id] = item.context_expr
                        held = self._values.setdefault(item.optional_vars.id, [])
                        held.append((node.lineno, item.context_expr, tests))

    def _bound_parameters(self) -> list[tuple[range, dict[str, ast.expr]]]:
        """Return the lines of each function at the top level that is called in one place, with its parameters."""
        calls = [n for n in ast.walk(self.tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
        bound = []
        for function in (n for n in self.tree.body if isinstance(n, ast.FunctionDef)):
            of_it = [call for call in calls if called(call) == function.name]
            if len(of_it) == 1 and not any(node is of_it[0] for node in ast.walk(function)):
                lines = range(function.lineno, (function.end_lineno or function.lineno) + 1)
                bound.append((lines, _bindings(function, of_it[0])))
        return bound

    def _assign(self, target: ast.expr, value: ast.expr, statement: ast.stmt, tests: Tests) -> None:
        """Remember what a name is given; of `a, b = f()` the first is what a loader of models returns."""
        if isinstance(target, ast.Name | ast.Attribute):  # an attribute goes by its source, self.rewards
            name = ast.unparse(target)
            self.assigned[name] = value
            line = statement.end_lineno or statement.lineno
            self._values.setdefault(name, []).append((line, value, tests))
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            for one, its in zip(target.elts, value.elts, strict=True):
                self._assign(one, its, statement, tests)
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Call) and called(value) in LOADERS:
            self._assign(target.elts[0], value, statement, tests)

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
        for _ in range(20):
            if isinstance(node, ast.Name) and (held := self.given(node)) is not None:
                node = held
            elif isinstance(node, ast.IfExp):
                truth = self._truth(node.test)
                if truth is None:
                    self.notes.append(
                        f"line {node.lineno}: {ast.unparse(node)[:120]} depends on what only a run can tell. It is"
                        " taken in: leave it out of the recipe if the run had not."
                    )
                    body_is_none = isinstance(node.body, ast.Constant) and node.body.value is None
                    truth = not body_is_none
                node = node.body if truth else node.orelse
            else:
                break
        return node

    def kinds(self, bases: Sequence[str]) -> dict[str, str]:
        """Return the names of some classes of TRL's, of classes from elsewhere that are called like them, and of the
        script's own subclasses -> the class of TRL's."""
        kinds = {name: name for name in bases}
        for name in self._imported_names():
            alike = next((kind for kind in bases if kind in name), None)
            if alike is not None:
                kinds.setdefault(name, alike)
        classes = sorted((n for n in ast.walk(self.tree) if isinstance(n, ast.ClassDef)), key=lambda n: n.lineno)
        for made in classes:
            for base in made.bases:
                name = ast.unparse(base).rpartition(".")[2]
                if name in kinds:
                    kinds.setdefault(made.name, kinds[name])
        return kinds

    def overrides(self, name: str) -> str:
        """Return the name of one of the script's classes with its methods, or of one from elsewhere with its module;
        empty for one of TRL's."""
        for made in ast.walk(self.tree):
            if isinstance(made, ast.ClassDef) and made.name == name:
                methods = [m.name for m in made.body if isinstance(m, ast.FunctionDef | ast.AsyncFunctionDef)]
                return f"{name} ({', '.join(methods) or 'no methods'})"
        place = self.imported(name)
        return "" if place is None or place[0].partition(".")[0] == "trl" else f"{name} (of {place[0]})"

    def _imported_names(self) -> list[str]:
        """Return the names that the script imports from modules."""
        return [a.asname or a.name for n in ast.walk(self.tree) if isinstance(n, ast.ImportFrom) for a in n.names]

    def has_lora_config(self) -> bool:
        """Return True if the script makes a LoraConfig."""
        return any(called(call) == "LoraConfig" for call in self.calls())

    def arguments(self, call: ast.Call, positions: Sequence[str]) -> dict[str, ast.expr]:
        """Return the arguments of a call by name, those by position and those of `**table` included."""
        found: dict[str, ast.expr] = dict(zip(positions, call.args, strict=False))
        for keyword in call.keywords:
            if keyword.arg is not None:
                found[keyword.arg] = keyword.value
                continue
            table = self.given(keyword.value) if isinstance(keyword.value, ast.Name) else keyword.value
            if isinstance(table, ast.Dict):
                pairs = zip(table.keys, table.values, strict=True)
                found |= {str(self.value(key)): value for key, value in pairs if key is not None}
            elif isinstance(table, ast.Call) and called(table) == "dict":
                found |= {k.arg: k.value for k in table.keywords if k.arg}
        return found

    def local_module(self, name: str) -> Path | None:
        """Return the file of a module that lies beside the script, or in the package that the script is of; None where
        there is none."""
        parts = name.split(".")
        here = self.directory.absolute()
        roots = [self.directory, *(root for root in here.parents if parts[0] in here.relative_to(root).parts[:1])]
        paths = (root.joinpath(*parts).with_suffix(".py") for root in roots)
        return next((path for path in paths if name and path.is_file()), None)

    def imported(self, name: str) -> tuple[str, str] | None:
        """Return (module, name in it) of a name that the script imports; ("module", "") of a module."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return node.module or "", alias.name
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return alias.name, ""
        return None

    def module_of(self, path: Path) -> SourceReader | None:
        """Return a reader of a module beside the script; None for one that is no Python."""
        try:
            return SourceReader(ast.parse(path.read_text(encoding="utf-8-sig")), {}, self.directory)
        except (OSError, UnicodeDecodeError, SyntaxError):
            return None

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

        `trainers_args`: what the trainer is given as its args; a name there is one of these.
        """
        configs = {
            name
            for name, made in self.assigned.items()
            if isinstance(made, ast.Call) and called(made) in self.kinds(CONFIGS)
        }
        if isinstance(trainers_args, ast.Name):
            configs.add(trainers_args.id)
        return {
            node.targets[0].attr: self.value(node.value)
            for node, tests in self._statements
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Attribute)
            and isinstance(node.targets[0].value, ast.Name)
            and (node.targets[0].value.id in configs or "args" in node.targets[0].value.id)
            and self.may_hold(tests)
        }

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

    def _file_table(self, file: ast.expr, depth: int) -> Any:
        """Return the table in the YAML or JSON file that is opened; UNKNOWN where there is none."""
        import yaml

        opened = self.given(file) if isinstance(file, ast.Name) else file
        while isinstance(opened, ast.Call) and isinstance(opened.func, ast.Attribute):
            if called(opened) not in ("read", "read_text", "open"):
                return UNKNOWN
            opened = opened.func.value
        words = opened.args[:1] if isinstance(opened, ast.Call) and called(opened) in ("open", "Path") else []
        name = self.value(words[0], depth + 1) if words else UNKNOWN
        if not isinstance(name, str):
            return UNKNOWN
        here = next((path for path in (Path(name), self.directory / name) if path.is_file()), Path(name))
        try:
            table = yaml.safe_load(here.read_text(encoding="utf-8-sig"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError):
            return UNKNOWN
        return {str(key): _number(value) for key, value in table.items()} if isinstance(table, dict) else UNKNOWN

    def source(self, node: ast.expr | None) -> str:
        """Return the source of an expression, that of the last assignment where it is a name."""
        if isinstance(node, ast.Name) and node.id in self.assigned:
            node = self.assigned[node.id]
        return "" if node is None else ast.unparse(node)

    def value(self, node: ast.expr, depth: int = 0) -> Any:
        """Return an expression's value, UNKNOWN where only a run can tell."""
        if depth > 20:
            return UNKNOWN
        if isinstance(node, ast.Name) and node.id == "__name__":
            return "__main__"
        if isinstance(node, ast.Name) and (held := self.given(node)) is not None:
            value = self.value(held, depth + 1)
            return self._filled(node, held, value, depth) if isinstance(value, dict) else value
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in self.flags:
            return self.flags[node.attr]  # model_args.model_name_or_path
        if isinstance(node, ast.Attribute) and (held := self.given(node)) is not None:
            return self.value(held, depth + 1)
        if isinstance(node, ast.Call) and called(node) in READERS and len(node.args) == 1:
            return self._file_table(node.args[0], depth)
        if isinstance(node, ast.IfExp):
            test = self.value(node.test, depth + 1)
            return UNKNOWN if test is UNKNOWN else self.value(node.body if test else node.orelse, depth + 1)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            operand = self.value(node.operand, depth + 1)
            return UNKNOWN if operand is UNKNOWN else not operand
        if isinstance(node, ast.BoolOp):
            return self._first_that_decides(node, depth)
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
            return self._compared(node, depth)
        if isinstance(node, ast.Call) and called(node) in CASTS and len(node.args) == 1:
            return self._cast(called(node), self.value(node.args[0], depth + 1))
        if _is_environ(node):
            return self._of_environment(node, depth)
        if isinstance(node, ast.JoinedStr):
            parts = [
                self.value(part.value, depth + 1) if isinstance(part, ast.FormattedValue) else ast.literal_eval(part)
                for part in node.values
            ]
            return UNKNOWN if any(part is UNKNOWN for part in parts) else "".join(map(str, parts))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and called(node) == "get" and node.args:
            return self._got(node.func.value, node.args, depth)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and called(node) in MOVES:
            return self.value(node.func.value, depth + 1)  # from_pretrained(name).to("cuda")
        if isinstance(node, ast.Call) and called(node) in LOADERS:
            named = [k.value for name in MODEL_KEYWORDS for k in node.keywords if k.arg == name]
            first = [*node.args[:1], *named]
            return self.value(first[0], depth + 1) if first else UNKNOWN  # the model's name, where a model is meant
        if isinstance(node, ast.Call) and called(node) == "dict" and not node.args:
            return self.keywords(node)
        if isinstance(node, ast.Subscript):
            return self._got(node.value, [node.slice], depth, UNKNOWN)  # CONFIG["lr"]
        if isinstance(node, ast.List | ast.Tuple):
            values = [self.value(part, depth + 1) for part in node.elts]
            return UNKNOWN if any(v is UNKNOWN for v in values) else values
        if isinstance(node, ast.Dict):
            return self._table(node, depth)
        if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
            left, right = self.value(node.left, depth + 1), self.value(node.right, depth + 1)
            if isinstance(node.op, ast.Add) and type(left) is type(right) and isinstance(left, str | list):
                return left + right
            if isinstance(left, int | float) and isinstance(right, int | float):
                try:
                    return ARITHMETIC[type(node.op)](left, right)
                except ArithmeticError:
                    return UNKNOWN
        try:
            return ast.literal_eval(node)
        except (ValueError, SyntaxError, TypeError):
            return UNKNOWN

    def _first_that_decides(self, node: ast.BoolOp, depth: int) -> Any:
        """Return the value of `a or b`, `a and b`."""
        wanted = isinstance(node.op, ast.Or)
        value: Any = UNKNOWN
        for part in node.values:
            value = self.value(part, depth + 1)
            if value is UNKNOWN or bool(value) == wanted:
                return value
        return value

    def _compared(self, node: ast.Compare, depth: int) -> Any:
        """Return the value of a comparison of two values."""
        left, right = self.value(node.left, depth + 1), self.value(node.comparators[0], depth + 1)
        if left is UNKNOWN or right is UNKNOWN:
            return UNKNOWN
        try:
            return COMPARISONS[type(node.ops[0])](left, right)
        except TypeError:
            return UNKNOWN

    def _got(self, table: ast.expr, arguments: Sequence[ast.expr], depth: int, missing: Any = None) -> Any:
        """Return table.get(key, default); UNKNOWN where table or key is not known.

        Args:
            table: The table.
            arguments: The key, and the default where there is one.
            depth: How many expressions this one is inside of.
            missing: What is given for a key that is not there, without a default.
        """
        items, key = self.value(table, depth + 1), self.value(arguments[0], depth + 1)
        if not isinstance(items, dict) or not isinstance(key, str):
            return UNKNOWN
        if key in items:
            return items[key]
        return self.value(arguments[1], depth + 1) if len(arguments) > 1 else missing

    def _cast(self, kind: str, value: Any) -> Any:
        """Return int(value) and the like; UNKNOWN where that cannot be known or would fail."""
        if value is UNKNOWN:
            return UNKNOWN
        try:
            return CASTS[kind](value)
        except (ValueError, TypeError, OverflowError):
            return UNKNOWN

    def _of_environment(self, node: ast.expr, depth: int) -> Any:
        """Return os.environ["X"], os.environ.get("X", default) and os.getenv("X", default) in this environment."""
        words = [node.slice] if isinstance(node, ast.Subscript) else node.args if isinstance(node, ast.Call) else []
        values = [self.value(word, depth + 1) for word in words]
        if not values or not isinstance(values[0], str):
            return UNKNOWN
        missing = UNKNOWN if isinstance(node, ast.Subscript) else values[1] if len(values) > 1 else None
        return os.environ.get(values[0], missing)

    def _filled(self, name: ast.Name, made: ast.expr, table: dict[Any, Any], depth: int) -> dict[Any, Any]:
        """Return the table of a name with what statements put into it before it is used.

        Args:
            name: The name, where it is used.
            made: The expression that it was given.
            table: The value of that expression.
            depth: How many expressions this one is inside of.
        """
        filled = dict(table)
        first = self._first_line(name, made)
        for statement, tests in self._statements:
            if not first < statement.lineno < name.lineno or not self._changes(statement, name.id):
                continue
            if not self.may_hold(tests):
                continue
            more = _put_into(statement, name.id)
            added = UNKNOWN if more is None else self.value(more, depth + 1)
            if not isinstance(added, dict):
                self.notes.append(
                    f"line {statement.lineno}: {ast.unparse(statement)[:120]}: only a run can tell what it changes."
                    " Correct the recipe."
                )
                continue
            if any(self._truth(test) is None for test in tests):
                self.notes.append(
                    f"line {statement.lineno}: {ast.unparse(statement)[:120]} depends on what only a run can tell. It"
                    " is taken in: leave it out of the recipe if the run had not."
                )
            filled |= added
        return filled

    def _first_line(self, name: ast.Name, made: ast.expr) -> int:
        """Return the line behind which statements change the table of a name: that of the function whose parameter it
        is, which may be called further below, or of the expression that it was given."""
        for lines, parameters in self._parameters:
            if name.lineno in lines and parameters.get(name.id) is made:
                return lines.start
        return made.lineno

    def _changes(self, statement: ast.stmt, name: str) -> bool:
        """Return True if a statement changes the table of a name, or what is in it."""
        if _put_into(statement, name) is not None or _has_target_in(statement, name):
            return True
        return any(
            isinstance(call.func, ast.Attribute) and called(call) in CHANGES and _root(call.func.value) == name
            for call in self._calls_in(statement)
        )

    def _table(self, node: ast.Dict, depth: int) -> Any:
        """Return a dict whose keys are all known. A value that is not known stays UNKNOWN."""
        table: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            read = self.value(value, depth + 1)
            if key is None:  # **other
                if not isinstance(read, dict):
                    return UNKNOWN
                table |= read
                continue
            name = self.value(key, depth + 1)
            if name is UNKNOWN or isinstance(name, list | dict):
                return UNKNOWN
            table[name] = read
        return table

    def names(self, node: ast.expr) -> list[str]:
        """Return the names in a list of functions. What is no name is its source; None is no function."""
        if id(node) in self._reading:  # others = others + [right], where `others` is an argument of a function
            return [ast.unparse(node)]
        self._reading.add(id(node))
        try:
            return self._names(node)
        finally:
            self._reading.remove(id(node))

    def _names(self, node: ast.expr) -> list[str]:
        if isinstance(node, ast.Constant) and node.value is None:
            return []
        if isinstance(node, ast.Name):
            inner = self.given(node)
            if isinstance(inner, FOLLOWED):
                return [*self.names(inner), *self._appended(node)]
            if isinstance(inner, ast.Call) and (made := self._list_made_by(inner)) is not None:
                return made
            return [node.id]
        if isinstance(node, ast.Call) and (made := self._list_made_by(node)) is not None:
            return made
        held = self.given(node) if isinstance(node, ast.Attribute) else None
        if held is not None and not any(part is node for part in ast.walk(held)):  # self.rewards = list(self.rewards)
            return self.names(held)
        if isinstance(node, ast.IfExp) and (test := self.value(node.test)) is not UNKNOWN:
            return self.names(node.body if test else node.orelse)
        if isinstance(node, ast.List | ast.Tuple):
            return [name for part in node.elts for name in self.names(part)]
        if isinstance(node, ast.Starred):  # [right, *others]
            return self.names(node.value)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):  # [right] + others
            return [*self.names(node.left), *self.names(node.right)]
        if isinstance(node, ast.Attribute) and isinstance(self.value(node), list):  # script_args.reward_funcs
            return [str(name) for name in self.value(node)]
        if isinstance(node, ast.ListComp) and (parts := self._each(node)) is not None:
            parts = [ast.fix_missing_locations(_moved(part, node.lineno)) for part in parts]
            return [name for part in parts for name in self.names(part)]
        if isinstance(node, ast.Call) and called(node) == "list" and len(node.args) == 1:
            return self.names(node.args[0])
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            table = self._dict(node.func.value)
            if table is not None and called(node) == "values":
                return [name for value in table.values for name in self.names(value)]
            if table is not None and called(node) == "get" and node.args:
                return self._item(table, node.args[0], node)
        if isinstance(node, ast.Subscript) and (table := self._dict(node.value)) is not None:  # registry["accuracy"]
            return self._item(table, node.slice, node)
        return [ast.unparse(node)]

    def _appended(self, name: ast.Name) -> list[str]:
        """Return the names that are added to a list after it is made: `funcs.append(f)`, `funcs += [f]`."""
        found: list[str] = []
        for statement, tests in _statements(self.tree.body, into_functions=True):
            if statement.lineno >= name.lineno:
                continue
            added = _added_to(statement, name.id)
            if added is None:
                continue
            values = [self.value(test) for test in tests]
            if any(value is not UNKNOWN and not value for value in values):
                continue
            found += self.names(added)
            if UNKNOWN in values:
                self.notes.append(
                    f"line {statement.lineno}: {ast.unparse(statement)} depends on what only a run can tell. It is"
                    " taken in: leave it out of the recipe if the run had not."
                )
        return found

    def _list_made_by(self, call: ast.Call) -> list[str] | None:
        """Return the names in the list that a function of the script, or of a module beside it, returns.

        None where it returns no list, or none that reading tells.
        """
        name = called(call)
        reader, function = self, self._function(name)
        if function is None and isinstance(call.func, ast.Name) and (place := self.imported(name)) is not None:
            path = self.local_module(place[0])
            module = self.module_of(path) if path is not None else None
            if module is not None:
                module.flags = self.flags
                reader, function = module, module._function(place[1])
        if function is None:
            return None
        returned = [n.value for n, _ in _statements(function.body) if isinstance(n, ast.Return) and n.value is not None]
        if not returned:
            return None
        held = reader.given(returned[-1]) if isinstance(returned[-1], ast.Name) else returned[-1]
        if not isinstance(held, ast.List | ast.Tuple | ast.ListComp):
            return None
        names = reader.names(returned[-1])
        self.notes += reader.notes if reader is not self else []
        if reader is not self:
            self.modules |= {
                part: reader
                for source in names
                for part in _names_in(source)
                if reader.is_defined(part) or reader.imported(part) is not None
            }
        return names

    def parameters(self, name: str) -> list[str]:
        """Return the names of the parameters that a function of the script has to be given, and of `environments`.

        Empty for anything that is no function of the script.
        """
        function = self._reward_function(name)
        if function is None:
            return []
        arguments = function.args
        plain = [*arguments.posonlyargs, *arguments.args]
        required = plain[: len(plain) - len(arguments.defaults)]
        required += [a for a, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if not default]
        named = [a.arg for a in required]
        optional = [a.arg for a in (*plain, *arguments.kwonlyargs) if a.arg == "environments" and a.arg not in named]
        return [*named, *optional]

    def used_parameters(self, name: str) -> set[str]:
        """Return the parameters of a function of the script that its body reads."""
        function = self._reward_function(name)
        if function is None:
            return set()
        names = {a.arg for a in ast.walk(function.args) if isinstance(a, ast.arg)}
        read = {n.id for part in function.body for n in ast.walk(part) if isinstance(n, ast.Name)}
        return names & read

    def is_async(self, name: str) -> bool:
        """Return True for an `async def` of the script."""
        return isinstance(self._reward_function(name), ast.AsyncFunctionDef)

    def has_method(self, name: str, method: str) -> bool:
        """Return True if one of the script's classes has a method."""
        return any(
            member.name == method
            for made in ast.walk(self.tree)
            if isinstance(made, ast.ClassDef) and made.name == name
            for member in made.body
            if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef)
        )

    def _reward_function(self, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        """Return the definition of a function anywhere in the script, or in a module that was read."""
        if name in self.modules:
            return self.modules[name]._reward_function(name)
        kinds = ast.FunctionDef | ast.AsyncFunctionDef
        return next((n for n in ast.walk(self.tree) if isinstance(n, kinds) and n.name == name), None)

    def _function(self, name: str) -> ast.FunctionDef | None:
        """Return the definition of a function at the script's top level."""
        return next((n for n in self.tree.body if isinstance(n, ast.FunctionDef) and n.name == name), None)

    def with_values(self, source: str) -> str:
        """Return the source of an expression with values in the place of attributes that reading tells."""
        return ast.unparse(_Known(self).visit(ast.parse(source, mode="eval").body))

    def _dict(self, node: ast.expr) -> ast.Dict | None:
        """Return the table that an expression is, or that a name holds; None for anything else."""
        held = self.given(node) if isinstance(node, ast.Name) else node
        return held if isinstance(held, ast.Dict) else None

    def _item(self, table: ast.Dict, key: ast.expr, whole: ast.expr) -> list[str]:
        """Return the names in an item of a table; the source of the whole expression where there is no such item."""
        wanted = self.value(key)
        for name, value in zip(table.keys, table.values, strict=True):
            if name is not None and self.value(name) == wanted:
                return self.names(value)
        return [ast.unparse(whole)]

    def _each(self, node: ast.ListComp) -> list[ast.expr] | None:
        """Return what `[f(x) for x in list]` makes of each item, unevaluated; None where the list is not known."""
        loop = node.generators[0]
        values = self.value(loop.iter)
        if (
            len(node.generators) > 1
            or loop.ifs
            or not isinstance(loop.target, ast.Name)
            or not isinstance(values, list)
        ):
            return None
        return [
            _Named(loop.target.id, value).visit(ast.parse(ast.unparse(node.elt), mode="eval").body) for value in values
        ]

    def called_with_own(self, source: str) -> bool:
        """Return True if an expression calls something that the script, or a module beside it, defines, as `Length()`,
        `partial(length, most=20)` and `make_reward(2)` do."""
        try:
            node = ast.parse(source, mode="eval").body
        except SyntaxError:
            return False
        return isinstance(node, ast.Call) and any(
            self.is_defined(name) or self._is_beside(name) for name in _names_in(source)
        )

    def _is_beside(self, name: str) -> bool:
        """Return True for a name that is imported from a module beside the script."""
        place = self.imported(name)
        return place is not None and bool(place[1]) and self.local_module(place[0]) is not None

    def trees(self) -> list[ast.Module]:
        """Return the script's tree, and those of the modules beside it that it imports names from."""
        sources = {n.module or "" for n in ast.walk(self.tree) if isinstance(n, ast.ImportFrom)}
        paths = {path for source in sorted(sources) if (path := self.local_module(source)) is not None}
        readers = [self.module_of(path) for path in sorted(paths)]
        return [self.tree, *(reader.tree for reader in readers if reader is not None)]

    def is_made(self, name: str) -> bool:
        """Return True if a name of the script's top level holds what such a call made, or a lambda."""
        made = [
            n.value
            for n, _ in _statements(self.tree.body)
            if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name) and n.targets[0].id == name
        ]
        return bool(made) and (isinstance(made[-1], ast.Lambda) or self.called_with_own(ast.unparse(made[-1])))

    def held_by(self, name: str) -> str:
        """Return the source of a lambda, or of a call of the script's own, that a name inside of a function holds.

        Empty where it holds nothing of the kind.
        """
        held = self.assigned.get(name)
        if held is None or not (isinstance(held, ast.Lambda) or self.called_with_own(ast.unparse(held))):
            return ""
        return ast.unparse(held)

    def code_of(self, names: Sequence[str], made: Mapping[str, str] | None = None) -> str:
        """Return the source of some functions and of what they need: imports, constants, other functions and classes.

        Functions inside of others are taken out of them.

        Args:
            made: Names that are given the value of an expression, behind everything else.
        """
        made = made or {}
        defined = {
            n.name: n
            for n in ast.walk(self.tree)
            if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        }
        inside = {
            member.name
            for n in ast.walk(self.tree)
            if isinstance(n, ast.ClassDef)
            for member in n.body
            if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        at_top = {
            target.id: n
            for n, _ in _statements(self.tree.body)
            if isinstance(n, ast.Assign)
            for target in n.targets
            if isinstance(target, ast.Name)
        }
        imported: dict[str, ast.stmt] = {}
        for n in ast.walk(self.tree):
            if isinstance(n, ast.Import | ast.ImportFrom):
                package = (n.module or "") if isinstance(n, ast.ImportFrom) else n.names[0].name
                if package.partition(".")[0] not in LEFT_OUT:
                    imported |= {(a.asname or a.name).partition(".")[0]: n for a in n.names}
        wanted: dict[int, ast.stmt] = {}
        todo, seen = list(names), set()
        todo += [n.id for source in made.values() for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Name)]
        while todo:
            name = todo.pop()
            if name in seen:
                continue
            seen.add(name)
            node: ast.stmt | None = at_top.get(name) or imported.get(name)
            if name in defined and (name not in inside or name in names):
                node = defined[name]
            if node is None or node.lineno in wanted:
                continue
            wanted[node.lineno] = node
            bound = _bound(node)
            todo += [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and n.id not in bound]
        ordered = [wanted[line] for line in sorted(wanted)]
        first = [n for n in ordered if isinstance(n, ast.Import | ast.ImportFrom)]
        rest = [n for n in ordered if not isinstance(n, ast.Import | ast.ImportFrom)]
        beside = [self._code_beside(n) for n in first]
        first = [n for n, code in zip(first, beside, strict=True) if not code]
        blocks = ["\n".join(map(ast.unparse, first))] if first else []
        blocks += [code.rstrip() for code in beside if code]
        elsewhere = [name for name in self.modules if name in seen and name not in defined]
        for module in {id(self.modules[name]): self.modules[name] for name in elsewhere}.values():
            blocks.append(module.code_of([name for name in elsewhere if self.modules[name] is module]).rstrip())
        assigned = ["\n".join(f"{name} = {source}" for name, source in made.items())] if made else []
        return "\n\n\n".join([*blocks, *map(ast.unparse, rest), *assigned]) + "\n"

    def _code_beside(self, node: ast.stmt) -> str:
        """Return the code that an import of a module beside the script stands for; empty for other modules.

        The file with the functions lies elsewhere, where it cannot import its old neighbours.
        """
        if not isinstance(node, ast.ImportFrom) or any(a.asname or a.name == "*" for a in node.names):
            return ""
        path = self.local_module(node.module or "")
        reader = self.module_of(path) if path is not None else None
        return "" if reader is None else reader.code_of([a.name for a in node.names])

    def is_defined(self, name: str) -> bool:
        """Return True if the script, or a module beside it that was read, defines this function or class."""
        if name in self.modules:
            return self.modules[name].is_defined(name)
        return any(
            isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and n.name == name
            for n in ast.walk(self.tree)
        )

    def dataset(self, node: ast.expr | None) -> tuple[str, dict[str, Any], list[str]]:
        """Return (name, keywords of load_dataset, what is done to its rows afterwards) of an expression."""
        done: list[str] = []
        line = math.inf
        for _ in range(20):
            if isinstance(node, ast.Name):  # dataset = dataset.map(f): the assignment before this line is meant
                assignment = self._before(node.id, line)
                if assignment is None:
                    break
                line, node = assignment.lineno, assignment.value
            elif isinstance(node, ast.Subscript):
                node = node.value
            elif isinstance(node, ast.Call) and called(node) in ("load_dataset", "load_from_disk"):
                values = [self.value(a) for a in node.args]
                keywords = {k.arg: self.value(k.value) for k in node.keywords if k.arg}
                return str(values[0]) if values else "", keywords | {"args": values[1:]}, done
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and called(node) != "from_list":
                columns = self.value(node.args[0]) if called(node) == "from_dict" and node.args else None
                if isinstance(columns, dict) and _is_table(columns):
                    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
                    return "", {"rows": rows}, done
                if called(node) in ("from_dict", "from_generator", "from_pandas", "from_json"):
                    return "", {}, done
                if called(node) != "shuffle":  # rows are drawn at random in any case (data.shuffle)
                    done.append(f".{called(node)}(...)")
                node = node.func.value
            elif isinstance(node, ast.Call) and called(node) == "from_list" and node.args:
                rows = self.value(node.args[0])
                return "", {} if rows is UNKNOWN else {"rows": rows}, done
            else:
                break
        return "", {}, done

    def _before(self, name: str, line: float) -> ast.Assign | None:
        """The last assignment to a name before a line."""
        found = [
            n
            for n, tests in self._statements
            if isinstance(n, ast.Assign)
            and isinstance(n.targets[0], ast.Name)
            and n.targets[0].id == name
            and n.lineno < line
            and self.may_hold(tests)
        ]
        return max(found, key=lambda n: n.lineno) if found else None
