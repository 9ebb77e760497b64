"""Rows: a file, a directory or a name -> (where, row). `where` is what an error message points at: "train.jsonl line
17".

JSONL is read by us (json_rows), so that a mistake has a line number and small runs need no heavy import; parquet
through pyarrow; anything else through datasets.load_dataset.

The last two have columns: an object has the keys of all objects of its column, None where a row has none. Such keys are
left out below the top, so that a row is the same in whatever file it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from ..config.paths import asked, local_path, shorten, shown
from ..config.recipe_paths import RULE
from ..errors import ConfigError, DataError
from .bad_rows import Bad, refuse
from .hub import fault_of, offline_by
from .json_rows import read_json

Row = tuple[str, dict[str, Any]]
SPLIT_SETTING = "data.prompt_split (or eval.split)"
"""What errors call the split; a command that has another name for it puts that in its place."""
SETTING = "data.prompt_dataset"
"""What errors call the data set, likewise."""
SUFFIXES = (".jsonl", ".json", ".parquet")
PARQUET_BUFFER_BYTES = 1 << 20
PARQUET_BATCH_ROWS = 1024
"""Rows of a parquet file that are Python objects at a time."""
SPLITS = ("train", "test", "validation", "valid", "dev", "eval")


def read_rows(source: str, split: str, bad: Bad = refuse) -> Iterator[Row]:
    """Every row of a data set, in its own order. A row that cannot be read goes to `bad`.

    Raises ConfigError when there is no such data set or split, DataError for an unreadable line.
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
    """Return who reads a data set: a file and a directory of files are read here, the rest by `datasets`.

    Raises:
        ConfigError: There is no such data set.
    """
    path = local_path(source, SETTING)
    is_file, is_dir = (asked(path, question, SETTING) for question in (Path.is_file, Path.is_dir))
    if is_file:
        return "file"
    if is_dir and not any((path / name).exists() for name in ("dataset_info.json", "dataset_dict.json", "state.json")):
        return "directory"
    if not is_dir and asked(path, Path.exists, SETTING):
        raise ConfigError(
            f"Data set {shown(source)} is neither a file nor a directory (a pipe or a device)."
            " Write the rows into a file."
        )
    if is_dir or not _looks_local(source):
        return "datasets"
    looked_at = shorten(str(asked(path, Path.absolute, SETTING)))
    raise ConfigError(
        f"Data set {shown(source)} does not exist (looked at {looked_at})."
        f" {RULE} Set {SETTING} to a file, a directory, or a name on the hub."
    )


def _looks_local(source: str) -> bool:
    if source.startswith(("/", ".", "~")) or source.endswith(SUFFIXES) or source.count("/") > 1:
        return True
    # "data/taks": the directory is there, so what is missing is a file of it and no name on the hub
    return "/" in source and asked(Path(source).parent, Path.is_dir, SETTING)


def files_read(source: str, split: str) -> list[Path]:
    """The files that `read_rows` reads of a data set that is there, as far as they can be told without reading it."""
    path = local_path(source, SETTING)
    if asked(path, Path.is_file, SETTING):
        return [path]
    if asked(path, Path.is_dir, SETTING):
        with suppress(ConfigError):  # reading says what is wrong with it
            return [p for p in _files_of(path, split) if p.is_file()]
    return []


def _files_of(directory: Path, split: str) -> list[Path]:
    files = sorted(p for p in asked(directory, lambda d: [*d.iterdir()], SETTING) if p.suffix in SUFFIXES)
    if not files:
        raise ConfigError(
            f"Directory {directory} holds no {', '.join(SUFFIXES)} file. Point {SETTING} at one that does."
        )
    of_split = [p for p in files if p.name.startswith(split)]
    if not of_split and any(p.name.startswith(SPLITS) for p in files):
        raise ConfigError(
            f"Directory {directory} has no file of split {split!r}. It has: {', '.join(p.name for p in files)}. Set"
            f" {SPLIT_SETTING}."
        )
    return of_split or files


def _read_file(path: Path, bad: Bad) -> Iterator[Row]:
    if path.suffix not in SUFFIXES:
        raise ConfigError(
            f"Data file {path} ends in {path.suffix!r}, which is not read. Known: {', '.join(SUFFIXES)}. Convert it to"
            ' JSONL: one {"prompt": ..., "label": ...} per line.'
        )
    try:
        yield from _read_parquet(path) if path.suffix == ".parquet" else read_json(path, bad)
    except OSError as error:
        raise ConfigError(
            f"Data file {path} cannot be read: {error.strerror or error}. Correct the path or its permissions."
        ) from None


def _read_parquet(path: Path) -> Iterator[Row]:
    """Rows of a file whose pages may be damaged: pyarrow reports that as its own exceptions, as OSError, or as bytes
    that are no text."""
    import pyarrow.parquet as pq
    from pyarrow import ArrowException

    i = 0
    try:
        # Buffered: otherwise a whole column of a row group is held, which may be the file.
        with pq.ParquetFile(path, buffer_size=PARQUET_BUFFER_BYTES, pre_buffer=False) as file:
            for batch in file.iter_batches(batch_size=PARQUET_BATCH_ROWS):
                for row in batch.to_pylist():
                    i += 1
                    yield f"{path} row {i}", unfilled(row)
    except (ArrowException, OSError, UnicodeDecodeError, ValueError, OverflowError) as error:
        what = f"is not readable after row {i}" if i else "is not a parquet file"
        raise DataError(
            f"{path} {what}: {shorten(str(error).splitlines()[0] if str(error) else type(error).__name__).rstrip('.')}."
            " Convert it again."
        ) from None


def dataset_of(source: str, split: str) -> Any:
    """Load one split of a saved datasets directory, or of a name on the hub; `name@dir` picks a data_dir, as in
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
        # the hub, the cache and the builder scripts raise what they like; all mean that this name cannot be had
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
        return f"{variable} is set, so that only what is in the cache can be had. {RULE}"
    return f"Check the name or the network. {RULE}"


def _read_datasets(source: str, split: str) -> Iterator[Row]:
    for i, row in enumerate(dataset_of(source, split)):
        yield f"{source}[{split}] row {i + 1}", unfilled(row)


def unfilled(row: dict[str, Any]) -> dict[str, Any]:
    """Without the keys that a column's other objects have. A chat message keeps its content: None is what stands beside
    calls."""
    return {name: _unfilled(value) for name, value in row.items()}


def _unfilled(value: Any) -> Any:
    if isinstance(value, list):
        return [_unfilled(part) for part in value]
    if not isinstance(value, dict):
        return value
    kept = ("content",) if value.get("role") else ()
    return {key: _unfilled(part) for key, part in value.items() if part is not None or key in kept}
