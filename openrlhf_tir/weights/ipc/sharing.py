"""Share a buffer of one process with others on the same device: torch's CUDA IPC, and a stand-in for it on CPUs.

    exporter    buffer, handle = shared_buffer(size, device)    the buffer must be kept alive
    importer    mapped(handle, device)                          the same memory, mapped into this process

A CUDA handle names one physical device. Processes number the devices that they see from 0 (CUDA_VISIBLE_DEVICES), so a
device is compared by its UUID, and the importer puts its own number into the handle. The exporter must have finished
writing (`synchronise`) before it hands the handle over. The event inside the handle orders only the first mapping.

On CPUs the buffer is anonymous memory of the host, which others map by way of /proc. This is a stand-in, with which
everything around the mapping runs in real processes where there is no GPU.
"""

from __future__ import annotations

import os
import pickle
import weakref
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor

CPU_STAND_IN = "CPU (stand-in for a GPU)"
"""Name of the device of buffers in the host's memory."""
DEVICE_ARGUMENT = 6
"""Position of the device's number in the arguments of torch's rebuild_cuda_tensor, as vLLM's ipc_engine uses it."""


def device_name(device: torch.device) -> str:
    """Return a name of the physical device, which is the same in every process."""
    if device.type != "cuda":
        return CPU_STAND_IN
    return f"GPU {torch.cuda.get_device_properties(device).uuid}"


def shared_buffer(size: int, device: torch.device) -> tuple[torch.Tensor, bytes]:
    """Return a new buffer, [size] uint8 on the device, and the handle by which another process maps it.

    Keep the buffer: memory that is freed is used for something else.

    Raises:
        RuntimeError: There is no memory, or it cannot be shared (another allocator, no rights in a container).
    """
    if device.type == "cuda":
        buffer = torch.empty(size, dtype=torch.uint8, device=device)
        return buffer, cuda_handle(buffer)
    return _cpu_stand_in(size)


def cuda_handle(buffer: torch.Tensor) -> bytes:
    """Return a new handle of a buffer on a GPU.

    torch counts one release for each handle. A process that ends releases those that it has mapped, and only one that
    maps a handle for the first time counts again, so a newcomer needs a handle of its own.
    """
    return bytes(ForkingPickler.dumps(reduce_tensor(buffer)))


def synchronise(device: torch.device) -> None:
    """Wait until this process has finished everything that it started on a device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def mapped(handle: bytes, device: torch.device) -> torch.Tensor:
    """Map the buffer of a handle into this process, and return it, [bytes] uint8 on `device`.

    torch counts one release for each export. Map a handle once, however often it arrives: mapping it anew for every
    bucket would drive its count negative.

    Raises:
        RuntimeError, OSError: It cannot be mapped.
    """
    rebuild: Any
    rebuild, arguments = pickle.loads(handle)
    if rebuild is rebuild_cuda_tensor:
        arguments = list(arguments)
        arguments[DEVICE_ARGUMENT] = torch.cuda.current_device() if device.index is None else device.index
    return rebuild(*arguments)


def _cpu_stand_in(size: int) -> tuple[torch.Tensor, bytes]:
    """Return a buffer in anonymous memory and its handle. It ends with its last process, however that ends."""
    descriptor = os.memfd_create("weights", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, size)
    arguments = (f"/proc/{os.getpid()}/fd/{descriptor}", size)
    buffer = _map_cpu_stand_in(*arguments)
    weakref.finalize(buffer, os.close, descriptor)
    return buffer, pickle.dumps((_map_cpu_stand_in, arguments))


def _map_cpu_stand_in(path: str, size: int) -> torch.Tensor:
    return torch.from_file(path, shared=True, size=size, dtype=torch.uint8)
