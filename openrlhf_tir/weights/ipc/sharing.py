"""Share a buffer of one process with others on the same device: torch's CUDA IPC, and a stand-in for it on CPUs.

    exporter    handle = export(buffer)      the buffer stays where it is and must be kept alive
    importer    mappings.map(handle)         the same memory, mapped into this process

A CUDA handle names one physical device. Processes number the devices that they see from 0 (CUDA_VISIBLE_DEVICES), so a
device is compared by its UUID, and the importer puts its own number into the handle. The exporter must have finished
writing (`synchronise`) before it hands the handle over. The event inside the handle orders only the first mapping.

On CPUs the buffer lies in shared memory, by torch.multiprocessing as well. This is a stand-in, with which everything
around the mapping runs in real processes where there is no GPU.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.multiprocessing as torch_mp
from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor

CPU_STAND_IN = "CPU (stand-in for a GPU)"
"""Name of the device of buffers in shared memory of the host."""
DEVICE_ARGUMENT = 6
"""Position of the device's number in the arguments of torch's rebuild_cuda_tensor, as vLLM's ipc_engine uses it."""


def device_name(device: torch.device) -> str:
    """Return a name of the physical device, which is the same in every process."""
    if device.type != "cuda":
        return CPU_STAND_IN
    return f"GPU {torch.cuda.get_device_properties(device).uuid}"


def export(buffer: torch.Tensor) -> bytes:
    """Return the handle by which another process maps a buffer.

    Args:
        buffer: [bytes] uint8. Keep it: the memory of a buffer that is freed is used for something else.

    Raises:
        RuntimeError: Its memory cannot be shared (another allocator, no rights in a container).
    """
    with _named_shared_memory():
        return bytes(ForkingPickler.dumps(reduce_tensor(buffer)))


def synchronise(device: torch.device) -> None:
    """Wait until this process has finished everything that it started on a device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Mappings:
    """The buffers of other processes that are mapped here. Each is mapped once, however often its handle arrives.

    torch counts one release for each export, so mapping a handle anew for every bucket would drive its count negative.
    """

    def __init__(self, device: torch.device) -> None:
        """Create it without a mapping. `device` is the one of this process's model."""
        self.device = device
        self._mapped: dict[bytes, torch.Tensor] = {}

    def map(self, handle: bytes) -> torch.Tensor:
        """Return the buffer of a handle, [bytes] uint8 on this process's device.

        Raises:
            RuntimeError, OSError: It cannot be mapped.
        """
        mapped = self._mapped.get(handle)
        if mapped is None:
            mapped = self._mapped[handle] = self._open(handle)
        return mapped

    def keep_only(self, handles: set[bytes]) -> None:
        """Unmap every other buffer: its exporter has another one by now, or is gone."""
        self._mapped = {handle: mapped for handle, mapped in self._mapped.items() if handle in handles}

    def _open(self, handle: bytes) -> torch.Tensor:
        rebuild: Any
        rebuild, arguments = pickle.loads(handle)
        if rebuild is rebuild_cuda_tensor:
            arguments = list(arguments)
            arguments[DEVICE_ARGUMENT] = torch.cuda.current_device() if self.device.index is None else self.device.index
        return rebuild(*arguments)


@contextmanager
def _named_shared_memory() -> Iterator[None]:
    """Share CPU tensors by the name of their memory inside the block, not by a file descriptor.

    A descriptor can be handed to a process of the same family only. CUDA tensors are not concerned.
    """
    strategy = torch_mp.get_sharing_strategy()
    torch_mp.set_sharing_strategy("file_system")
    try:
        yield
    finally:
        torch_mp.set_sharing_strategy(strategy)
