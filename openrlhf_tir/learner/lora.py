"""LoRA (arXiv 2106.09685): a low-rank update of linear layers trains, the layers themselves do not. What the learner
needs besides peft:

    checked(model, asked)     every target was found, and each is a linear layer
    hf_weights(module)        the model's weights under their HF names, each with the update that is to be added to it
    adapter_weights(module)   the updates alone, under peft's names

    W' = W + alpha / rank * B A         computed in float32 while a tensor is gathered, and rounded to W's dtype once

Engines get W' and know nothing of adapters. In bf16 a change below the last of W's 8 bits is lost in the rounding, so
what samples differs from what trains by up to that: the diagnostics show it as engine mismatch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from peft.tuners.lora import LoraLayer
from torch import nn

from ..errors import ConfigError

ADAPTER = "default"
"""peft's name of the one adapter."""
ALL_LINEAR = "all-linear"
PREFIX = "base_model.model."


class Update(NamedTuple):
    """scale * b @ a, of the layer's shape [out, in]."""

    a: nn.Parameter
    b: nn.Parameter
    scale: float


class Weight(NamedTuple):
    name: str
    tensor: torch.Tensor
    update: Update | None = None

    @property
    def gathered(self) -> list[nn.Parameter]:
        """What ZeRO-3 must put together before `value`."""
        params = [self.tensor, *self.update[:2]] if self.update else [self.tensor]
        return [p for p in params if isinstance(p, nn.Parameter)]

    def value(self) -> torch.Tensor:
        """The tensor as a model without adapters has it."""
        if self.update is None:
            return self.tensor.data
        a, b, scale = self.update
        return (self.tensor.data.float() + scale * (b.data.float() @ a.data.float())).to(self.tensor.dtype)


def adapted(module: nn.Module) -> Iterator[tuple[str, LoraLayer]]:
    return ((name, layer) for name, layer in module.named_modules() if isinstance(layer, LoraLayer))


def hf_weights(module: nn.Module) -> list[Weight]:
    """Sorted by name. A tied tensor appears once, under its first name: loaders expect no lm_head beside the embeddings
    it is tied to."""
    updates = {
        f"{name}.base_layer.weight": Update(
            layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight, layer.scaling[ADAPTER]
        )
        for name, layer in adapted(module)
    }
    seen: set[int] = set()
    out = []
    for name, tensor in module.state_dict(keep_vars=True).items():
        if id(tensor) not in seen and ".lora_" not in name:
            seen.add(id(tensor))
            out.append(
                Weight(
                    name.removeprefix(PREFIX).replace(".base_layer.", ".") if updates else name,
                    tensor,
                    updates.get(name),
                )
            )
    return sorted(out, key=lambda w: w.name)


def adapter_weights(module: nn.Module) -> list[Weight]:
    """As peft.PeftModel.from_pretrained expects them; empty for a model without adapters."""
    state = module.state_dict(keep_vars=True)
    return [
        Weight(name.replace(f".{ADAPTER}.", "."), tensor) for name, tensor in sorted(state.items()) if ".lora_" in name
    ]


def checked(model: nn.Module, targets: Sequence[str]) -> None:
    """Raises ConfigError for a target that no layer has, or whose layer is not one matrix product in the model."""
    found = dict(adapted(model))
    for target in [] if list(targets) == [ALL_LINEAR] else targets:
        if not any(name == target or name.endswith(f".{target}") for name in found):
            raise unmatched(target, model)
    for name, layer in found.items():
        if not isinstance(layer.get_base_layer(), nn.Linear) or layer is model.get_output_embeddings():
            raise ConfigError(
                f"ds.lora.target_modules names {name.rpartition('.')[2]!r}, which is"
                f" {type(layer.get_base_layer()).__name__} at the model's input or output. LoRA trains the linear"
                f" layers in between; use {ALL_LINEAR} for all of them."
            )


def unmatched(target: str, model: nn.Module) -> ConfigError:
    linear = sorted(
        {
            name.removesuffix(".base_layer").rpartition(".")[2]
            for name, m in model.named_modules()
            if isinstance(m, nn.Linear)
        }
    )
    known = [name for name in linear if name not in ("lm_head", ADAPTER)]
    return ConfigError(
        f"ds.lora.target_modules names {target!r}, and the model has no such layer."
        f" Known: {', '.join(known)}. Use some of them, or {ALL_LINEAR}."
    )
