"""Which modules a push has to fill, for the read-back (readback.py)."""

from __future__ import annotations

import torch
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from . import fused_experts


def _ancestors(path: str) -> set[str]:
    """Return `path` and the path of every module around it; the whole model is the empty path."""
    names = path.split(".")
    return {".".join(names[:length]) for length in range(len(names) + 1)}


def _kind(path: str) -> str:
    """Return a path that is the same for one module of every layer."""
    return ".".join("*" if part.isdigit() else part for part in path.split("."))


def _is_known(module: torch.nn.Module) -> bool:
    """Return whether `module` is one that a checkpoint fills and that this file can read: linear, embedding, norm."""
    if isinstance(module, LinearBase):
        return isinstance(module.quant_method, UnquantizedLinearMethod)
    if isinstance(module, VocabParallelEmbedding | torch.nn.Linear | torch.nn.Embedding):
        return True
    if fused_experts.is_readable(module):
        return True
    return type(module).__name__.endswith("Norm")
