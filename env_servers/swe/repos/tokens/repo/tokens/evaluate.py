"""The value of an expression."""

from .parser import parse

FUNCTIONS = {"min": min, "max": max, "abs": abs, "round": round, "sum": lambda *values: sum(values)}
OPERATIONS = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "**": lambda a, b: a**b,
}


def evaluate(text, variables=None):
    """Raises NameError for a variable or a function that is not there."""
    return _value(parse(text), variables or {})


def _value(tree, variables):
    kind = tree[0]
    if kind == "num":
        return tree[1]
    if kind == "var":
        if tree[1] not in variables:
            raise NameError(f"there is no variable {tree[1]}")
        return variables[tree[1]]
    if kind == "neg":
        return -_value(tree[1], variables)
    if kind == "call":
        if tree[1] not in FUNCTIONS:
            raise NameError(f"there is no function {tree[1]}")
        return FUNCTIONS[tree[1]](*[_value(argument, variables) for argument in tree[2]])
    return OPERATIONS[kind](_value(tree[1], variables), _value(tree[2], variables))
