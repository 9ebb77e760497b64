"""Choose the layers that compute their activations again in the backward pass (activation checkpointing).

A layer that is computed again costs a second forward pass, a quarter of its arithmetic in all; one that is not keeps
some twenty times the memory. Where a GPU has room for a part of the layers' activations, only the others need the
second pass.
"""

from __future__ import annotations

import torch
from transformers.modeling_layers import GradientCheckpointingLayer

from ..config import Config
from ..errors import ConfigError
from ..memory.memory_plan import memory_plan

USABLE = 0.9
"""Share of a GPU's memory that the plan may fill. The plan is within a tenth of what was measured."""


def layers_to_recompute(cfg: Config, device: str) -> int | None:
    """Return how many layers compute their activations again; None: all.

    Args:
        cfg: The configuration; actor.gradient_checkpointing_enable is on.
        device: The learner's torch device. Without a GPU "auto" is all.
    """
    wanted = cfg.actor.gradient_checkpointing_layers
    if wanted != "auto":
        return wanted
    if device == "cpu":
        return None
    return fewest_that_fit(cfg, torch.cuda.get_device_properties(device).total_memory)


def fewest_that_fit(cfg: Config, gpu_bytes: int) -> int | None:
    """Return the smallest number of recomputed layers with which the memory plan fits; None: all.

    Args:
        cfg: The configuration.
        gpu_bytes: Memory of the learner's GPU.
    """
    plan = memory_plan(cfg, gpu_bytes)
    for number in range(plan.layers if plan else 0):
        actor = cfg.actor.model_copy(update={"gradient_checkpointing_layers": number})
        plan = memory_plan(cfg.model_copy(update={"actor": actor}), gpu_bytes)
        if plan and plan.learner_gpu + plan.beside_learner <= USABLE * gpu_bytes:
            return number
    return None


def recompute_first_layers(model: torch.nn.Module, number: int | None) -> None:
    """Let only the first `number` decoder layers of a model with activation checkpointing compute again; None: all.

    Raises:
        ConfigError: The model's layers cannot be told apart.
    """
    if number is None:
        return
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise ConfigError(
            f"actor.gradient_checkpointing_layers = {number}: the layers of {type(model).__name__} do not choose one by"
            " one whether they compute again. Leave the setting out."
        )
    for layer in layers[number:]:
        layer.gradient_checkpointing = False
