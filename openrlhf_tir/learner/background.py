"""Background writer: a checkpoint's tensors are copied to host memory, training goes on, a thread writes the files.

DeepSpeed hands every file of a checkpoint to its `checkpoint_engine`; this one takes the copy at once and writes later. `written` is
the acknowledgement that the controller waits for before it commits. Host memory holds one extra copy of this rank's shards meanwhile.
"""

from __future__ import annotations

import copy
import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
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
        self._pending: list[Future] = []

    def save(self, state_dict: Any, path: str | Path) -> None:
        self._pending.append(self._thread.submit(_write, host_copy(state_dict), path))

    def preserves_storage_sharing(self) -> bool:
        """No: DeepSpeed would otherwise copy the model a first time itself."""
        return False

    def written(self) -> None:
        """Blocks until everything that was saved is on disk. Raises OSError when the disk refused."""
        pending, self._pending = self._pending, []
        for future in pending:
            future.result()


def _write(state: Any, path: str | Path) -> None:
    with open(path, "wb") as out:
        torch.save(state, out)
        out.flush()
        os.fsync(out.fileno())
