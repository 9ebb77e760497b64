"""The GPUs that this machine has and that this process may use, without importing torch."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path

NO_DEVICE = ("", "-1", "NoDevFiles")
"""Entries of CUDA_VISIBLE_DEVICES that end the list."""
CPU_ONLY = {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
"""Environment variables of every process of a run without GPUs, on every node."""


NVIDIA_SMI_S = 30
"""Deadline of nvidia-smi in seconds. It takes a second; on a node with many GPUs without persistence mode much
longer."""


def gpu_count() -> int:
    """Return the number of NVIDIA GPUs of this node.

    It counts the driver's device files, which a process sees even if Ray gave it no GPU.
    """
    return sum(path.name[len("nvidia") :].isdigit() for path in Path("/dev").glob("nvidia*"))


def nvidia_smi(*arguments: str, timeout_s: float = NVIDIA_SMI_S) -> str:
    """Return what nvidia-smi prints in plain English, so that it can be parsed.

    Raises:
        OSError: There is no nvidia-smi.
        subprocess.SubprocessError: It failed, or took longer than `timeout_s`.
    """
    return subprocess.run(
        ["nvidia-smi", *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=timeout_s,
        env={**os.environ, "LC_ALL": "C"},
    ).stdout


def gpu_memory() -> int | None:
    """Return the bytes of the smallest GPU that this process can have; None if there is none, or if nobody knows."""
    if not usable_gpus() or "MIG-" in os.environ.get("CUDA_VISIBLE_DEVICES", ""):  # a part of a card is not listed
        return None
    try:
        output = nvidia_smi("--query-gpu=memory.total", "--format=csv,noheader,nounits")
        return smallest([int(line) << 20 for line in output.split()], visible_gpus())
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def smallest(sizes: Sequence[int], visible: int) -> int:
    """Return the bytes of the smallest GPU that a process may have.

    If a node's GPUs differ, a process with some of them is taken to have the largest: CUDA and nvidia-smi need not
    count them in the same order.

    Args:
        sizes: Bytes of each of the node's GPUs.
        visible: GPUs that the process may use; 0: it has none itself, and all count.
    """
    return min(sorted(sizes)[-(visible or len(sizes)) :])


def runs_on_gpus(environ: Mapping[str, str] = os.environ, on_node: int | None = None) -> bool:
    """Return True if this process belongs to a run on GPUs. It may hold none itself, because vLLM's workers do.

    Args:
        environ: Environment variables.
        on_node: GPUs of the node; None to count them.
    """
    return (
        environ.get("DS_ACCELERATOR") != CPU_ONLY["DS_ACCELERATOR"]
        and (gpu_count() if on_node is None else on_node) > 0
    )


def visible_gpus(environ: Mapping[str, str] = os.environ, on_node: int | None = None) -> int:
    """Return how many GPUs this process may use: those that CUDA_VISIBLE_DEVICES lists, else all of the node.

    Args:
        environ: Environment variables. Ray sets CUDA_VISIBLE_DEVICES to the GPUs that it gave the process.
        on_node: GPUs of the node; None to count them.
    """
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return gpu_count() if on_node is None else on_node
    return len(_devices(listed))


def usable_gpus(environ: Mapping[str, str] = os.environ, on_node: int | None = None) -> int:
    """Return the GPUs that a Ray which is started here would have: those of the node that this process may use.

    Slurm and users give a process some of a node's GPUs by CUDA_VISIBLE_DEVICES; all of the device files stay.

    Args:
        environ: Environment variables.
        on_node: GPUs of the node; None to count them.
    """
    on_node = gpu_count() if on_node is None else on_node
    return min(on_node, visible_gpus(environ, on_node))


def _devices(listed: str) -> list[str]:
    """Return the devices of a list in CUDA_VISIBLE_DEVICES: indices, or names that begin with GPU- or MIG-.

    CUDA ignores what follows a -1. Slurm writes NoDevFiles for a job without GPUs.
    """
    devices = [device.strip() for device in listed.split(",")]
    return [*takewhile(lambda device: device not in NO_DEVICE, devices)]
