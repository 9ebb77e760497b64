"""Which data set an expression of a script loads, and what is done to its rows."""

from __future__ import annotations

import ast
from typing import Any, NamedTuple

from .syntax import called
from .values import MAX_DEPTH, UNKNOWN, SourceReader

OTHER_SOURCES = ("from_dict", "from_generator", "from_pandas", "from_json")
"""Functions that make a data set of something else than a name or a list of rows."""


class ScriptDataset(NamedTuple):
    """A data set of a script.

    Attributes:
        name: What load_dataset is given first; "" where there is no such call.
        keywords: Its other arguments, those by position under "args"; or the rows, under "rows".
        steps: The methods that are called on the rows afterwards, the last one first.
    """

    name: str
    keywords: dict[str, Any]
    steps: list[str]


def dataset_of(reader: SourceReader, node: ast.expr | None) -> ScriptDataset:
    """Return the data set that an expression of the script stands for."""
    steps: list[str] = []
    followed: set[int] = set()
    for _ in range(MAX_DEPTH):
        match node:
            case ast.Name():  # dataset = dataset.map(f): the one before is meant
                node = reader.given(node)
                if id(node) in followed:
                    break
                followed.add(id(node))
            case ast.Subscript(value=inner):
                node = inner
            case ast.Call(args=words) if called(node) in ("load_dataset", "load_from_disk"):
                values = [reader.value(word) for word in words]
                keywords = {k.arg: reader.value(k.value) for k in node.keywords if k.arg}
                named = [*values[:1], *(keywords[k] for k in ("split", "data_files") if k in keywords)]
                if any(value is UNKNOWN for value in named):
                    break  # which rows they are is known only when the script runs
                return ScriptDataset(str(values[0]) if values else "", keywords | {"args": values[1:]}, steps)
            case ast.Call(args=words) if called(node) == "from_list" and words:
                rows = reader.value(words[0])
                return ScriptDataset("", {} if rows is UNKNOWN else {"rows": rows}, steps)
            case ast.Call(func=ast.Attribute(), args=words) if called(node) in OTHER_SOURCES:
                columns = reader.value(words[0]) if called(node) == "from_dict" and words else None
                return ScriptDataset("", _rows_of(columns), steps)
            case ast.Call(func=ast.Attribute(value=inner)) if called(node) != "from_list":
                if called(node) != "shuffle":  # rows are drawn at random in any case (data.shuffle)
                    steps.append(f".{called(node)}(...)")
                node = inner
            case _:
                break
    return ScriptDataset("", {}, steps)


def _rows_of(columns: Any) -> dict[str, Any]:
    """Return {"rows": rows} of lists of the same length by name, which Dataset.from_dict takes; {} of anything else."""
    if not isinstance(columns, dict) or not all(isinstance(column, list) for column in columns.values()):
        return {}
    if len({len(column) for column in columns.values()}) != 1:
        return {}
    return {"rows": [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]}
