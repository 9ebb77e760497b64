"""Rewrite code before it runs as verl's ReTool recipe does, so that the value of the last line is printed.

    x = 1                 x = 1
    x + 1        --->     print(x + 1)

`official` wraps the last line that is not empty, whatever it is. This breaks code that ends in an assignment, an
import, a comment or an indented line. `expression` wraps the last statement, and only if it is an expression at the
beginning of a line that does not print already. Source: verl-project/verl-recipe, retool/retool.py.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

_FENCED = re.compile(r"```python(.*?)```", re.DOTALL)


def official(code: str) -> str:
    """Return the code as the recipe sends it to the sandbox."""
    if fenced := _FENCED.search(code):
        code = fenced.group(1).strip()
    lines = code.split("\n")
    last = next((i for i in reversed(range(len(lines))) if lines[i]), None)
    if last is not None and not lines[last].startswith("print"):
        lines[last] = f"print({lines[last]})"
    return "\n".join(lines)


def expression(code: str) -> str:
    """Return the code with its last value printed; unchanged if it has none or does not compile."""
    if fenced := _FENCED.search(code):
        code = fenced.group(1).strip()
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return code
    last = body[-1] if body else None
    if not isinstance(last, ast.Expr) or last.col_offset or _prints(last.value):
        return code
    segment = ast.get_source_segment(code, last)
    if segment is None or last.end_lineno is None:
        return code
    lines = code.split("\n")
    return "\n".join([*lines[: last.lineno - 1], f"print({segment})", *lines[last.end_lineno :]])


def _prints(value: ast.expr) -> bool:
    """Return True for a call of print."""
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "print"


REWRITES: dict[str, Callable[[str], str]] = {"official": official, "expression": expression}
"""Values of env.options.print_last."""
