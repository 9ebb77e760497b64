"""Print the names of a registry on one screen, for `recipes`, `rewards` and `envs`. No module is imported.

openrlhf-tir rewards         a line for each name
openrlhf-tir rewards gsm8k   all that is said of the names with "gsm8k" in them
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import re
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path

from ..config.short_help import WIDTH, cut
from ..errors import unknown


def add_name(parser: argparse.ArgumentParser) -> None:
    """Add the optional word that chooses names."""
    parser.add_argument(
        "word", nargs="?", default="", metavar="WORD", help="only names that contain it, with all that is said of them"
    )


def matching(kind: str, items: Iterable[tuple[str, str]], word: str) -> dict[str, str]:
    """Return the items whose name contains `word`. Raises ConfigError if there is none."""
    all_items = dict(items)
    found = {name: text for name, text in all_items.items() if word in name}
    if not found:
        raise unknown(kind, word, all_items, "Give one of them or a part of a name, or leave it out.")
    return found


def print_lines(items: Mapping[str, str], indent: str = "") -> None:
    """Print one line for each name: the name, and what fits of its text."""
    width = max(map(len, items))
    for name, text in items.items():
        [line] = cut(text, WIDTH - len(indent) - width - 2, 1)
        print(f"{indent}{name:{width}}  {line}")


def print_columns(names: Iterable[str]) -> None:
    """Print names, indented, in as many columns as a screen's width holds, in order from top to bottom."""
    column = sorted(names)
    width = max(map(len, column)) + 2
    columns = max(1, (WIDTH - 2) // width)
    height = -(-len(column) // columns)
    for row in range(height):
        print(f"  {''.join(f'{name:{width}}' for name in column[row::height])}".rstrip())


def print_texts(items: Mapping[str, str]) -> None:
    """Print each name with its whole text below it."""
    for name, text in items.items():
        print(name)
        print(textwrap.indent("\n".join(textwrap.wrap(text, WIDTH - 4, break_on_hyphens=False)), "    "))


def of_module(module: str) -> str:
    """Return a module's docstring, read from its file, in one line and without its tables, which are indented."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return ""
    docstring = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""
    prose = (paragraph for paragraph in docstring.split("\n\n") if not paragraph.startswith(" "))
    return " ".join(" ".join(prose).split())


def sentence(text: str) -> str:
    """Return the first sentence of a text, in one line."""
    line = " ".join(text.split())
    end = re.search(r"[.:] (?=[A-Z])", line)
    return line[: end.start() + 1].rstrip(":.") if end else line.rstrip(".")
