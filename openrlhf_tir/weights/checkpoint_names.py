"""Give a mixture's pushed tensors the names and shapes of its checkpoint, which are those that vLLM's loader reads.

Since version 5, transformers holds the experts of a layer as two tensors, and names some modules otherwise than their
checkpoints do. The learner sends what it holds:

    learner      model.layers.0.mlp.experts.gate_up_proj [experts, 2 inner, hidden]
    checkpoint   model.layers.0.block_sparse_moe.experts.0.w1.weight [inner, hidden], ...0.w3.weight, ...1.w1.weight

The conversion is the one with which transformers' `save_pretrained` writes checkpoints, applied tensor by tensor: the
model is never complete in one place. Dense models keep the names of their checkpoints and are not converted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

import torch

log = logging.getLogger(__name__)
Tensors = Iterable[tuple[str, torch.Tensor]]
JOINED = frozenset({"qwen3_moe"})
"""Model types of which vLLM's loader takes the experts as the learner has them. That spares one tensor, and one
comparison, for each matrix of each expert: 36,000 for 235 billion parameters."""


class CheckpointNames:
    """Converts the tensors of one model. Tensors of models that need no conversion are passed on."""

    def __init__(self, model: Any = None) -> None:
        """Use `of` instead.

        Args:
            model: A transformers model whose conversions are known; None: nothing is converted.
        """
        self._model = model

    @classmethod
    def of(cls, source: str) -> CheckpointNames:
        """Return the conversion for a mixture of experts.

        Args:
            source: Directory or hub name of the model. Only its config.json is read.
        """
        from transformers import AutoConfig

        try:
            config = AutoConfig.from_pretrained(source)
        except Exception as error:
            # transformers may not know the model, or only with code of its own. Then its names are the checkpoint's.
            log.info("Pushed tensors of %s keep the learner's names: %s", source, error)
            return cls()
        if config.model_type in JOINED:
            return cls()
        try:
            return cls.of_config(config)
        except Exception as error:
            log.warning("Pushed tensors of %s keep the learner's names, which vLLM may not load: %s", source, error)
            return cls()

    @classmethod
    def of_config(cls, config: Any) -> CheckpointNames:
        """Return the conversion for the model of a transformers configuration.

        Raises:
            ValueError: A tensor of the checkpoint is made of several of the learner's, or the configuration has no
                causal language model.
        """
        from transformers import AutoModelForCausalLM
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import PrefixChange

        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        conversions = [
            conversion
            for conversion in get_model_conversion_mapping(model, add_legacy=False)
            # Whether a checkpoint has the prefix is a matter of how it was saved; vLLM's loaders take both.
            if not isinstance(conversion, PrefixChange)
        ]
        for conversion in conversions:
            if len(conversion.reverse_transform().source_patterns) > 1 and hasattr(conversion, "operations"):
                raise ValueError(f"{config.model_type}: {conversion} joins several tensors of the learner")
        model._weight_conversions = conversions
        return cls(model if conversions else None)

    def __call__(self, tensors: Tensors) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors as a checkpoint has them, one after the other."""
        if self._model is None:
            yield from tensors
            return
        from transformers.core_model_loading import revert_weight_conversion

        for name, tensor in tensors:
            yield from revert_weight_conversion(self._model, {name: tensor}).items()
