"""Choose the launcher's environment variables that every process of a run gets, on all nodes: what NCCL, gloo, vLLM,
torch, Triton, CUDA, DeepSpeed and the compilers that they call read, and by which proxies and certificates servers are
reached.

`python -m openrlhf_tir.config.forwarded` prints them for a shell to read; the launch scripts do that.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping

PREFIXES = (
    # networks
    "NCCL_",
    "GLOO_",
    "UCX_",
    "FI_",
    # libraries
    "VLLM_",
    "FLASHINFER_",
    "TORCH_",
    "PYTORCH_",
    "TORCHINDUCTOR_",
    "TORCHDYNAMO_",
    "TRITON_",
    "DS_",
    "HF_",
    "HUGGINGFACE_",
    # CUDA
    "CUDA_",
    "CUBLAS_",
    "CUDNN_",
)
NAMED = (
    "TRANSFORMERS_OFFLINE",
    "OMP_NUM_THREADS",
    # where compilers, libraries and caches are: Triton and DeepSpeed compile on the node that runs them
    "CC",
    "CXX",
    "MAX_JOBS",
    "LD_LIBRARY_PATH",
    "XDG_CACHE_HOME",
    # certificates of a private authority: the engines on all nodes call the environment servers
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
)
PROXIES = ("http_proxy", "https_proxy", "all_proxy")
"""Variables of proxies, which may also be in upper case."""
NO_PROXY = "no_proxy"
"""Variable of the hosts that are reached without one, likewise."""
OF_ONE_NODE = (
    "CUDA_VISIBLE_DEVICES",  # Ray sets it for each process
    "DS_ACCELERATOR",  # a head without GPUs has cpu; worker_env decides by what the cluster has
    "VLLM_HOST_IP",
    "VLLM_HOST_PORT",
    "VLLM_NIXL_SIDE_CHANNEL_HOST",
    "VLLM_API_KEY",
    "VLLM_DP_RANK",
    "VLLM_DP_RANK_LOCAL",
)
"""Variables that hold on the launcher's node only, or that this project sets itself: elsewhere they would be wrong."""


_ON_LOOPBACK = re.compile(r"(\w+://)?([^/]*@)?(localhost|127\.|\[::1\])", re.IGNORECASE)
"""A proxy that only its own node reaches. Programs take one without http:// as well."""


def forwarded(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables of `environ` that are forwarded."""
    return {
        name: value
        for name, value in environ.items()
        if ((name.startswith(PREFIXES) or name in NAMED) and name not in OF_ONE_NODE)
        or (name.lower() in PROXIES and not _ON_LOOPBACK.match(value))
        or name.lower() == NO_PROXY
    }


if __name__ == "__main__":
    for key, text in sorted(forwarded().items()):
        # a command line is no place for a secret: the actors have it from the driver
        if "TOKEN" in key or "KEY" in key or (key.lower() in PROXIES and "@" in text):
            continue
        print(f"export {key}={shlex.quote(text)};")
