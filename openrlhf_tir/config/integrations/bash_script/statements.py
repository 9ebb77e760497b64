"""Statements: a script's tree in the order in which bash would run it: lists, conditions, loops, functions."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from contextlib import suppress

from .commands import Commands, trains
from .ends import MAX_COMMANDS, MAX_DEPTH, Enough, Exit, Return
from .syntax import PLACEHOLDER, Node, errors, parser
from .unknown_text import unknowns


class Statements(Commands):
    """Walks one script in the order in which bash would run it."""

    # running texts and nodes

    def run(self, text: str) -> None:
        """Read a whole script, up to its `exit`."""
        try:
            with suppress(Exit, Return):
                self.text(text)
            for path in sorted(self.unread):  # scripts that are started by hand, or by what is not read here
                if not path.endswith(".py") and trains(self.script.files[path]):
                    self.nested(self.script.files[path], 0)
        except Enough:
            self.script.note(
                f"Reading stopped after {MAX_COMMANDS} commands, or {MAX_DEPTH} scripts inside one another."
                " Give the flags themselves if what you want comes later."
            )

    def text(self, text: str) -> None:
        """Read a text in the current scope."""
        source = PLACEHOLDER.sub(r"\1'<\2>'", text.replace("\r\n", "\n")).encode()
        outer, self.source = self.source, source
        self.depth += 1
        try:
            if self.depth > MAX_DEPTH:
                raise Enough
            root = parser().parse(source).root_node
            for node in errors(root):
                words = " ".join(self.raw(node).split())[:60]
                self.script.note(
                    f"Line {self.line(node)} is not bash that can be read ({words!r}); what is around it was."
                )
            self.children(root)
        finally:
            self.depth -= 1
            self.source = outer

    def nested(self, text: str, line: int) -> None:
        """Read a text that a command runs in a shell of its own: nothing that it sets outlives it."""
        saved = (dict(self.variables), list(self.positional), dict(self.functions), self.cwd, self.first_line)
        self.first_line = line
        try:
            self.text(text)
        except (Exit, Return):
            pass
        finally:
            self.variables, self.positional, self.functions, self.cwd, self.first_line = saved

    def statement(self, node: Node) -> bool | None:
        """Run one statement. Returns whether it succeeds, None where only running it could tell."""
        handler: Callable[[Node], bool | None] | None = getattr(self, f"_{node.type}", None)
        if handler is not None:
            return handler(node)
        if node.type in ("program", "do_group", "pipeline", "ERROR"):
            self.children(node)
        elif node.type == "subshell":
            cwd, variables = self.cwd, dict(self.variables)
            try:
                self.children(node)
            except Exit:
                pass
            finally:
                self.cwd, self.variables = cwd, variables
        return None

    def _compound_statement(self, node: Node) -> bool | None:
        """`{ ...; }`, or `((...))`, which holds where its value is not 0."""
        raw = self.raw(node)
        if not raw.startswith("(("):
            self.children(node)
            return None
        value = self.calculated(raw[2:-2], raw)
        return None if unknowns(value) else value not in ("0", "")

    def _list(self, node: Node) -> bool | None:
        """`a && b`, `a || b`."""
        first, second = node.named_children[0], node.named_children[-1]
        operator = next((c.type for c in node.children if c.type in ("&&", "||")), "&&")
        status = self.statement(first)
        if operator == "&&":
            return status if status is False else self.statement(second)
        return self.statement(second) if status is False else status

    def _negated_command(self, node: Node) -> bool | None:
        status = self.statement(node.named_children[0])
        return None if status is None else not status

    def _if_statement(self, node: Node) -> None:
        branch: list[Node] = []
        condition: list[Node] = []
        seen_then = False
        for child in node.children:
            if child.type in ("elif_clause", "else_clause"):
                break
            if child.type == "then":
                seen_then = True
            elif child.is_named:
                (branch if seen_then else condition).append(child)
        if self._holds(condition):
            self._all(branch)
            return
        for clause in node.named_children:
            if clause.type == "elif_clause":
                parts = [c for c in clause.children if c.is_named or c.type == "then"]
                at = next((i for i, c in enumerate(parts) if c.type == "then"), len(parts))
                if self._holds(parts[:at]):
                    self._all(parts[at + 1 :])
                    return
            elif clause.type == "else_clause":
                self.children(clause)
                return

    def _holds(self, condition: list[Node]) -> bool:
        status: bool | None = True
        for node in condition:
            status = self.statement(node)
        if status is None and condition:
            words = " ".join(self.raw(condition[-1]).split())
            self.script.note(
                f"Line {self.line(condition[0])}: whether `{words}` holds only a run can tell; it is taken to hold."
            )
        return status is not False

    def _all(self, nodes: list[Node]) -> None:
        for node in nodes:
            self.statement(node)

    def _case_statement(self, node: Node) -> None:
        value = self._joined(node.child_by_field_name("value"))
        for item in node.named_children:
            if item.type != "case_item":
                continue
            patterns = item.children_by_field_name("value")
            if any(fnmatch.fnmatchcase(value, self._joined(pattern)) for pattern in patterns):
                self._all([c for c in item.named_children if c not in patterns])
                return

    def _for_statement(self, node: Node) -> None:
        name = self.raw(node.child_by_field_name("variable"))
        values = [word for child in node.children_by_field_name("value") for word in self.words(child)]
        for value in values:
            self.variables[name] = value
            self.statement(node.child_by_field_name("body"))

    def _once(self, node: Node) -> None:
        """A loop whose number of rounds only a run can tell."""
        before = len(self.script.commands)
        body = node.child_by_field_name("body")
        if body is not None:
            self.statement(body)
        if any(trains(word) for command in self.script.commands[before:] for word in command.words):
            self.script.note(f"Line {self.line(node)} begins a loop; its commands are read once.")

    _while_statement = _once
    _c_style_for_statement = _once

    def _function_definition(self, node: Node) -> None:
        self.functions[self.raw(node.child_by_field_name("name"))] = (node.child_by_field_name("body"), self.source)

    def _comment(self, node: Node) -> None:
        return
