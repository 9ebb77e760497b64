"""Rows: a file, a directory or a name -> (where, row). `where` is what an error message points at: "train.jsonl line 17".

JSONL is read here, so that a mistake has a line number and small runs need no heavy import; parquet through pyarrow; anything else
through datasets.load_dataset.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import ConfigError, DataError

Row = tuple[str, dict[str, Any]]
SUFFIXES = (".jsonl", ".json", ".parquet")
SPLITS = ("train", "test", "validation", "valid", "dev", "eval")


def read_rows(source: str, split: str) -> Iterator[Row]:
    """Every row of a data set, in its own order.

    Raises ConfigError when there is no such data set or split, DataError for an unreadable line.
    """
    path = Path(source).expanduser()
    if path.is_file():
        yield from _read_file(path)
    elif path.is_dir() and not any((path / name).exists() for name in ("dataset_info.json", "dataset_dict.json", "state.json")):
        for file in _files_of(path, split):
            yield from _read_file(file)
    elif path.is_dir() or not _looks_local(source):
        yield from _read_datasets(source, split)
    else:
        raise ConfigError(
            f"Data set {source!r} does not exist (looked at {path.absolute()}). Set data.prompt_dataset to a file, a directory, or a name on the hub."
        )


def _looks_local(source: str) -> bool:
    return source.startswith(("/", ".", "~")) or source.endswith(SUFFIXES) or source.count("/") > 1


def _files_of(directory: Path, split: str) -> list[Path]:
    files = sorted(p for p in directory.iterdir() if p.suffix in SUFFIXES)
    if not files:
        raise ConfigError(f"Directory {directory} holds no {', '.join(SUFFIXES)} file. Point data.prompt_dataset at one that does.")
    of_split = [p for p in files if p.name.startswith(split)]
    if not of_split and any(p.name.startswith(SPLITS) for p in files):
        raise ConfigError(
            f"Directory {directory} has no file of split {split!r}. It has: {', '.join(p.name for p in files)}. Set data.prompt_split (or eval.split)."
        )
    return of_split or files


def _read_file(path: Path) -> Iterator[Row]:
    if path.suffix == ".parquet":
        yield from _read_parquet(path)
    elif path.suffix in (".jsonl", ".json"):
        yield from _read_json(path)
    else:
        raise ConfigError(f"Data file {path} ends in {path.suffix!r}, which is not read. Known: {', '.join(SUFFIXES)}.")


def _read_json(path: Path) -> Iterator[Row]:
    """One object per line; a file that starts with [ is one array."""
    with path.open(encoding="utf-8") as f:
        is_array = f.read(1) == "["
        f.seek(0)
        lines = enumerate(_parse(f.read(), f"{path}")) if is_array else ((i, _parse(line, f"{path} line {i + 1}")) for i, line in enumerate(f) if line.strip())
        for i, row in lines:
            where = f"{path} {'item' if is_array else 'line'} {i + 1}"
            if not isinstance(row, dict):
                raise DataError(f'{where} is {type(row).__name__}, not an object with columns. Write {{"prompt": ..., "label": ...}}.')
            yield where, row


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as e:
        raise DataError(f"{where} is not JSON: {e.msg} at column {e.colno}. Correct or remove it.") from None


def _read_parquet(path: Path) -> Iterator[Row]:
    import pyarrow.parquet as pq
    from pyarrow import ArrowInvalid

    try:
        file = pq.ParquetFile(path)
    except ArrowInvalid as e:
        raise DataError(f"{path} is not a parquet file: {e}. Convert it again.") from None
    with file:
        i = 0
        for batch in file.iter_batches():
            for row in batch.to_pylist():
                i += 1
                yield f"{path} row {i}", row


def _read_datasets(source: str, split: str) -> Iterator[Row]:
    """A saved datasets directory, or a name on the hub; `name@dir` picks a data_dir, as in OpenRLHF."""
    import datasets

    name, _, data_dir = source.partition("@")
    try:
        data = datasets.load_from_disk(name) if Path(name).is_dir() else datasets.load_dataset(name, data_dir=data_dir or None)
    except Exception as e:  # the hub, the cache and the builder scripts raise what they like; all mean that this name cannot be had
        raise ConfigError(
            f"Data set {source!r} is no local file or directory, and datasets could not load it: {type(e).__name__}: {e}. Check the name or the network."
        ) from e
    if isinstance(data, dict):
        if split not in data:
            raise ConfigError(f"Data set {source!r} has no split {split!r}. It has: {', '.join(data)}. Set data.prompt_split (or eval.split).")
        data = data[split]
    for i, row in enumerate(data):
        yield f"{source}[{split}] row {i + 1}", row
