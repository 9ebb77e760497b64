"""The GPUs that this machine has and that this process may use, without importing torch."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

CPU_ONLY = {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
"""Environment of every process of a run that does not use GPUs, wherever it is."""


NVIDIA_SMI_S = 30
"""Deadline of the driver's tool, which takes a second; on a node with many GPUs without persistence many."""


def gpu_count() -> int:
    """NVIDIA GPUs of this node, by the driver's device files: visible also to a process that Ray gave none."""
    return sum(p.name[len("nvidia") :].isdigit() for p in Path("/dev").glob("nvidia*"))


def gpu_memory() -> int | None:
    """Return the bytes of this node's smallest GPU; None where there is none, or the driver's tool does not say."""
    if not gpu_count():
        return None
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=NVIDIA_SMI_S, check=True).stdout
        return min(int(line) for line in told.split()) << 20
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def runs_on_gpus(environ: Mapping[str, str] = os.environ, on_node: int | None = None) -> bool:
    """Whether this process is of a run on GPUs, though it may hold none itself (vLLM's workers do). `on_node`: GPUs of
    the node, else counted."""
    return (
        environ.get("DS_ACCELERATOR") != CPU_ONLY["DS_ACCELERATOR"]
        and (gpu_count() if on_node is None else on_node) > 0
    )


def visible_gpus(environ: Mapping[str, str] = os.environ, on_node: int | None = None) -> int:
    """GPUs that this process may use: those Ray gave it, which CUDA_VISIBLE_DEVICES lists, else all of the node."""
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return gpu_count() if on_node is None else on_node
    return len([device for device in listed.split(",") if device.strip()])
