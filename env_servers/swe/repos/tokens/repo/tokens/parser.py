"""Tokens -> a tree of tuples: ("num", 1.5), ("var", "x"), ("neg", tree), ("call", name, [trees]) and (operator, left, right)."""

from .lexer import tokenize

PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2, "//": 2, "%": 2, "**": 4}
UNARY = 3


class ParseError(Exception):
    """Tokens that are no expression."""


def parse(text):
    tokens = tokenize(text)
    tree, at = _expression(tokens, 0, 0)
    if at != len(tokens):
        raise ParseError(f"unexpected {tokens[at][1]!r} in column {tokens[at][2]}")
    return tree


def _expression(tokens, at, least):
    left, at = _operand(tokens, at)
    while at < len(tokens):
        operator = tokens[at][1]
        level = PRECEDENCE.get(operator)
        if level is None or level < least:
            break
        right, at = _expression(tokens, at + 1, level if operator == "**" else level + 1)
        left = (operator, left, right)
    return left, at


def _operand(tokens, at):
    if at >= len(tokens):
        raise ParseError("the expression ends too early")
    kind, text, column = tokens[at]
    if kind == "number":
        return ("num", float(text) if "." in text else int(text)), at + 1
    if text == "-":
        inner, at = _expression(tokens, at + 1, UNARY)
        return ("neg", inner), at
    if text == "(":
        inner, at = _expression(tokens, at + 1, 0)
        return inner, _expect(tokens, at, ")")
    if kind != "name":
        raise ParseError(f"unexpected {text!r} in column {column}")
    if at + 1 < len(tokens) and tokens[at + 1][1] == "(":
        return _call(tokens, at + 2, text)
    return ("var", text), at + 1


def _call(tokens, at, name):
    arguments = []
    if at < len(tokens) and tokens[at][1] == ")":
        return ("call", name, arguments), at + 1
    while True:
        argument, at = _expression(tokens, at, 0)
        arguments.append(argument)
        if at < len(tokens) and tokens[at][1] == ",":
            at += 1
            continue
        return ("call", name, arguments), _expect(tokens, at, ")")


def _expect(tokens, at, text):
    if at >= len(tokens) or tokens[at][1] != text:
        raise ParseError(f"{text!r} is missing")
    return at + 1


def to_text(tree, least=0):
    """The tree as text, with no more parentheses than are needed."""
    kind = tree[0]
    if kind in ("num", "var"):
        return str(tree[1])
    if kind == "neg":
        text = "-" + to_text(tree[1], UNARY)
        return f"({text})" if least > UNARY else text
    if kind == "call":
        return f"{tree[1]}({', '.join(to_text(argument) for argument in tree[2])})"
    level = PRECEDENCE[kind]
    right_first = kind == "**"
    left = to_text(tree[1], level + 1 if right_first else level)
    right = to_text(tree[2], level if right_first else level + 1)
    text = f"{left} {kind} {right}"
    return f"({text})" if level < least else text
