"""Code reads from top to bottom, one decision at a time."""

from __future__ import annotations

import ast

from tests.conftest import REPO


def nested_conditionals(source: str) -> list[int]:
    """Return the lines of conditional expressions of which a part is another one: `a if x else b if y else c`."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.IfExp)
        and any(isinstance(part, ast.IfExp) for part in (node.body, node.test, node.orelse))
    ]


def test_no_conditional_expression_is_in_another_one():
    found = {
        path.relative_to(REPO).as_posix(): lines
        for room in ("openrlhf_tir", "env_servers", "miniatures", "benchmarks")
        for path in (REPO / room).rglob("*.py")
        if "env_servers/swe/repos" not in path.as_posix()  # what tasks are made of
        if (lines := nested_conditionals(path.read_text()))
    }
    assert found == {}, "write it as statements"


def test_a_nested_conditional_is_found():
    assert nested_conditionals("a = 1 if x else 2\nb = 1 if x else 2 if y else 3") == [2]
