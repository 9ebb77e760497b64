"""Statements: a script's tree in the order in which bash would run it: lists, conditions, loops, functions."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from typing import Any

from .commands import Commands, trains
from .conditions import negated
from .ends import ENDS, MAX_COMMANDS, MAX_DEPTH, MAX_ROUNDS, Break, Continue, Enough, Exit, Return
from .script import Command
from .syntax import PLACEHOLDER, Node, errors, parser
from .unknown_text import readable, unknowns

_CONTINUED_END = re.compile(r"(\s*\\\n?)+\s*\Z")
"""A backslash behind the last word of a text: the line that it continues is empty."""
_LIST = re.compile(r"=\\?\[[^\s'\"]*")
"""x=[$A,$B], a list of Hydra's. The parser knows the variables of it only in braces."""
_NAME = re.compile(r"\$([A-Za-z_]\w*)")
_ARGUMENTS = re.compile(r"\$[{]?#?[0-9@*#]")
"""The script's arguments, $1 and $#: the caller has them."""
_MACHINE = re.compile(r"(?<!\S)-[b-np-zA-Z]\s")
"""A test of a file, or of whether a variable is empty: on the machine of the script it may come out otherwise."""
_COUNTS = re.compile(r"\A\(\(|\s-(?:eq|ne|lt|le|gt|ge)\s")
"""A comparison of numbers, of which one may be counted."""
_READS = re.compile(r"\bread\b")
_WAITS = re.compile(r"(?=.*\bsleep\b)(?=.*\b(?:break|exit|return)\b)(?!.*\bdone\b.*\bdone\b)", re.DOTALL)
"""A loop, without another inside, that waits up to a limit for what is not here: its last round may end the script."""
_ASSIGNMENTS = ("variable_assignment", "variable_assignments", "declaration_command")
"""Statements that give variables values."""


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
        text = _CONTINUED_END.sub("\n", text.replace("\r\n", "\n"))
        text = _LIST.sub(lambda match: _NAME.sub(r"${\1}", match[0]), PLACEHOLDER.sub(r"\1'<\2>'", text))
        source = text.encode()
        with self.inside(source=source):
            root = parser().parse(source).root_node
            for node in errors(root):
                words = " ".join(self.raw(node).split())[:60]
                self.script.note(
                    f"Line {self.line(node)} is not bash that can be read ({words!r}); what is around it was."
                )
            self.children(root)

    def nested(self, text: str, line: int) -> None:
        """Read a text that a command runs in a shell of its own: nothing that it sets outlives it."""
        with self._in_a_shell_of_its_own(first_line=line), suppress(Exit, Return):
            self.text(text)

    def _in_a_shell_of_its_own(self, **state: Any) -> AbstractContextManager[None]:
        """Keep what is set inside from what follows. A `break` inside ends no loop that is around."""
        return self.inside(
            variables=dict(self.variables),
            functions=dict(self.functions),
            positional=self.positional,
            cwd=self.cwd,
            loops=0,
            **state,
        )

    def statement(self, node: Node) -> bool | None:
        """Run one statement. Returns whether it succeeds, None where only running it could tell."""
        handler: Callable[[Node], bool | None] | None = getattr(self, f"_{node.type}", None)
        if handler is not None:
            return handler(node)
        if node.type in ("program", "do_group", "pipeline", "ERROR"):
            self.children(node)
        elif node.type == "subshell":
            with self._in_a_shell_of_its_own(), suppress(Exit):
                self.children(node)
        return None

    def _compound_statement(self, node: Node) -> bool | None:
        """`{ ...; }`, or `((...))`, which holds where its value is not 0."""
        raw = self.raw(node)
        if not raw.startswith("(("):
            self.children(node)
            return None
        value = self.evaluated(raw[2:-2], raw)
        return None if unknowns(value) else value not in ("0", "")

    def _list(self, node: Node) -> bool | None:
        """`a && b`, `a || b`."""
        first, second = node.named_children[0], node.named_children[-1]
        operator = next((c.type for c in node.children if c.type in ("&&", "||")), "&&")
        status = self.statement(first)
        if status is None and second.type in _ASSIGNMENTS and first.type not in _ASSIGNMENTS:
            self._say_taken([first])
        if (status is False) == (operator == "&&"):
            return status
        before = len(self.script.commands)
        try:
            return self.statement(second)
        except ENDS:
            if not self._may_go_on([first], status, before):
                raise
            return None

    def _negated_command(self, node: Node) -> bool | None:
        return negated(self.statement(node.named_children[0]))

    def _if_statement(self, node: Node) -> None:
        clauses = [c for c in node.named_children if c.type in ("elif_clause", "else_clause")]
        conditions: list[Node] = []
        known: bool | None = True
        for clause in (node, *clauses):
            condition, branch = self._condition_and_branch(clause)
            status = self._status(condition)
            conditions += condition
            known = None if status is None else known
            if status is not False and self._branch(branch, conditions, known):
                if status is None:
                    self._say_taken(condition)
                return

    def _condition_and_branch(self, clause: Node) -> tuple[list[Node], list[Node]]:
        """Return what stands before and behind the `then` of an `if` or `elif`. An `else` has no condition."""
        parts = [c for c in clause.children if c.type not in ("elif_clause", "else_clause")]
        then = next((i for i, part in enumerate(parts) if part.type == "then"), 0)
        return [c for c in parts[:then] if c.is_named], [c for c in parts[then:] if c.is_named]

    def _branch(self, branch: list[Node], condition: list[Node], status: bool | None) -> bool:
        """Read the statements behind a condition. Return False if they end what they are in and it is read on."""
        before = len(self.script.commands)
        try:
            self._all(branch)
        except ENDS:
            if not self._may_go_on(condition, status, before):
                raise
            return False
        return True

    def _status(self, condition: list[Node]) -> bool | None:
        """Return whether a condition holds, None where only a run can tell."""
        status: bool | None = True
        for node in condition:
            status = self.statement(node)
        return status

    def _say_taken(self, condition: list[Node]) -> None:
        words = " ".join(self.raw(condition[-1]).split())
        self.script.note(
            f"Line {self.line(condition[0])}: whether `{words}` holds only a run can tell; it is taken to hold."
        )

    def _may_go_on(self, condition: list[Node], status: bool | None, before: int) -> bool:
        """Return True if an `exit`, `return`, `break` or `continue` only guards what follows, and say so.

        `if ! curl -s $SERVER; then exit 1; fi` and `[ -f rows.jsonl ] || exit 1` ask for what is there on the machine
        of the script. Here it need not be.

        Args:
            condition: The conditions that lead to it.
            status: What came out of them here; None where only a run can tell.
            before: How many commands the script had before the branch that ends it.
        """
        text = "; ".join(" ".join(self.raw(node).split()) for node in condition)
        if self._trainings(before) or _ARGUMENTS.search(text) or not (status is None or _MACHINE.search(text)):
            return False
        self.script.note(
            f"Line {self.line(condition[0])}: `{text}` may end the script or a loop here, which only its machine can"
            " tell; it is read on. See to it that what is asked for is there."
        )
        return True

    def _all(self, nodes: list[Node]) -> None:
        for node in nodes:
            self.statement(node)

    def _case_statement(self, node: Node) -> None:
        value = self._joined(node.child_by_field_name("value"))
        taken = "none"
        for item in node.named_children:
            if item.type != "case_item":
                continue
            patterns = item.children_by_field_name("value")
            if any(fnmatch.fnmatchcase(value, self._joined(pattern)) for pattern in patterns):
                status = None if unknowns(value) else True
                taken = f"`{self.raw(patterns[0])})`"
                branch = [c for c in item.named_children if c not in patterns]
                self._branch(branch, [node.child_by_field_name("value")], status)
                break
        if unknowns(value):
            self.script.note(
                f"Line {self.line(node)}: which branch `case {readable(value)}` takes only a run can tell;"
                f" {taken} is read here."
            )

    def _for_statement(self, node: Node) -> None:
        name = self.raw(node.child_by_field_name("variable"))
        values = [word for child in node.children_by_field_name("value") for word in self.words(child)]

        def rounds() -> Iterator[None]:
            for value in values:
                self.variables[name] = value
                yield

        self._loop(rounds(), node)

    def _while_statement(self, node: Node) -> None:
        """A loop over the script's arguments or over known lines, or one that counts, runs as often as bash would run
        it, every other one once."""
        condition, body = node.child_by_field_name("condition"), node.child_by_field_name("body")
        text = "" if condition is None else self.raw(condition)
        if text.startswith("getopts"):
            self.variables["OPTIND"] = "1"
            self.script.note(
                f"Line {self.line(node)}: the flags that the script takes by getopts are not read, as if none were"
                " given. Set their variables in the environment, or correct the recipe."
            )
            return
        status = None if condition is None else self.statement(condition)
        reads_lines = self.lines is not None and _READS.search(text)
        is_counted = status is not None and (reads_lines or (_COUNTS.search(text) and not _MACHINE.search(text)))
        if body is None or not (is_counted or _ARGUMENTS.search(text)):
            self._once(node)
            return
        ends_when_true = node.children[0].type == "until"
        before = len(self.script.commands)

        def rounds() -> Iterator[None]:
            holds = status
            for _ in range(MAX_ROUNDS):
                if holds is None:
                    self._say_once(node, before)
                if holds is None or holds == ends_when_true:
                    return
                yield
                holds = self.statement(condition)

        self._loop(rounds(), node)

    def _loop(self, rounds: Iterable[None], node: Node) -> None:
        """Read a loop whose rounds are known, up to a `break`.

        A round that starts what the one before it started adds nothing: it waits, or tries a training again. Of a loop
        that waits for something else than a training, what it waits for is taken to be there in the first round.
        """
        body = node.child_by_field_name("body")
        waits = _WAITS.match(self.raw(body)) is not None
        first = len(self.script.commands)
        commands: list[Command] = []
        trainings: list[Command] = []
        self.loops += 1
        try:
            for _ in rounds:
                before = len(self.script.commands)
                with suppress(Continue):
                    self.statement(body)
                earlier = commands, trainings
                commands, trainings = self.script.commands[before:], self._trainings(before)
                if commands == earlier[0] or (trainings and trainings == earlier[1]):
                    self._say_once(node, before)
                    del self.script.commands[before:]
                if waits and not self._trainings(first):
                    break
        except Break:
            pass
        finally:
            self.loops -= 1

    def _once(self, node: Node) -> None:
        """A loop whose number of rounds only a run can tell.

        A `break` or `continue` in it is passed over: another round may come to what is behind it.
        """
        before = len(self.script.commands)
        body = node.child_by_field_name("body")
        if body is not None:
            with self.inside(loops=0):
                self.statement(body)
        self._say_once(node, before)

    def _say_once(self, node: Node, before: int) -> None:
        """Say that a loop's rounds are read as one, if a training is among the commands from number `before` on."""
        if self._trainings(before):
            self.script.note(f"Line {self.line(node)} begins a loop; its commands are read once.")

    def _trainings(self, before: int) -> list[Command]:
        """Return the commands from number `before` on that start a training."""
        return [command for command in self.script.commands[before:] if any(map(trains, command.words))]

    def _c_style_for_statement(self, node: Node) -> None:
        """`for ((i = 0; i < N; i++))`, as often as bash would run it; once where only a run can tell how often."""
        parts = [node.child_by_field_name(name) for name in ("initializer", "condition", "update")]
        first, condition, update = ("" if part is None else self.raw(part) for part in parts)
        raw = f"(({first}; {condition}; {update}))"
        before = len(self.script.commands)
        self.evaluated(first or "0", raw)
        if not condition or unknowns(self.evaluated(condition, raw)):
            self._once(node)
            return

        def rounds() -> Iterator[None]:
            for _ in range(MAX_ROUNDS):
                value = self.evaluated(condition, raw)
                if unknowns(value):
                    self._say_once(node, before)
                if unknowns(value) or value == "0":
                    return
                yield
                self.evaluated(update or "0", raw)

        self._loop(rounds(), node)

    def _function_definition(self, node: Node) -> None:
        self.functions[self.raw(node.child_by_field_name("name"))] = (node.child_by_field_name("body"), self.source)

    def _comment(self, node: Node) -> None:
        return
