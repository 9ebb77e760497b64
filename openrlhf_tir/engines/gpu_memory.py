"""GPU memory that an engine before this one held: the driver takes seconds to free what a killed process had. A new
engine waits for that.

vLLM takes vllm.gpu_memory_utilization of each GPU and does not start when less is free.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..backoff import backoff_s
from ..deadlines import Deadline
from ..sizes import size

log = logging.getLogger(__name__)
RELEASE = Deadline(60.0, "gpu_memory.RELEASE")
"""Eighty gigabytes of a killed process are free in a few seconds; what is held for a minute is a living one's."""
ANSWER_S = 20.0
"""Deadline of nvidia-smi, which takes a second, more on a node where the driver is busy."""


class Gpu(NamedTuple):
    device: str
    free: int
    """Free bytes of the GPU's `total` bytes."""
    total: int
    held_by: tuple[str, ...] = ()
    """Processes, each "pid 123 (70.00 GiB)"."""


async def wait_for_memory(
    share: float,
    devices: str | None,
    *,
    deadline: Deadline = RELEASE,
    read: Callable[[str], Sequence[Gpu]] | None = None,
) -> list[Gpu]:
    """Until `share` of each of `devices` (as CUDA_VISIBLE_DEVICES lists them) is free. Returns those that are not when
    the deadline has passed, after a warning that names who holds them: vLLM has the last word. Nothing is waited for
    where nvidia-smi is not."""
    read = read or (_nvidia_smi if shutil.which("nvidia-smi") else None)
    if read is None or not devices:
        return []
    loop = asyncio.get_running_loop()
    give_up, tries = loop.time() + deadline.seconds, 0
    while full := [gpu for gpu in await asyncio.to_thread(read, devices) if gpu.free < share * gpu.total]:
        if loop.time() >= give_up:
            for gpu in full:
                has = f"{size(gpu.free)} of {size(gpu.total)}"
                holders = ", ".join(gpu.held_by) or "processes that cannot be seen here"
                log.warning(
                    "GPU %s has %s free after %s, the engine needs %d %%: held by %s",
                    gpu.device,
                    has,
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
        held = parsed_holders(_asked("--query-compute-apps=gpu_uuid,pid,used_memory", devices))
        return parsed(_asked("--query-gpu=index,uuid,memory.free,memory.total", devices), held)
    except (OSError, subprocess.SubprocessError, ValueError) as e:
        log.warning("free memory of the GPUs is not known: %s", e)
        return []


def _asked(query: str, devices: str) -> str:
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits", "-i", devices]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=ANSWER_S, env={**os.environ, "LC_ALL": "C"}
    ).stdout


def parsed(csv: str, held: dict[str, list[str]]) -> list[Gpu]:
    """Lines of index, uuid, MiB free, MiB in all. Raises ValueError."""
    rows = [[field.strip() for field in line.split(",")] for line in csv.splitlines() if line.strip()]
    return [
        Gpu(device, int(free) << 20, int(total) << 20, tuple(held.get(uuid, ()))) for device, uuid, free, total in rows
    ]


def parsed_holders(csv: str) -> dict[str, list[str]]:
    """Lines of uuid, pid, MiB used -> who holds what on which GPU."""
    held: dict[str, list[str]] = {}
    for line in csv.splitlines():
        uuid, pid, used = (field.strip() for field in line.split(","))
        held.setdefault(uuid, []).append(f"pid {pid} ({size(int(used) << 20)})" if used.isdecimal() else f"pid {pid}")
    return held
