"""Arithmetic of whole numbers, as `$((...))` has it."""

from __future__ import annotations


def calculate(text: str) -> int:
    """Return the value of an expression of integers, + - * / % ( ) and comparisons."""
    import ast

    def of(node: ast.AST) -> int:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -of(node.operand)
        if isinstance(node, ast.BinOp):
            a, b = of(node.left), of(node.right)
            if isinstance(node.op, ast.Add):
                return a + b
            if isinstance(node.op, ast.Sub):
                return a - b
            if isinstance(node.op, ast.Mult):
                return a * b
            if isinstance(node.op, ast.Div | ast.FloorDiv):
                return int(a / b)
            if isinstance(node.op, ast.Mod):
                return a % b
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            a, b = of(node.left), of(node.comparators[0])
            for kind, holds in (
                (ast.Gt, a > b),
                (ast.GtE, a >= b),
                (ast.Lt, a < b),
                (ast.LtE, a <= b),
                (ast.Eq, a == b),
                (ast.NotEq, a != b),
            ):
                if isinstance(node.ops[0], kind):
                    return int(holds)
        raise ValueError(text)

    return of(ast.parse(text.strip(), mode="eval").body)
