"""Conditions: whether `[[ ... ]]`, `[ ... ]` and `test` hold, None where only a run can tell."""

from __future__ import annotations

import fnmatch
import re

from .expansions import Expansions
from .syntax import Node
from .unknown_text import unknowns

_NUMERIC = {"-eq": "==", "-ne": "!=", "-lt": "<", "-le": "<=", "-gt": ">", "-ge": ">="}
_BINARY = ("=", "==", "!=", "<", ">", *_NUMERIC)
"""What compares two words of `[ ... ]`."""


class Conditions(Expansions):
    """Evaluates tests."""

    def _test_command(self, node: Node) -> bool | None:
        if self.raw(node).startswith("[") and not self.raw(node).startswith("[["):
            return self._test_words(self._words_of_test(node))
        inner = [c for c in node.named_children if c.type != "comment"]
        return self._truth(inner[0]) if len(inner) == 1 else None

    def _words_of_test(self, node: Node) -> list[str]:
        """Return the words between `[` and `]`. The tree is no help here: it binds `-o` closer than `=`."""
        words: list[str] = []
        end = -1
        for child in node.children:
            if child.type in ("[", "]", "comment"):
                continue
            if child.type.endswith("_expression"):
                new = self._words_of_test(child)
            else:
                new = [self._joined(child) if child.is_named else self.raw(child)]
            if child.start_byte == end and words and new:
                words[-1] += new.pop(0)  # --lr: the parser cuts it into -- and lr
            words += new
            end = child.end_byte
        return words

    def _test_words(self, words: list[str]) -> bool | None:
        """Return what `test` says of its words: `-o` binds less than `-a`, which binds less than `!`."""
        for operator in ("-o", "-a"):
            if operator in words[1:-1]:
                at = words.index(operator, 1)
                return _either(operator, self._test_words(words[:at]), self._test_words(words[at + 1 :]))
        if words[:1] == ["!"] and len(words) > 1:
            status = self._test_words(words[1:])
            return None if status is None else not status
        if len(words) == 3 and words[1] in _BINARY:
            left, operator, right = words
            if operator in ("=", "==", "!="):
                return None if unknowns(left + right) else (left == right) == (operator != "!=")
            return self._compare(left, operator, right)
        if len(words) == 2 and words[0].startswith("-"):
            return self._unary(words[0], words[1])
        if len(words) == 1:
            return None if unknowns(words[0]) else bool(words[0])
        return None if words else False

    def _truth(self, node: Node) -> bool | None:
        kind = node.type
        if kind == "binary_expression":
            left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
            operator = self.raw(node.child_by_field_name("operator"))
            if operator in ("&&", "||", "-a", "-o"):
                return _either(operator, self._truth(left), self._truth(right))
            if left.type == "unary_expression" and self.raw(left.children[0]) == "!":
                # [[ ! $X == a ]]: the parser binds `!` closer than the comparison that it negates.
                status = self._compare(self._joined(left.named_children[-1]), operator, self._joined(right))
                return None if status is None else not status
            return self._compare(self._joined(left), operator, self._joined(right))
        if kind == "unary_expression":
            operator = self.raw(node.children[0])
            operand = node.named_children[-1]
            if operator == "!":
                status = self._truth(operand)
                return None if status is None else not status
            return self._unary(operator, self._joined(operand))
        if kind in ("parenthesized_expression", "negation_expression"):
            status = self._truth(node.named_children[0])
            return (None if status is None else not status) if kind == "negation_expression" else status
        if kind in ("command", "test_command"):
            return self.statement(node)
        word = self._joined(node)
        return None if unknowns(word) else bool(word)

    def _compare(self, left: str, operator: str, right: str) -> bool | None:
        if unknowns(left + right):
            return None
        if operator in ("==", "="):
            return fnmatch.fnmatchcase(left, right)
        if operator == "!=":
            return not fnmatch.fnmatchcase(left, right)
        if operator == "=~":
            try:
                return re.search(right, left) is not None
            except re.error:
                return None
        try:
            a, b = int(left or 0), int(right or 0)
        except ValueError:
            return None
        sign = _NUMERIC.get(operator, operator)
        table = {"==": a == b, "!=": a != b, "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}
        return table.get(sign)

    def _unary(self, operator: str, operand: str) -> bool | None:
        if operator == "-z":
            return operand == ""
        if operator == "-n":
            return operand != ""
        if unknowns(operand):
            return None
        if operator == "-v":
            return operand in self.variables
        path = self.cwd / operand
        looks = {"-e": path.exists, "-f": path.is_file, "-d": path.is_dir, "-s": path.exists, "-r": path.exists}
        look = looks.get(operator)
        try:
            return look() if look else None
        except OSError:
            return None


def _either(operator: str, a: bool | None, b: bool | None) -> bool | None:
    """Return `a && b` or `a || b` of what may be unknown."""
    if operator in ("&&", "-a"):
        return False if False in (a, b) else None if None in (a, b) else True
    return True if True in (a, b) else None if None in (a, b) else False
