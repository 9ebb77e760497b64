"""The names of the functions that an expression of a script stands for: rewards, tools."""

from __future__ import annotations

import ast

from .syntax import WithConstant, added_to, at_line, called, names_in, statements
from .values import DEPENDS_ON_RUN, UNKNOWN, SourceReader

FOLLOWED = (
    *(ast.List, ast.Tuple, ast.Name, ast.Subscript, ast.ListComp),
    *(ast.Attribute, ast.IfExp, ast.Constant, ast.BinOp),
)
"""What a name that holds functions may hold, in which their names are looked for."""


def function_names(reader: SourceReader, node: ast.expr) -> list[str]:
    """Return the names in a list of functions. What is no name is its source; None is no function."""
    return _FunctionNames(reader).of(node)


class _FunctionNames:
    """Looks for the names of functions in the expressions of one script."""

    def __init__(self, reader: SourceReader) -> None:
        self.reader = reader
        self._reading: set[int] = set()
        """Ids of the expressions that are being read."""

    def of(self, node: ast.expr) -> list[str]:
        """Return the names in an expression."""
        if id(node) in self._reading:  # others = others + [right], where `others` is an argument of a function
            return [ast.unparse(node)]
        self._reading.add(id(node))
        try:
            found = self._inside(node)
        finally:
            self._reading.remove(id(node))
        return [ast.unparse(node)] if found is None else found

    def _inside(self, node: ast.expr) -> list[str] | None:
        """Return the names in an expression; None if it is no list of functions."""
        match node:
            case ast.Constant(value=None):
                return []
            case ast.Name(id=name):
                held = self.reader.given(node)
                if isinstance(held, FOLLOWED):
                    return [*self.of(held), *self._appended(node, held)]
                made = self._inside(held) if isinstance(held, ast.Call) else None
                return [name] if held is None or made is None else [*made, *self._appended(node, held)]
            case ast.Attribute():
                held = self.reader.given(node)
                if held is not None and not any(part is node for part in ast.walk(held)):
                    return self.of(held)
                values = self.reader.value(node)  # script_args.reward_funcs
                return list(map(str, values)) if isinstance(values, list) else None
            case ast.IfExp():
                test = self.reader.value(node.test)
                return None if test is UNKNOWN else self.of(node.body if test else node.orelse)
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                return self._of_all(parts)
            case ast.Starred(value=inner):  # [right, *others]
                return self.of(inner)
            case ast.BinOp(left=left, op=ast.Add(), right=right):  # [right] + others
                return self._of_all([left, right])
            case ast.ListComp():
                made_of_each = self._each(node)
                return None if made_of_each is None else self._of_all(made_of_each)
            case ast.Call(func=ast.Name(id="list" | "tuple"), args=[items]):
                return self.of(items)
            case ast.Call():
                return self._list_made_by(node)
            case ast.Subscript(value=table):  # registry["accuracy"]
                return self._item(table, node.slice)
        return None

    def _of_all(self, nodes: list[ast.expr]) -> list[str]:
        return [name for node in nodes for name in self.of(node)]

    def _appended(self, name: ast.Name, made: ast.expr) -> list[str]:
        """Return the names that are added to a list after it is made: `funcs.append(f)`, `funcs += [f]`.

        Args:
            name: The name of the list, where it is used.
            made: The expression that it was given.
        """
        first = self.reader.first_line(name, made)
        found: list[str] = []
        for statement, tests in statements(self.reader.tree.body, into_functions=True):
            if not first <= statement.lineno < name.lineno:
                continue
            added = added_to(statement, name.id)
            if added is None:
                continue
            values = [self.reader.value(test) for test in tests]
            if any(value is not UNKNOWN and not value for value in values):
                continue
            found += self.of(added)
            if UNKNOWN in values:
                self.reader.notes.append(f"line {statement.lineno}: {ast.unparse(statement)} {DEPENDS_ON_RUN}")
        return found

    def _list_made_by(self, call: ast.Call) -> list[str] | None:
        """Return the names in the list that a function of the script, or of a module beside it, returns.

        None where it returns no list, or none that reading tells.
        """
        reader, function = self._definition(call)
        if function is None:
            return None
        returned = [n.value for n, _ in statements(function.body) if isinstance(n, ast.Return) and n.value is not None]
        if not returned:
            return None
        held = reader.given(returned[-1]) if isinstance(returned[-1], ast.Name) else returned[-1]
        if not isinstance(held, ast.List | ast.Tuple | ast.ListComp):
            return None
        if reader is self.reader:
            return self.of(returned[-1])
        names = function_names(reader, returned[-1])
        self.reader.notes += reader.notes
        self.reader.modules |= {
            part: reader
            for source in names
            for part in names_in(source)
            if reader.is_defined(part) or reader.imported(part) is not None
        }
        return names

    def _definition(self, call: ast.Call) -> tuple[SourceReader, ast.FunctionDef | None]:
        """Return the definition of what is called, with the reader of the module that has it."""
        name = called(call)
        function = self.reader.function(name)
        place = self.reader.imported(name) if isinstance(call.func, ast.Name) else None
        if function is not None or place is None:
            return self.reader, function
        module = self.reader.module_beside(place[0])
        if module is None:
            return self.reader, None
        module.flags = self.reader.flags
        return module, module.function(place[1])

    def _item(self, node: ast.expr, key: ast.expr) -> list[str] | None:
        """Return the names in an item of a table; None where there is no such item."""
        table = self.reader.given(node) if isinstance(node, ast.Name) else node
        if not isinstance(table, ast.Dict):
            return None
        wanted = self.reader.value(key)
        for name, value in zip(table.keys, table.values, strict=True):
            if name is not None and self.reader.value(name) == wanted:
                return self.of(value)
        return None

    def _each(self, node: ast.ListComp) -> list[ast.expr] | None:
        """Return what `[f(x) for x in list]` makes of each item, unevaluated; None where the list is not known."""
        loop = node.generators[0]
        values = self.reader.value(loop.iter)
        if len(node.generators) > 1 or loop.ifs:
            return None
        if not isinstance(loop.target, ast.Name) or not isinstance(values, list):
            return None
        made = []
        for value in values:
            copy = ast.parse(ast.unparse(node.elt), mode="eval").body
            item = WithConstant(loop.target.id, value).visit(copy)
            made.append(ast.fix_missing_locations(at_line(item, node.lineno)))
        return made
