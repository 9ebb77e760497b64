"""Conditions: whether `[[ ... ]]`, `[ ... ]` and `test` hold, None where only a run can tell."""

from __future__ import annotations

import fnmatch
import operator
import re
from collections.abc import Callable

from .expansions import Expansions
from .syntax import Node
from .unknown_text import unknowns

_OF_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-lt": operator.lt,
    "-le": operator.le,
    "-gt": operator.gt,
    "-ge": operator.ge,
}
_BINARY = ("=", "==", "!=", "<", ">", *_OF_NUMBERS)
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
        for joint in ("-o", "-a"):
            if joint in words[1:-1]:
                at = words.index(joint, 1)
                return _joined_by(joint, self._test_words(words[:at]), self._test_words(words[at + 1 :]))
        if words[:1] == ["!"] and len(words) > 1:
            return negated(self._test_words(words[1:]))
        if len(words) == 3 and words[1] in _BINARY:
            left, sign, right = words
            if sign in ("=", "==", "!="):
                return None if unknowns(left + right) else (left == right) == (sign != "!=")
            return _compare(left, sign, right)
        if len(words) == 2 and words[0].startswith("-"):
            return self._unary(words[0], words[1])
        if len(words) == 1:
            return None if unknowns(words[0]) else bool(words[0])
        return None if words else False

    def _truth(self, node: Node) -> bool | None:
        kind = node.type
        if kind == "binary_expression":
            left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
            sign = self.raw(node.child_by_field_name("operator"))
            if sign in ("&&", "||"):
                return _joined_by(sign, self._truth(left), self._truth(right))
            if left.type == "unary_expression" and self.raw(left.children[0]) == "!":
                # [[ ! $X == a ]]: the parser binds `!` closer than the comparison that it negates.
                return negated(_compare(self._joined(left.named_children[-1]), sign, self._joined(right)))
            return _compare(self._joined(left), sign, self._joined(right))
        if kind == "unary_expression":
            sign = self.raw(node.children[0])
            operand = node.named_children[-1]
            return negated(self._truth(operand)) if sign == "!" else self._unary(sign, self._joined(operand))
        if kind == "parenthesized_expression":
            return self._truth(node.named_children[0])
        if kind == "negation_expression":
            return negated(self._truth(node.named_children[0]))
        if kind in ("command", "test_command"):
            return self.statement(node)
        word = self._joined(node)
        return None if unknowns(word) else bool(word)

    def _unary(self, sign: str, operand: str) -> bool | None:
        if sign == "-z":
            return operand == ""
        if sign == "-n":
            return operand != ""
        if unknowns(operand):
            return None
        if sign == "-v":
            return operand in self.variables
        path = self.cwd / operand
        looks = {"-e": path.exists, "-f": path.is_file, "-d": path.is_dir, "-s": path.exists, "-r": path.exists}
        look = looks.get(sign)
        try:
            return look() if look else None
        except OSError:
            return None


def negated(status: bool | None) -> bool | None:
    """Return the opposite of what may be unknown."""
    return None if status is None else not status


def _joined_by(joint: str, a: bool | None, b: bool | None) -> bool | None:
    """Return `a && b` or `a || b` of what may be unknown."""
    decisive = joint in ("||", "-o")
    if decisive in (a, b):
        return decisive
    return None if None in (a, b) else not decisive


def _compare(left: str, sign: str, right: str) -> bool | None:
    """Return what `[[ left sign right ]]` says; `right` may be a pattern."""
    if unknowns(left + right):
        return None
    if sign in ("==", "=", "!="):
        return fnmatch.fnmatchcase(left, right) == (sign != "!=")
    if sign in ("<", ">"):  # of texts, those of digits as well
        return left < right if sign == "<" else left > right
    try:
        if sign == "=~":
            return re.search(right, left) is not None
        return _OF_NUMBERS[sign](int(left or 0), int(right or 0))
    except (KeyError, ValueError, re.error):
        return None
