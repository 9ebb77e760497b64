"""Liger's Triton kernels (arXiv 2410.10989) for a model's norms, rotary embedding and gated MLPs.

transformers computes each of these as several operations, and every operation reads and writes an activation. Liger
computes each as one, and keeps fewer of the activations for the backward pass. Its fused head is not used: the learner
needs log-probs and entropies, which `linear_head` computes.
"""

from __future__ import annotations

from transformers import AutoConfig

from ..config import Config
from ..errors import ConfigError
from .attention.choice import is_installed

PACKAGE = "liger_kernel"


def is_used(cfg: Config, *, on_gpu: bool) -> bool:
    """Return True if the policy's layers are computed by Liger.

    Raises:
        ConfigError: ds.use_liger_kernel asks for it where it cannot run.
    """
    if cfg.ds.use_liger_kernel is None:
        return on_gpu and is_installed(PACKAGE) and cfg.ds.ring_attn_size == 1
    if cfg.ds.use_liger_kernel and not (on_gpu and is_installed(PACKAGE)):
        missing = "the package liger-kernel, which is not installed" if on_gpu else "an NVIDIA GPU"
        raise ConfigError(f"ds.use_liger_kernel needs {missing}. Leave the setting out, or install what is missing.")
    return cfg.ds.use_liger_kernel


def apply(model_name_or_path: str) -> None:
    """Replace the layers' classes of this model's type. Models that are built later in this process consist of them.

    A type that Liger does not know, and a model with images, stays as it is.
    """
    from liger_kernel.transformers import _apply_liger_kernel

    config = AutoConfig.from_pretrained(model_name_or_path)
    if not hasattr(config, "vision_config"):
        _apply_liger_kernel(config.model_type, fused_linear_cross_entropy=False)
