"""Wait until the GPU memory of an earlier engine is free.

The driver takes seconds to free the memory of a killed process. vLLM takes vllm.gpu_memory_utilization of each GPU, and
does not start if less is free.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import subprocess
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..machine.gpus import nvidia_smi
from ..machine.sizes import size
from ..waiting.backoff import backoff_s
from ..waiting.deadlines import Deadline

log = logging.getLogger(__name__)
RELEASE_DEADLINE = Deadline(60.0, "gpu_memory.RELEASE_DEADLINE")
"""Eighty gigabytes of a killed process are free in a few seconds. Memory that is held for a minute belongs to a process
that lives."""
NVIDIA_SMI_TIMEOUT_S = 20.0
"""Deadline of nvidia-smi, which takes a second, more on a node where the driver is busy."""


class Gpu(NamedTuple):
    """One GPU's memory.

    Attributes:
        device: Its index.
        free: Free bytes.
        total: Bytes in all.
        held_by: Processes that hold memory, each "pid 123 (70.00 GiB)".
    """

    device: str
    free: int
    total: int
    held_by: tuple[str, ...] = ()


async def wait_for_memory(
    share: float,
    devices: str | None,
    *,
    deadline: Deadline = RELEASE_DEADLINE,
    read: Callable[[str], Sequence[Gpu]] | None = None,
) -> list[Gpu]:
    """Wait until a share of each GPU's memory is free.

    After the deadline a warning names the processes that hold memory; vLLM then decides whether it can start. Without
    nvidia-smi nothing is waited for.

    Args:
        share: Share of the memory, from 0 to 1.
        devices: The GPUs, as CUDA_VISIBLE_DEVICES lists them.
        deadline: How long to wait.
        read: Returns the state of the GPUs; nvidia-smi if not given.

    Returns:
        The GPUs that are not free enough.
    """
    read = read or (_nvidia_smi if shutil.which("nvidia-smi") else None)
    if read is None or not devices:
        return []
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + deadline.seconds
    tries = 0
    while full := [gpu for gpu in await asyncio.to_thread(read, devices) if gpu.free < share * gpu.total]:
        if loop.time() >= give_up_at:
            for gpu in full:
                free = f"{size(gpu.free)} of {size(gpu.total)}"
                holders = ", ".join(gpu.held_by) or "processes that cannot be seen here"
                log.warning(
                    "GPU %s has %s free after %s, the engine needs %d %%: held by %s",
                    gpu.device,
                    free,
                    deadline,
                    round(100 * share),
                    holders,
                )
            break
        await asyncio.sleep(backoff_s(tries, first_s=0.25, cap_s=2.0))
        tries += 1
    return full


def _nvidia_smi(devices: str) -> list[Gpu]:
    try:
        holders = parse_holders(_query("--query-compute-apps=gpu_uuid,pid,used_memory", devices))
        return parse_gpus(_query("--query-gpu=index,uuid,memory.free,memory.total", devices), holders)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        log.warning("the free memory of the GPUs is unknown: %s", error)
        return []


def _query(query: str, devices: str) -> str:
    return nvidia_smi(query, "--format=csv,noheader,nounits", "-i", devices, timeout_s=NVIDIA_SMI_TIMEOUT_S)


def parse_gpus(csv: str, holders: dict[str, list[str]]) -> list[Gpu]:
    """Parse nvidia-smi's lines of index, uuid, free MiB and total MiB.

    Args:
        csv: The lines.
        holders: Uuid -> processes that hold memory.

    Raises:
        ValueError: The text has another form.
    """
    rows = [[field.strip() for field in line.split(",")] for line in csv.splitlines() if line.strip()]
    return [
        Gpu(device, int(free) << 20, int(total) << 20, tuple(holders.get(uuid, ())))
        for device, uuid, free, total in rows
    ]


def parse_holders(csv: str) -> dict[str, list[str]]:
    """Parse nvidia-smi's lines of uuid, pid and used MiB. Return uuid -> processes, each "pid 123 (70.00 GiB)"."""
    holders: dict[str, list[str]] = {}
    for line in csv.splitlines():
        uuid, pid, used = (field.strip() for field in line.split(","))
        holders.setdefault(uuid, []).append(
            f"pid {pid} ({size(int(used) << 20)})" if used.isdecimal() else f"pid {pid}"
        )
    return holders
