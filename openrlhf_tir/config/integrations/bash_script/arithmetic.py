"""Arithmetic of whole numbers, as `$((...))` has it: bash itself calculates it, from digits and operators alone."""

from __future__ import annotations

import functools
import os
import re
import subprocess
from typing import NamedTuple

_EXPRESSION = re.compile(r"(?:0[xX][0-9a-fA-F]++|[-+*/%<>=!&|^~?:()\s0-9])*+")
"""Numbers and operators. Nothing of it is a command, a substitution or a name, which bash would take for a 0."""
_DEADLINE_S = 10.0
_ASSIGNMENT = re.compile(r"\s*(?P<name>[A-Za-z_]\w*)\s*(?P<sign>[-+*/%]?)=(?!=)(?P<value>.*)", re.DOTALL)
_STEP = re.compile(r"\s*(?:(?P<name>[A-Za-z_]\w*)\s*(?P<sign>\+\+|--)|(?:\+\+|--)\s*[A-Za-z_]\w*)\s*")
_CHANGED = re.compile(
    r"(?:\+\+|--)\s*([A-Za-z_]\w*)|([A-Za-z_]\w*)\s*(?:\+\+|--)|([A-Za-z_]\w*)\s*(?:[-+*/%&|^]|<<|>>)?=(?!=)"
)
_SUBSTITUTION = re.compile(r"\$\((?!\()(?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|`[^`]*`|\$\{[^}]*\}")
"""$(...), `...` and ${...}: their commas, dashes and signs are none of the arithmetic around them."""


class Assignment(NamedTuple):
    """An arithmetic expression that gives one variable a value.

    Attributes:
        name: The variable.
        new: The expression of its new value.
        value: The expression of what the assignment itself is worth, before it is made.
    """

    name: str
    new: str
    value: str


def assignment(expression: str) -> Assignment | None:
    """Return what `N = 2 * M`, `N += 1` or `N++` assigns; None for an expression of another form."""
    if match := _ASSIGNMENT.fullmatch(expression):
        name, sign = match["name"], match["sign"]
        new = f"{name} {sign} ({match['value']})" if sign else match["value"]
        return None if names_changed(match["value"]) else Assignment(name, new, new)
    if match := _STEP.fullmatch(expression):
        (name,) = names_changed(expression)
        new = f"{name} + 1" if "++" in expression else f"{name} - 1"
        return Assignment(name, new, name if match["name"] else new)
    return None


def names_changed(expression: str) -> list[str]:
    """Return the variables that an arithmetic expression gives another value."""
    return ["".join(names) for names in _CHANGED.findall(_SUBSTITUTION.sub("", expression))]


def expressions(text: str) -> list[str]:
    """Return the expressions of a text that has commas between them; one for a text with substitutions."""
    return [text] if _SUBSTITUTION.search(text) else text.split(",")


@functools.lru_cache
def calculate(text: str) -> int:
    """Return the value of an expression of whole numbers.

    Raises:
        ValueError: It is no such expression, or there is no bash here.
    """
    if _EXPRESSION.fullmatch(text) is None:
        raise ValueError(text)
    command = ["bash", "-c", 'echo "$(($1))"', "bash", text]
    environment = {"PATH": os.environ.get("PATH", os.defpath)}  # no BASH_ENV, no variables
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=_DEADLINE_S)
    except (OSError, subprocess.SubprocessError):
        raise ValueError(text) from None
    return int(done.stdout)
