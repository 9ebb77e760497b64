"""The buffered groups of a checkpoint <-> replay.json (structure, text, numbers) and replay.safetensors (arrays).

Reading executes nothing. The result is exact: every array comes back with its dtype, shape and bits, every tuple as a
tuple. A group has hundreds of arrays, so all arrays of one dtype lie end to end in one tensor, and JSON points at them:
{"!": "array", "of": ["int32", offset, [2, 3]]}.
"""

from __future__ import annotations

import base64
import datetime
import json
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from ... import types
from ...errors import CheckpointDamaged, CheckpointFailed
from ...types import Group, GroupMeta
from ..scheduler.groups import InFlightGroup

JSON, TENSORS = "replay.json", "replay.safetensors"
RECORDS = {
    name: cls
    for name, cls in {"InFlightGroup": InFlightGroup, **vars(types)}.items()
    if isinstance(cls, type) and (is_dataclass(cls) or hasattr(cls, "_fields"))
}
"""Every record of types.py: what a group is made of."""
KIND = "!"
TEXTS: dict[str, tuple[type, Callable[[Any], str], Callable[[str], Any]]] = {
    # Besides JSON's own: what rows of a parquet file have in their meta.
    "bytes": (bytes, lambda v: base64.b64encode(v).decode(), base64.b64decode),
    "datetime": (datetime.datetime, datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    "date": (datetime.date, datetime.date.isoformat, datetime.date.fromisoformat),
    "time": (datetime.time, datetime.time.isoformat, datetime.time.fromisoformat),
    "Decimal": (Decimal, str, Decimal),
}

Row = tuple[InFlightGroup, GroupMeta, Group]


def write(directory: Path, rows: list[Row]) -> None:
    """Write both files.

    Raises:
        CheckpointFailed: A value is of a type that cannot be stored; the message says where it is.
        OSError: The disk refused.
    """
    packer = _Packer()
    text = json.dumps([packer.pack(list(row), f"group {row[0].key}") for row in rows])
    (directory / JSON).write_text(text)
    save_file({name: np.concatenate(parts) for name, parts in packer.parts.items()}, directory / TENSORS)


def read(directory: Path) -> list[Row]:
    """Read what `write` wrote.

    Raises:
        CheckpointDamaged: The files were not written by `write`, or were damaged.
    """
    try:
        tensors = load_file(directory / TENSORS)
        return [tuple(_unpack(row, tensors)) for row in json.loads((directory / JSON).read_text())]
    except Exception as e:  # whatever safetensors, json and the records' constructors make of foreign files
        raise CheckpointDamaged(
            f"The groups in {directory} ({JSON}, {TENSORS}) cannot be read: {type(e).__name__}: {e}."
        ) from e


class _Packer:
    """Turns values into JSON, and collects their arrays by dtype in `parts`."""

    def __init__(self) -> None:
        self.parts: dict[str, list[np.ndarray]] = {}
        self._sizes: dict[str, int] = {}

    def pack(self, value: Any, where: str) -> Any:
        kind = type(value)
        if value is None or kind in (bool, int, float, str):
            return value
        if kind is list:
            return [self.pack(v, where) for v in value]
        if kind.__name__ in RECORDS and RECORDS[kind.__name__] is kind:
            names = [f.name for f in fields(value)] if is_dataclass(value) else value._fields
            return {KIND: kind.__name__, **{name: self.pack(getattr(value, name), f"{where}.{name}") for name in names}}
        if kind is tuple:
            return {KIND: "tuple", "of": [self.pack(v, where) for v in value]}
        if isinstance(value, Mapping):  # pairs, so that keys keep their types and "!" is a key like others
            return {
                KIND: "dict",
                "of": [[self.pack(k, where), self.pack(v, f"{where}[{k!r}]")] for k, v in value.items()],
            }
        if isinstance(value, np.ndarray | np.generic):
            return {
                KIND: "array" if isinstance(value, np.ndarray) else "scalar",
                "of": self._array(np.asarray(value), where),
            }
        for name, (cls, to_text, _) in TEXTS.items():
            if kind is cls:
                return {KIND: name, "of": to_text(value)}
        raise CheckpointFailed(
            f"{where} is a {kind.__module__}.{kind.__qualname__}, which a checkpoint cannot hold."
            " Use numbers, text, lists or arrays."
        )

    def _array(self, array: np.ndarray, where: str) -> list[Any]:
        name = array.dtype.name
        if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
            raise CheckpointFailed(f"{where} is an array of {name}, which a checkpoint cannot hold. Use numbers.")
        start = self._sizes.get(name, 0)
        self._sizes[name] = start + array.size
        self.parts.setdefault(name, []).append(
            np.ascontiguousarray(array).reshape(-1).astype(array.dtype.newbyteorder("="), copy=False)
        )
        return [name, start, list(array.shape)]


def _unpack(value: Any, tensors: dict[str, np.ndarray]) -> Any:
    if isinstance(value, list):
        return [_unpack(v, tensors) for v in value]
    if not isinstance(value, dict):
        return value
    kind: str = value[KIND]
    if kind in RECORDS:
        return RECORDS[kind](**{name: _unpack(v, tensors) for name, v in value.items() if name != KIND})
    of = value["of"]
    if kind == "tuple":
        return tuple(_unpack(v, tensors) for v in of)
    if kind == "dict":
        return {_unpack(k, tensors): _unpack(v, tensors) for k, v in of}
    if kind in ("array", "scalar"):
        name, start, shape = of
        array = tensors[name][start : start + int(np.prod(shape, dtype=np.int64))].reshape(shape).copy()
        return array if kind == "array" else array[()]
    return TEXTS[kind][2](of)
