"""Print the names of a registry with one sentence each, for `recipes`, `rewards` and `envs`. No module is imported."""

from __future__ import annotations

import ast
import importlib.util
import re
import shutil
import textwrap
from collections.abc import Iterable
from pathlib import Path


def print_list(items: Iterable[tuple[str, str]], remedy: str) -> None:
    """Print one name and its sentence per line, and below them how to use a name."""
    rows = list(items)
    width = max(len(name) for name, _ in rows)
    room = max(40, shutil.get_terminal_size((110, 24)).columns - width - 3)
    for name, text in rows:
        first, *more = textwrap.wrap(text, room) or [""]
        print(f"{name:{width}}  {first}")
        for line in more:
            print(f"{'':{width}}  {line}")
    print(f"\n{remedy}")


def of_module(module: str) -> str:
    """Return the first sentence of a module's docstring, read from its file."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return ""
    return sentence(ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or "")


def sentence(text: str) -> str:
    """Return the first sentence of a text, in one line."""
    line = " ".join(text.split())
    end = re.search(r"[.:] (?=[A-Z])", line)
    return line[: end.start() + 1].rstrip(":.") if end else line.rstrip(".")
