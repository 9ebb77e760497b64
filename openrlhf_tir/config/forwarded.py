"""Forwarded: the launcher's environment variables that every process of a run gets, on all nodes: what NCCL, gloo, vLLM
and torch read.

`python -m openrlhf_tir.config.forwarded` prints them for a shell to read; the launch scripts do that.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping

PREFIXES = ("NCCL_", "GLOO_", "VLLM_", "TORCH_", "UCX_", "FI_", "HF_", "HUGGINGFACE_")
NAMED = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "TRANSFORMERS_OFFLINE", "OMP_NUM_THREADS")
OF_ONE_NODE = (
    "VLLM_HOST_IP",
    "VLLM_HOST_PORT",
    "VLLM_NIXL_SIDE_CHANNEL_HOST",
    "VLLM_API_KEY",
    "VLLM_DP_RANK",
    "VLLM_DP_RANK_LOCAL",
)
"""True on the launcher's node only, or given by this project itself: on another node they would be wrong."""


def forwarded(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Those of `environ` that are forwarded."""
    return {
        name: value
        for name, value in environ.items()
        if (name.startswith(PREFIXES) or name in NAMED) and name not in OF_ONE_NODE
    }


if __name__ == "__main__":
    for key, text in sorted(forwarded().items()):
        # a command line is no place for a secret: the actors have it from the driver
        if "TOKEN" in key or "KEY" in key:
            continue
        print(f"export {key}={shlex.quote(text)};")
