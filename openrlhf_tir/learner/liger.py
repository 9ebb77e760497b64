"""Liger's Triton kernels (arXiv 2410.10989) for a model's norms, rotary embedding and gated MLPs.

transformers computes each of these as several operations, and every operation reads and writes an activation. Liger
computes each as one, and keeps fewer of the activations for the backward pass. Its fused head is not used: the learner
needs log-probs and entropies, which `linear_head` computes.
"""

from __future__ import annotations

from importlib.util import find_spec

from ..config import Config
from ..errors import ConfigError
from ..memory.memory_plan import wants_liger
from ..memory.model_size import config_json


def is_used(cfg: Config, *, on_gpu: bool) -> bool:
    """Return True if the policy's layers are computed by Liger.

    Raises:
        ConfigError: ds.use_liger_kernel asks for it where it cannot run.
    """
    if not cfg.ds.use_liger_kernel:
        return on_gpu and wants_liger(cfg)
    if not on_gpu or find_spec("liger_kernel") is None:
        missing = "the package liger-kernel, which is not installed" if on_gpu else "an NVIDIA GPU"
        raise ConfigError(f"ds.use_liger_kernel needs {missing}. Leave the setting out, or install what is missing.")
    return True


def apply(model_name_or_path: str) -> None:
    """Replace the layers' classes of this model's type. Models that are built later in this process consist of them.

    A type that Liger does not know, and a model with images, stays as it is.
    """
    from liger_kernel.transformers import _apply_liger_kernel

    config = config_json(model_name_or_path)
    if "vision_config" not in config:
        _apply_liger_kernel(config.get("model_type", ""), fused_linear_cross_entropy=False)
