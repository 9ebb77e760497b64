"""Read a file, a directory or a name on the hub as (where, row). `where` is what a message refers to: "train.jsonl line
17".

JSONL is read here (json_rows.py), so that a mistake has a line number and small runs need no heavy import; parquet is
read by pyarrow, everything else by datasets.load_dataset.

The last two have columns: an object has the keys of all objects of its column, with None where a row has none. Such
keys are removed below the top level, so that a row is the same in whatever file it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from ..config.paths import ROW_FILES, can_only_be_path, local_path, query_path, shorten, shown
from ..config.recipe_paths import RULE
from ..errors import ConfigError, DataError
from .bad_rows import Bad, refuse
from .hub import fault_of, offline_by
from .json_rows import read_json

Row = tuple[str, dict[str, Any]]
SPLIT_SETTING = "data.prompt_split (or eval.split)"
"""The name of the split in errors. A command with another name for it replaces this text."""
SETTING = "data.prompt_dataset"
"""The name of the data set in errors, in the same way."""
PARQUET_BUFFER_BYTES = 1 << 20
PARQUET_BATCH_ROWS = 1024
"""Rows of a parquet file that are Python objects at the same time."""
SPLITS = ("train", "test", "validation", "valid", "dev", "eval")
"""Names with which the files of a split begin."""


def read_rows(source: str, split: str, bad: Bad = refuse) -> Iterator[Row]:
    """Yield every row of a data set, in its own order.

    Args:
        source: File, directory or name on the hub.
        split: The split to read.
        bad: Gets the rows that cannot be read.

    Raises:
        ConfigError: There is no such data set or split.
        DataError: A line cannot be read.
    """
    path = local_path(source, SETTING)
    match place_of(source):
        case "file":
            yield from _read_file(path, bad)
        case "directory":
            for file in _files_of(path, split):
                yield from _read_file(file, bad)
        case "datasets":
            yield from _read_datasets(source, split)


def place_of(source: str) -> Literal["file", "directory", "datasets"]:
    """Return what reads a data set: files and directories of files are read here, others by `datasets`.

    Raises:
        ConfigError: There is no such data set.
    """
    path = local_path(source, SETTING)
    is_file = query_path(path, Path.is_file, SETTING)
    is_dir = query_path(path, Path.is_dir, SETTING)
    if is_file:
        return "file"
    if is_dir and not any((path / name).exists() for name in ("dataset_info.json", "dataset_dict.json", "state.json")):
        return "directory"
    if not is_dir and query_path(path, Path.exists, SETTING):
        raise ConfigError(
            f"Data set {shown(source)} is neither a file nor a directory (a pipe or a device)."
            " Write the rows into a file."
        )
    if is_dir or not _looks_local(source):
        return "datasets"
    looked_at = shorten(str(query_path(path, Path.absolute, SETTING)))
    raise ConfigError(
        f"Data set {shown(source)} does not exist (looked at {looked_at})."
        f" {RULE} Set {SETTING} to a file, a directory, or a name on the hub."
    )


def _looks_local(source: str) -> bool:
    if can_only_be_path(source) or source.endswith(ROW_FILES):
        return True
    # "data/taks" with a directory "data": a file is missing, so this is not a name on the hub.
    return "/" in source and query_path(Path(source).parent, Path.is_dir, SETTING)


def files_read(source: str, split: str) -> list[Path]:
    """Return the files that `read_rows` reads of an existing data set, as far as that is known without reading it."""
    path = local_path(source, SETTING)
    if query_path(path, Path.is_file, SETTING):
        return [path]
    if query_path(path, Path.is_dir, SETTING):
        with suppress(ConfigError):  # Reading it raises the same error.
            return [file for file in _files_of(path, split) if file.is_file()]
    return []


def _files_of(directory: Path, split: str) -> list[Path]:
    files = sorted(
        file for file in query_path(directory, lambda folder: [*folder.iterdir()], SETTING) if file.suffix in ROW_FILES
    )
    if not files:
        raise ConfigError(
            f"Directory {directory} holds no {', '.join(ROW_FILES)} file. Point {SETTING} at one that does."
        )
    of_split = [file for file in files if file.name.startswith(split)]
    if not of_split and any(file.name.startswith(SPLITS) for file in files):
        raise ConfigError(
            f"Directory {directory} has no file of split {split!r}. It has: {', '.join(file.name for file in files)}."
            f" Set {SPLIT_SETTING}."
        )
    return of_split or files


def _read_file(path: Path, bad: Bad) -> Iterator[Row]:
    if path.suffix not in ROW_FILES:
        raise ConfigError(
            f"Data file {path} ends in {path.suffix!r}, which is not read. Known: {', '.join(ROW_FILES)}. Convert it to"
            ' JSONL: one {"prompt": ..., "label": ...} per line.'
        )
    try:
        yield from _read_parquet(path) if path.suffix == ".parquet" else read_json(path, bad)
    except OSError as error:
        raise ConfigError(
            f"Data file {path} cannot be read: {error.strerror or error}. Correct the path or its permissions."
        ) from None


def _read_parquet(path: Path) -> Iterator[Row]:
    """Yield the rows of a file whose pages may be damaged.

    pyarrow reports damage as its own exceptions, as OSError, or as bytes that are not text.
    """
    import pyarrow.parquet as pq
    from pyarrow import ArrowException

    number = 0
    try:
        # Buffered: otherwise a whole column of a row group is held, which may be the file.
        with pq.ParquetFile(path, buffer_size=PARQUET_BUFFER_BYTES, pre_buffer=False) as file:
            for batch in file.iter_batches(batch_size=PARQUET_BATCH_ROWS):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path} row {number}", unfilled(row)
    except (ArrowException, OSError, UnicodeDecodeError, ValueError, OverflowError) as error:
        fault = f"is not readable after row {number}" if number else "is not a parquet file"
        raise DataError(
            f"{path} {fault}:"
            f" {shorten(str(error).splitlines()[0] if str(error) else type(error).__name__).rstrip('.')}. Convert it"
            " again."
        ) from None


def dataset_of(source: str, split: str) -> Any:
    """Load one split of a saved datasets directory, or of a name on the hub. `name@dir` selects a data_dir, as in
    OpenRLHF.

    Raises:
        ConfigError: There is no such data set or split.
        Unavailable: The hub cannot be reached.
    """
    import datasets

    name, _, data_dir = source.partition("@")
    try:
        data = (
            datasets.load_from_disk(name)
            if Path(name).is_dir()
            else datasets.load_dataset(name, data_dir=data_dir or None)
        )
    except Exception as error:
        # The hub, the cache and builder scripts may raise anything; it always means that the name cannot be loaded.
        raise fault_of(error)(
            f"Data set {shown(source)} is no local file or directory, and datasets could not load it:"
            f" {type(error).__name__}: {shorten(str(error))}. {_remedy()}"
        ) from error
    if isinstance(data, dict):
        if split not in data:
            raise ConfigError(
                f"Data set {source!r} has no split {split!r}. It has: {', '.join(data)}. Set {SPLIT_SETTING}."
            )
        data = data[split]
    return data


def _remedy() -> str:
    if variable := offline_by():
        return f"{variable} is set, so only the cache is used. {RULE}"
    return f"Check the name or the network. {RULE}"


def _read_datasets(source: str, split: str) -> Iterator[Row]:
    for i, row in enumerate(dataset_of(source, split)):
        yield f"{source}[{split}] row {i + 1}", unfilled(row)


def unfilled(row: dict[str, Any]) -> dict[str, Any]:
    """Remove the keys that only other objects of a column have. A chat message keeps content None, which stands
    beside calls."""
    return {name: _unfilled(value) for name, value in row.items()}


def _unfilled(value: Any) -> Any:
    if isinstance(value, list):
        return [_unfilled(part) for part in value]
    if not isinstance(value, dict):
        return value
    kept = ("content",) if value.get("role") else ()
    return {key: _unfilled(part) for key, part in value.items() if part is not None or key in kept}
