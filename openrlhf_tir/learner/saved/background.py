"""Background writer: a checkpoint's tensors are copied to host memory, training goes on, a thread writes the files.

DeepSpeed hands every file of a checkpoint to its `checkpoint_engine`; this one takes the copy at once and writes later.
`written` is the acknowledgement that the controller waits for before it commits, with size and digest of every file.
Host memory holds one extra copy of this rank's shards meanwhile.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch
import xxhash
from deepspeed.runtime.checkpoint_engine import TorchCheckpointEngine


def host_copy(state: Any) -> Any:
    """The same structure with every tensor copied to the CPU: later updates of the weights do not reach it."""
    if isinstance(state, torch.Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, dict):
        new = copy.copy(state)  # keeps the class: an OrderedDict of a module has torch's `_metadata` on it
        new.update((key, host_copy(value)) for key, value in state.items())
        return new
    if type(state) in (list, tuple):
        return type(state)(host_copy(value) for value in state)
    return copy.deepcopy(state)


class BackgroundWriter(TorchCheckpointEngine):
    """One per rank. Files are written in order by one thread, flushed to the disk each."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: dict[str, Future] = {}
        self.fault: OSError | None = None
        """The first that a disk refused since `begin`, not counting what the thread writes."""

    def begin(self) -> None:
        """A new checkpoint: what is left of one that failed is waited for and forgotten, with its errors."""
        pending, self._pending, self.fault = self._pending, {}, None
        wait(pending.values())

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """What a disk refuses in the body becomes `fault`: DeepSpeed works with it between two collectives, in which
        the other ranks wait."""
        try:
            yield
        except OSError as e:
            self.fault = self.fault or e

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        with self.keeping():
            super().makedirs(path, exist_ok)

    def save(self, state_dict: Any, path: str | Path) -> None:
        self._pending[str(path)] = self._thread.submit(_write, host_copy(state_dict), path)

    def preserves_storage_sharing(self) -> bool:
        """No: DeepSpeed would otherwise copy the model a first time itself."""
        return False

    def written(self) -> dict[str, tuple[int, str]]:
        """Blocks until everything that was saved is on disk: path -> (bytes, digest). Raises OSError when the disk
        refused; no thread writes then."""
        pending, self._pending = self._pending, {}
        wait(pending.values())
        return {path: future.result() for path, future in pending.items()}


class _Hashed:
    """A file that hashes what is written to it, in order; torch.save does not go back."""

    def __init__(self, out: BinaryIO) -> None:
        self.out, self.size, self.hashing = out, 0, xxhash.xxh3_128()

    def write(self, data: bytes | memoryview) -> int:
        self.hashing.update(data)
        self.size += memoryview(data).nbytes
        return self.out.write(data)

    def flush(self) -> None:
        self.out.flush()


def _write(state: Any, path: str | Path) -> tuple[int, str]:
    """(bytes, XXH3-128) of what was written: of memory, not of what the disk made of it."""
    with open(path, "wb") as out:
        hashed = _Hashed(out)
        torch.save(state, hashed)
        out.flush()
        os.fsync(out.fileno())
    return hashed.size, hashed.hashing.hexdigest()


def write_text(path: Path, text: str) -> None:
    """Writes a small file, which is on disk when this returns."""
    with open(path, "w") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
