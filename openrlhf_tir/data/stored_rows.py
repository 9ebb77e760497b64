"""Rows of text columns in an Arrow file that is mapped into memory, so that a process holds few of them at a time.

    with RowWriter(path, ("prompt", "label")) as writer:
        writer.append(("1+1?", "2"))
    rows = StoredRows(writer.source, tuple)
    rows[0] == ("1+1?", "2")

Without a path the rows stay in memory, as small data does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

if TYPE_CHECKING:  # The base install has no pyarrow: only what reads or writes rows imports it.
    import pyarrow as pa

T = TypeVar("T")
ROWS_A_BATCH = 1024

Source: TypeAlias = "Path | pa.Buffer"
"""Where rows were written: a file, or memory."""


class RowWriter:
    """Writes rows of texts (or None) one by one, in batches; a context manager."""

    def __init__(self, path: Path | None, columns: Sequence[str]) -> None:
        import pyarrow as pa

        self.schema = pa.schema([(name, pa.large_string()) for name in columns])
        self._path = path
        self._sink = pa.BufferOutputStream() if path is None else pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_file(self._sink, self.schema)
        self._pending: list[Sequence[str | None]] = []
        self._closed: Source | None = None
        self.rows = 0

    def append(self, row: Sequence[str | None]) -> int:
        """Write a row and return its place."""
        self._pending.append(row)
        self.rows += 1
        if len(self._pending) == ROWS_A_BATCH:
            self._flush()
        return self.rows - 1

    def _flush(self) -> None:
        import pyarrow as pa

        if self._pending:
            columns = [pa.array(column, pa.large_string()) for column in zip(*self._pending, strict=True)]
            self._writer.write_batch(pa.record_batch(columns, schema=self.schema))
            self._pending = []

    @property
    def source(self) -> Source:
        """What `StoredRows` reads. It exists after the writer is closed."""
        assert self._closed is not None, "the writer is still open"
        return self._closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        if kind is None:
            self._flush()
        self._writer.close()
        if self._path is None:
            self._closed = self._sink.getvalue()
        else:
            self._sink.close()
            self._closed = self._path


class StoredRows(Sequence[T]):
    """The rows that a RowWriter wrote. They are read when they are accessed.

    Another process to which they are pickled maps the same file; rows in memory go with them.

    Args:
        source: Where they were written.
        decode: Makes an item of the texts of a row; a function of a module, since it is pickled by its name.
    """

    def __init__(self, source: Source, decode: Callable[[tuple[Any, ...]], T]) -> None:
        import pyarrow as pa

        self._source = source
        self._decode = decode
        opened = pa.memory_map(str(source)) if isinstance(source, Path) else pa.BufferReader(source)
        self._table = pa.ipc.open_file(opened).read_all()
        self._columns = self._table.columns

    def __reduce__(self) -> tuple[Any, ...]:
        return StoredRows, (self._source, self._decode)

    def __len__(self) -> int:
        return self._table.num_rows

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        return self._decode(tuple(column[place].as_py() for column in self._columns))

    def column(self, name: str) -> pa.ChunkedArray:
        """Return one column alone; the others' pages are not read."""
        return self._table.column(name)

    def __iter__(self) -> Iterator[T]:
        for batch in self._table.to_batches():
            yield from map(self._decode, zip(*(column.to_pylist() for column in batch.columns), strict=True))
