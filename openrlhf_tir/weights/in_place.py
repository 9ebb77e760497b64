"""Say whether a push may be loaded straight into the tensors with which a model computes.

vLLM loads weights into a running model layer by layer: it puts every parameter back into the shape of the checkpoint,
counts what each loader writes, processes the layer again and copies the result into the tensors that CUDA graphs refer
to. That costs the host some hundred microseconds a tensor, while the engine stands still. Where processing changes
nothing, the loader of the model may write into those tensors directly.

The rule is a list of what is known to need nothing, and the read-back after the push refutes it where it is wrong: the
same weights are then loaded layer by layer (file_backend.py).
"""

from __future__ import annotations

import torch
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod, VocabParallelEmbedding
from vllm.v1.attention.backend import AttentionImplBase

from .readback import PLAIN_TYPES


def loads_in_place(model: torch.nn.Module, device: torch.device) -> bool:
    """Return True if no layer of a model on a GPU transforms its weights after loading.

    Args:
        model: vLLM's model, loaded.
        device: The device of its parameters.
    """
    model_type = getattr(getattr(model, "config", None), "model_type", None)
    if device.type != "cuda" or model_type not in PLAIN_TYPES:
        return False
    return all(_is_plain(module) for module in model.modules())


def _is_plain(module: torch.nn.Module) -> bool:
    if isinstance(module, LinearBase):
        return type(module.quant_method) is UnquantizedLinearMethod
    if isinstance(module, VocabParallelEmbedding):
        return type(module.quant_method) is UnquantizedEmbeddingMethod
    if isinstance(module, Attention):
        processing = type(module.impl).process_weights_after_loading
        return processing is AttentionImplBase.process_weights_after_loading and module.quant_config is None
    return not hasattr(module, "process_weights_after_loading") and not hasattr(module, "quant_method")
