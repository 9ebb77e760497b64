"""What the learner needs for LoRA besides peft: which weights to write, and a check of the targets.

LoRA (arXiv 2106.09685) trains a low-rank update of linear layers and freezes the layers themselves:

    W' = W + alpha / rank * B A

W' is computed in float32 while a tensor is gathered, and rounded once to W's dtype. Engines receive W' and know nothing
of adapters. In bf16 a change below the last of W's 8 bits is lost in the rounding, so the sampling weights differ from
the trained ones by up to that much; the diagnostics show it as engine mismatch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from peft.tuners.lora import LoraLayer
from peft.tuners.lora.layer import ParamWrapper
from torch import nn

from ..config.sections.learner import ALL_LINEAR, target_fault
from ..errors import ConfigError

ADAPTER = "default"
"""peft's name of the only adapter."""
PREFIX = "base_model.model."
"""What peft puts before the names of the model's weights."""


class LowRankUpdate(NamedTuple):
    """The update scale * b @ a of a linear layer, in the layer's shape [out, in]."""

    a: nn.Parameter
    """[rank, in]"""
    b: nn.Parameter
    """[out, rank]"""
    scale: float


class Weight(NamedTuple):
    """A weight that is pushed, exported or saved, under the name that loaders expect."""

    name: str
    tensor: torch.Tensor
    """The weight itself, or with ZeRO-3 this rank's handle of it: empty until it is gathered."""
    update: LowRankUpdate | None = None
    """The LoRA update that has to be added; None for weights without an adapter."""

    @property
    def gathered(self) -> list[nn.Parameter]:
        """The parameters that ZeRO-3 must gather before `value` is called."""
        params = [self.tensor, *self.update[:2]] if self.update else [self.tensor]
        return [p for p in params if isinstance(p, nn.Parameter)]

    def value(self) -> torch.Tensor:
        """Return the tensor that a model without adapters would have."""
        if self.update is None:
            return self.tensor.data
        a, b, scale = self.update
        return (self.tensor.data.float() + scale * (b.data.float() @ a.data.float())).to(self.tensor.dtype)


def adapter_layers(module: nn.Module) -> Iterator[tuple[str, LoraLayer]]:
    """Return the layers that have an adapter, with their names."""
    return ((name, layer) for name, layer in module.named_modules() if isinstance(layer, LoraLayer))


def hf_weights(module: nn.Module) -> list[Weight]:
    """Return the model's weights under their Hugging Face names, sorted by name, each with its LoRA update.

    A tied tensor appears once, under its first name: loaders expect no lm_head beside the embeddings it is tied to.
    """
    updates = {
        f"{name}.base_layer.weight": LowRankUpdate(
            layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight, layer.scaling[ADAPTER]
        )
        for name, layer in adapter_layers(module)
    }
    seen: set[int] = set()
    weights = []
    for name, tensor in module.state_dict(keep_vars=True).items():
        if id(tensor) not in seen and ".lora_" not in name:
            seen.add(id(tensor))
            hf_name = name.removeprefix(PREFIX).replace(".base_layer.", ".") if updates else name
            weights.append(Weight(hf_name, tensor, updates.get(name)))
    return sorted(weights, key=lambda weight: weight.name)


def adapter_weights(module: nn.Module) -> list[Weight]:
    """Return the adapters' weights under the names that peft.PeftModel.from_pretrained expects, sorted by name.

    The list is empty for a model without adapters.
    """
    state = module.state_dict(keep_vars=True)
    return [
        Weight(name.replace(f".{ADAPTER}.", "."), tensor) for name, tensor in sorted(state.items()) if ".lora_" in name
    ]


def check_targets(model: nn.Module, targets: Sequence[str]) -> None:
    """Check that every configured target matched a layer, and that all adapted layers can be merged.

    Args:
        model: The model with its adapters.
        targets: ds.lora.target_modules.

    Raises:
        ConfigError: No layer has the name of a target, or a target is the model's input or output, or no linear layer.
    """
    layers = dict(adapter_layers(model))
    for target in [] if list(targets) == [ALL_LINEAR] else targets:
        if not any(name == target or name.endswith(f".{target}") for name in layers):
            raise unmatched_target(target, model)
    for name, layer in layers.items():
        if isinstance(layer, ParamWrapper):
            raise ConfigError(
                f"ds.lora.target_modules adapts {name!r}, which is part of a mixture's experts or router. LoRA trains"
                " linear layers only. Name those of its attention, such as q_proj, k_proj, v_proj and o_proj."
            )
        if not isinstance(layer.get_base_layer(), nn.Linear) or layer is model.get_output_embeddings():
            raise ConfigError(
                f"ds.lora.target_modules names {name.rpartition('.')[2]!r}, which is"
                f" {type(layer.get_base_layer()).__name__} at the model's input or output. LoRA trains the linear"
                f" layers in between; use {ALL_LINEAR} for all of them."
            )


def unmatched_target(target: str, model: nn.Module) -> ConfigError:
    """Return the error for a target that no layer matches; it lists the names that exist."""
    linear = sorted(
        {
            name.removesuffix(".base_layer").rpartition(".")[2]
            for name, module in model.named_modules()
            if isinstance(module, nn.Linear)
        }
    )
    known = [name for name in linear if name not in ("lm_head", ADAPTER)]
    return ConfigError(target_fault(target, known))
