"""The tree of errors at the head of errors.py is the classes': each at its place, none left out."""

from __future__ import annotations

import inspect
import re

from openrlhf_tir import errors

LINE = re.compile(r"^    ((?:[ |]  )*)\|- (\w+)", re.MULTILINE)


def classes() -> dict[str, str]:
    """Name of each error -> name of its base."""
    found = inspect.getmembers(errors, inspect.isclass)
    return {name: c.__bases__[0].__name__ for name, c in found if issubclass(c, errors.TirError) and name != "TirError"}


def tree() -> dict[str, str]:
    """The same, as the docstring draws it."""
    parents = ["TirError"]
    drawn = {}
    for indent, name in LINE.findall(errors.__doc__):
        depth = len(indent) // 3 + 1
        drawn[name] = parents[depth - 1]
        parents[depth:] = [name]
    return drawn


def test_the_tree_of_errors_has_every_class_below_its_base():
    assert tree() == classes()
