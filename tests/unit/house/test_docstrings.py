"""A docstring says what it is about: it is read in a hover or a listing, without the name that it stands under."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from openrlhf_tir import errors
from tests.conftest import REPO

FRAGMENT = re.compile(r'^[ \t]*r?"""(?:Of|That it|Nothing was) .*', re.MULTILINE)
"""The beginning of a docstring that is a sentence only together with a name: "digest", "of the last push"."""

CUT_AT_A_LINE = re.compile(r"""(?:__doc__|getdoc\().*\.(?:r?partition|r?split)\(["']\\n["']|__doc__.*splitlines""")
"""Code that takes a line of a docstring, whose first sentence may go on in the next."""


def found_by(pattern: re.Pattern[str]) -> dict[str, list[str]]:
    """Return what a pattern finds in the code, by file."""
    files = [
        path
        for room in ("openrlhf_tir", "env_servers", "miniatures", "benchmarks")
        for path in (REPO / room).rglob("*.py")
    ]
    files = [path for path in files if "env_servers/swe/repos" not in path.as_posix()]  # what tasks are made of
    assert len(files) > 100
    return {path.relative_to(REPO).as_posix(): lines for path in files if (lines := pattern.findall(path.read_text()))}


def test_no_docstring_needs_its_name_to_be_a_sentence():
    assert found_by(FRAGMENT) == {}, 'begin with the noun: "The digest of the last push"'


def test_no_docstring_is_cut_at_the_end_of_a_line():
    """As the description of a command it would stop in mid-sentence."""
    assert found_by(CUT_AT_A_LINE) == {}


def public_functions(node: ast.Module | ast.ClassDef) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, str]]:
    """Yield the functions and methods that others call, with the docstring in which they say what they raise."""
    for child in node.body:
        if isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
            yield from public_functions(child)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(child) or ""
            if child.name == "__init__":
                yield child, docstring + (ast.get_docstring(node) or "")
            elif not child.name.startswith("_") or child.name == "__call__":
                yield child, docstring


def raised_by(node: ast.AST) -> Iterator[str]:
    """Yield the names of the classes that a function itself raises, not the functions inside it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(child, ast.Raise) and isinstance(child.exc, ast.Call) and isinstance(child.exc.func, ast.Name):
            yield child.exc.func.id
        yield from raised_by(child)


def unnamed_errors(source: str) -> list[str]:
    """Return the public functions that raise an error of errors.py which their docstring does not name.

    A base class of it will do. "See Engine.", with the Protocol's docstring in place of an own one, will do as well.
    """
    found = []
    for function, docstring in public_functions(ast.parse(source)):
        for name in dict.fromkeys(raised_by(function)):
            kind = getattr(errors, name, None)
            if not docstring or docstring.startswith("See ") or not isinstance(kind, type):
                continue
            names = [base.__name__ for base in kind.__mro__ if base is not errors.TirError]
            if not any(re.search(rf"\b{base}\b", docstring) for base in names):
                found.append(f"{function.name} raises {name}")
    return found


def test_a_function_that_raises_an_error_of_ours_says_so():
    """What a caller may have to handle is read in the docstring, not in the code. Commands are left out: whatever their
    `run` raises, the command line prints."""
    found = {
        path.relative_to(REPO).as_posix(): unnamed
        for path in (REPO / "openrlhf_tir").rglob("*.py")
        if (unnamed := unnamed_errors(path.read_text()))
    }
    commands = {file: names for file, names in found.items() if file.startswith("openrlhf_tir/cli/")}
    assert all(name.startswith("run ") for names in commands.values() for name in names), commands
    assert {file: names for file, names in found.items() if file not in commands} == {}


def test_an_error_that_no_docstring_names_is_found():
    body = '    raise EngineGone("gone")\n'
    assert unnamed_errors(f'def f():\n    """Run."""\n{body}') == ["f raises EngineGone"]
    assert unnamed_errors(f'def f():\n    """Run.\n\n    Raises:\n        EngineError: It died.\n    """\n{body}') == []
    assert unnamed_errors(f'def _f():\n    """Run."""\n{body}') == []
