"""Bash's syntax: text -> tree-sitter's tree, and the places of a text that are no bash."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ....errors import ConfigError

PLACEHOLDER = re.compile(r"(?m)^(\s*(?:export\s+|readonly\s+)?\w+=)<([\w .-]+)>[ \t]*$")
"""NAME=<what to fill in>, which bash would take for redirections."""
Node = Any
"""A node of tree-sitter's tree; the package has no types of its own worth naming here."""
HERE = ("heredoc_redirect", "herestring_redirect")
"""Nodes of a text that the script itself gives a command to read."""


def first_child(node: Node, *types: str) -> Node | None:
    """Return the first named child of some types."""
    return next((child for child in node.named_children if child.type in types), None)


def parser() -> Any:
    try:
        import tree_sitter
        import tree_sitter_bash
    except ImportError:
        raise ConfigError(
            "Reading a bash script needs the packages tree-sitter and tree-sitter-bash, and they are not installed. Run"
            " pip install tree-sitter==0.26.1 tree-sitter-bash==0.25.1, or give the flags themselves:"
            " openrlhf-tir import-openrlhf -- FLAGS..."
        ) from None
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def errors(root: Node) -> Iterator[Node]:
    """Yield the outermost places that are no bash."""
    if not root.has_error:
        return
    for child in root.children:
        if child.is_error or child.is_missing:
            yield child
        else:
            yield from errors(child)
