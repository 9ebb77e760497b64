"""A pytest plugin that rewords every message of the code under test, to find the tests that depend on prose.

    bash tests/run.sh reworded tests/unit/weights       every failure is a test that asserts the wording of a message

While a module is imported, each plain word in the text of an error, a log line, a printed line or a question is spelt
backwards. What a test may rely on stays as it is: values, and names of settings, flags, files, metrics and states,
which have a dot, a dash, an underscore, a slash, a quote, a digit or a capital letter inside. So does the prompt of a
task, which is behaviour.

Words that are values too (`ppo` in a list of losses that is part of a sentence) are spelt backwards as well: a failure
is a question, not a verdict. docs/settings.md is generated and quotes such sentences: the test that compares it fails.
Python processes that a test starts are reworded too, unless they ignore PYTHONPATH.
"""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import math
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType

REPO = Path(__file__).resolve().parents[1]
PACKAGES = ("openrlhf_tir", "env_servers", "miniatures", "benchmarks")
MESSAGES_RETURNED = tuple(
    f"openrlhf_tir.{room}."
    for room in ("cli", "cluster", "config", "data", "engines", "evaluation", "learner", "pipeline", "weights")
)
"""Rooms whose functions return and yield sentences that end up in errors."""
NO_MESSAGES_RETURNED = (
    "openrlhf_tir.config.integrations.trl_import",
    "openrlhf_tir.data.export_template",
    "openrlhf_tir.data.jinja_template",
    "openrlhf_tir.evaluation.suites",
)
"""Modules of these rooms whose functions return Jinja, Python, or fields that a page of docs/ names."""
TELLERS = {
    *("print", "exit", "input", "ask", "unknown"),
    *("warn", "warning", "info", "error", "exception", "critical", "debug"),
}
"""Functions and methods whose arguments are shown to a person."""
COLLECTORS = {"add", "differs", "Difference", "note", "NotRead", "Problem", "Refused", "say", "set"}
"""Functions, methods and classes that collect sentences to show to a person, among other things that they take."""
WORD = re.compile(r"(?<![^\s(])([A-Za-z]?[a-z]+)(?=[.,:;?!)]*(?:\s|$))")
"""A word between blanks, brackets and marks. Whatever else touches it makes it a name."""
FEWEST_WORDS = 2
"""Shorter texts are names: a state, a kind, a heading."""
FEWEST_WORDS_COLLECTED = 4
"""Shorter texts that a collector takes are members of a set, or values."""


CHILD = f"""
import runpy, sys
sys.meta_path.insert(0, runpy.run_path({__file__!r})["Finder"]())
"""
"""What a process that a test starts does first."""


def reworded(text: str) -> str:
    """Return the text with its plain words spelt backwards."""
    return WORD.sub(lambda found: found[1][::-1], text)


class Reword(ast.NodeTransformer):
    """Rewords the texts in what is raised, told to a person, or returned as a message.

    Args:
        returned: Whether the module's returned and yielded sentences are messages.
    """

    def __init__(self, *, returned: bool) -> None:
        self.returned = returned
        self.fewest: float = math.inf
        """How many plain words a text must have to be a message, where the visit is."""

    def _as_message(self, node: ast.AST, fewest: float = FEWEST_WORDS) -> ast.AST:
        outside = self.fewest
        self.fewest = min(outside, fewest)
        try:
            return self.generic_visit(node)
        finally:
            self.fewest = outside

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return self._as_message(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in TELLERS or name.endswith(("Error", "Exit")):
            return self._as_message(node)
        return self._as_message(node, FEWEST_WORDS_COLLECTED) if name in COLLECTORS else self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> ast.AST:
        return self._as_message(node) if self.returned else self.generic_visit(node)

    def visit_Yield(self, node: ast.Yield) -> ast.AST:
        return self._as_message(node) if self.returned else self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        if len(WORD.findall(_constant_text(node))) >= self.fewest:
            for i, part in enumerate(node.values):
                if isinstance(part, ast.Constant):
                    before = "x" * (i > 0)  # a word that touches a value is no word
                    after = "x" * (i < len(node.values) - 1)
                    part.value = reworded(f"{before}{part.value}{after}")[len(before) :]
                    part.value = part.value[: len(part.value) - len(after)]
        node.values = [part if isinstance(part, ast.Constant) else self.visit(part) for part in node.values]
        return node

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.AST:
        node.value = self.visit(node.value)  # a format specification is no text
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str) and len(WORD.findall(node.value)) >= self.fewest:
            return ast.copy_location(ast.Constant(reworded(node.value)), node)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        return node  # keys are names

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        return node

    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        node.values = [self.visit(value) for value in node.values]
        return node


def _constant_text(node: ast.JoinedStr) -> str:
    return " ".join(part.value for part in node.values if isinstance(part, ast.Constant))


class Loader(importlib.machinery.SourceFileLoader):
    """Compiles a module's source anew, with its messages reworded; nothing of it is cached."""

    def get_code(self, fullname: str) -> CodeType:
        tree = ast.parse(self.get_data(self.path), self.path)
        returned = fullname.startswith(MESSAGES_RETURNED) and fullname not in NO_MESSAGES_RETURNED
        tree = Reword(returned=returned).visit(tree)
        return compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)


class Finder:
    """Finds the modules of our own packages for `Loader`.

    It is no `importlib.abc.MetaPathFinder`, whose module loads many others in each process that a test starts.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in PACKAGES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, [str(REPO)] if path is None else path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = Loader(fullname, spec.loader.path)
        return spec


def pytest_load_initial_conftests() -> None:
    import tempfile  # not at the top: processes that a test starts would have modules that Python starts without

    loaded = sorted(name for name in sys.modules if name.partition(".")[0] in PACKAGES)
    if loaded:
        raise RuntimeError(f"Load tests.reworded before the code under test, by -p; {loaded[0]} is imported already.")
    sys.meta_path.insert(0, Finder())
    # Python imports the first `sitecustomize` of its path at every start.
    directory = tempfile.mkdtemp(prefix="reworded-")
    Path(directory, "sitecustomize.py").write_text(CHILD)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (directory, os.environ.get("PYTHONPATH"))))
