"""Write a checkpoint in the background: hold its content as it is now, let training go on, write in a thread.

DeepSpeed passes every file of a checkpoint to its `checkpoint_engine`. This one holds the content at once and writes it
later. The controller calls `written` and waits for it before it commits the checkpoint; the result has size and digest
of every file.

    tensors on a GPU    are copied to host memory, which holds one more copy of this rank's shards meanwhile
    tensors on the host are copied as well, unless the writer `keeps`: what a checkpoint holds changes only in an
                        optimizer's step, before which the caller calls `wait_before_change`. The file is then written
                        from the tensors themselves, while the next batch's passes run, and there is no copy
    everything else     is copied
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


def host_copy(state: Any, *, keep: bool = False) -> Any:
    """Return a deep copy with every tensor in host memory. Later updates of the weights do not change it.

    Args:
        state: What is copied.
        keep: Leave tensors that are in host memory where they are. Those that are a part of a larger one are copied,
            because `torch.save` would write all of it.
    """
    if isinstance(state, torch.Tensor):
        tensor = state.detach()
        if keep and tensor.device.type == "cpu" and tensor.untyped_storage().nbytes() == tensor.nbytes:
            return tensor
        return tensor.to("cpu", copy=True)
    if isinstance(state, dict):
        # copy.copy keeps the class and its attributes: torch stores `_metadata` on a module's OrderedDict.
        new = copy.copy(state)
        new.update((key, host_copy(value, keep=keep)) for key, value in state.items())
        return new
    if type(state) in (list, tuple):
        return type(state)(host_copy(value, keep=keep) for value in state)
    return copy.deepcopy(state)


class BackgroundWriter(TorchCheckpointEngine):
    """The checkpoint engine of one rank. One thread writes the files in order and syncs each to the disk."""

    def __init__(self, *, keeps: bool = False) -> None:
        """Start the thread.

        Args:
            keeps: Write tensors of the host from where they are; the caller calls `wait_before_change` in time.
        """
        super().__init__()
        self._keeps = keeps
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: dict[str, Future] = {}
        self.fault: OSError | None = None
        """The first disk error since `begin` outside of the writing thread."""

    def begin(self) -> None:
        """Begin a new checkpoint. Wait for what is left of a failed one, and forget it with its errors."""
        pending = self._pending
        self._pending = {}
        self.fault = None
        wait(pending.values())

    @contextmanager
    def recording_fault(self) -> Iterator[None]:
        """Store an OSError of the block in `fault` and continue after the block.

        DeepSpeed creates files between two collectives, in which the other ranks wait for this one.
        """
        try:
            yield
        except OSError as error:
            self.fault = self.fault or error

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Create a directory; an OSError goes to `fault`."""
        with self.recording_fault():
            super().makedirs(path, exist_ok)

    def save(self, state_dict: Any, path: str | Path) -> None:
        """Hold `state_dict` as it is now, and let the thread write it to `path`."""
        self._pending[str(path)] = self._thread.submit(_write, host_copy(state_dict, keep=self._keeps), path)

    def wait_before_change(self) -> None:
        """Wait until no tensor of the model is being written. After that, and until the next `save`, they may change.

        A disk error is left to `written`.
        """
        if self._keeps:
            self._thread.submit(int).result()  # the thread takes one after the other

    def preserves_storage_sharing(self) -> bool:
        """Return False: otherwise DeepSpeed would copy the model once more by itself."""
        return False

    def written(self) -> dict[str, tuple[int, str]]:
        """Wait until everything that was saved is on disk.

        Returns:
            Size in bytes and digest (XXH3-128) of each file by path.

        Raises:
            OSError: The disk is full or failed. No thread writes any more then.
        """
        pending = self._pending
        self._pending = {}
        wait(pending.values())
        return {path: future.result() for path, future in pending.items()}


class _HashingFile:
    """A file that hashes what is written to it, in order. That suffices because torch.save never seeks back."""

    def __init__(self, out: BinaryIO) -> None:
        self.out = out
        self.size = 0
        self.hasher = xxhash.xxh3_128()

    def write(self, data: bytes | memoryview) -> int:
        self.hasher.update(data)
        self.size += memoryview(data).nbytes
        return self.out.write(data)

    def flush(self) -> None:
        self.out.flush()


def _write(state: Any, path: str | Path) -> tuple[int, str]:
    """Write a file and return its size in bytes and its XXH3-128.

    Both are of the data in memory, so a later comparison with the file finds what the disk did to it.
    """
    with open(path, "wb") as out:
        file = _HashingFile(out)
        torch.save(state, file)
        out.flush()
        os.fsync(out.fileno())
    return file.size, file.hasher.hexdigest()


def write_text(path: Path, text: str) -> None:
    """Write a small file, which is on disk when this returns."""
    with open(path, "w") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
