"""Make the environment of a learner rank one in which DeepSpeed can compile its own ops (FusedAdam, cpu_adam)."""

from __future__ import annotations

import os
import re
from collections.abc import MutableMapping

ARCHITECTURE = re.compile(r"(\d+\.\d+)[af]?(\+PTX)?")
"""One entry of TORCH_CUDA_ARCH_LIST: 9.0, 9.0a, 10.0f, 9.0+PTX."""


def known_architectures(arch_list: str) -> str:
    """Return the entries of a TORCH_CUDA_ARCH_LIST that DeepSpeed 0.19's builder can parse; empty if there are none.

    The builder parses every entry as two integers. CUDA images set 9.0a, whose letter allows instructions that
    DeepSpeed's kernels do not use.
    """
    matches = [ARCHITECTURE.fullmatch(entry) for entry in _entries(arch_list)]
    return ";".join(dict.fromkeys(match[1] + (match[2] or "") for match in matches if match))


def unreadable_architectures(arch_list: str) -> list[str]:
    """Return the entries of a TORCH_CUDA_ARCH_LIST that are no architectures, as names and typing errors."""
    return [entry for entry in _entries(arch_list) if not ARCHITECTURE.fullmatch(entry)]


def _entries(arch_list: str) -> list[str]:
    return [entry for entry in re.split(r"[;\s]+", arch_list) if entry]


def prepare_compilation(
    nvcc_major: int | None, torch_cuda: str | None, environ: MutableMapping[str, str] = os.environ
) -> None:
    """Change `environ` so that DeepSpeed's builder accepts this node.

    Args:
        nvcc_major: The major CUDA version of the node's nvcc; None if there is no nvcc.
        torch_cuda: The CUDA version that torch was built with, as "13.0"; None for a CPU build.
        environ: The environment of the process that compiles.
    """
    if arch_list := environ.get("TORCH_CUDA_ARCH_LIST"):
        if known := known_architectures(arch_list):
            environ["TORCH_CUDA_ARCH_LIST"] = known
        else:
            # Without the variable the builder reads the architectures from the devices.
            del environ["TORCH_CUDA_ARCH_LIST"]
    # CUDA's minor versions are compatible with each other, but DeepSpeed's list of compatible versions ends at 12.9.
    if nvcc_major is not None and torch_cuda is not None and nvcc_major == int(torch_cuda.partition(".")[0]):
        environ.setdefault("DS_SKIP_CUDA_CHECK", "1")


def nvcc_major() -> int | None:
    """Return the major CUDA version of the nvcc that DeepSpeed compiles with on this node; None if there is none."""
    from deepspeed.ops.op_builder.builder import MissingCUDAException, installed_cuda_version

    try:
        return int(installed_cuda_version()[0])
    except MissingCUDAException:
        return None
