"""Checks of the learner's settings: a whole sequence fits into a forward pass, and LoRA finds the layers that it
trains.

Headers are read, nothing is loaded.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...config import Config
from ...config.sections.learner import ALL_LINEAR, target_fault
from ...errors import ConfigError
from ...memory.model_size import INCOMPLETE, Experts
from .weights import tensors_of

log = logging.getLogger(__name__)
EXPERTS = "experts"
"""Part of a layer's name in a mixture of experts. transformers joins experts into other layers than the file's."""
NOT_TRAINED = ("embed_tokens", "wte", "lm_head")
"""Layers that LoRA does not train."""


def check_budget(cfg: Config) -> None:
    """Check that a response of full length fits into a forward pass, because no part of the learner cuts a sequence.

    Raises:
        ConfigError: It does not fit.
    """
    ranks, longest = cfg.ds.ring_attn_size, cfg.data.max_len
    for setting, tokens in (
        ("train.max_tokens_per_gpu", cfg.train.max_tokens_per_gpu),
        ("rollout.max_tokens_per_gpu", cfg.rollout.max_tokens_per_gpu),
    ):
        if tokens is not None and longest > tokens * ranks:
            shared = f" * ds.ring_attn_size = {tokens} * {ranks}" if ranks > 1 else ""
            raise ConfigError(
                f"data.max_len = {longest} tokens of prompt and response do not fit into a forward pass of"
                f" {setting}{shared} = {tokens * ranks}. Raise {setting} to {-(-longest // ranks)}, or lower"
                " data.max_len."
            )


def check_positions(cfg: Config, model: Mapping[str, Any]) -> None:
    """Check that vLLM accepts the length of a sequence.

    It is left to vLLM if positions are scaled, or if vLLM's own arguments decide.

    Args:
        cfg: The configuration.
        model: The model's config.json.

    Raises:
        ConfigError: The model has fewer positions.
    """
    positions = model.get("max_position_embeddings")
    rope = model.get("rope_parameters")
    scaled = model.get("rope_scaling") or (isinstance(rope, dict) and rope.get("rope_type") != "default")
    if cfg.rollout.engine != "vllm" or cfg.vllm.engine_args or scaled or "VLLM_ALLOW_LONG_MAX_MODEL_LEN" in os.environ:
        return
    if isinstance(positions, int) and cfg.data.max_len > positions:
        raise ConfigError(
            f"data.max_len = {cfg.data.max_len} tokens of prompt and response, and the model has {positions} positions"
            f" (max_position_embeddings). Lower it to {positions}, or take a model for longer texts."
        )


def check_routing(cfg: Config, model: Mapping[str, Any]) -> None:
    """Check that a run with `rollout.routing_replay` trains a mixture of experts whose routers can be replayed.

    Args:
        cfg: The configuration.
        model: The model's config.json.

    Raises:
        ConfigError: The model has no experts, or chooses them in a way that cannot be replaced.
    """
    if not cfg.rollout.routing_replay or not model:
        return
    text = model.get("text_config") or model
    if _has_experts(model) is False:
        raise ConfigError(
            f"rollout.routing_replay = true, but {cfg.actor.model_name_or_path!r} (model_type"
            f" {text.get('model_type')!r}) is no mixture of experts. Set rollout.routing_replay to false."
        )
    if fault := _routers_fault(model):
        raise ConfigError(fault)


def _has_experts(model: Mapping[str, Any]) -> bool | None:
    """Return None for a damaged configuration, which the loading of the model reports."""
    try:
        return Experts.of(model) is not None
    except INCOMPLETE:
        return None


def _routers_fault(model: Mapping[str, Any]) -> str | None:
    """Build the model without memory for its weights; return why its routers cannot be replayed, or None.

    None is also the answer for a model that cannot be built from its config.json alone. The learner then decides.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from ...learner.routing_replay import unsupported

    try:
        with torch.device("meta"):
            built = AutoModelForCausalLM.from_config(AutoConfig.for_model(**model))
    except Exception as error:  # code of many models, some of them outside of transformers
        log.debug("the model cannot be built from its config.json: %s", error)
        return None
    return unsupported(built)


def check_lora_of_mixture(cfg: Config, model: Mapping[str, Any]) -> None:
    """Check that LoRA leaves the experts of a mixture alone.

    Args:
        cfg: The configuration.
        model: The model's config.json.

    Raises:
        ConfigError: All layers of a mixture are to be adapted. peft would adapt experts and routers as well, which are
            no linear layers, and whose updates cannot be merged into what engines receive.
    """
    if not cfg.ds.lora.rank or cfg.ds.lora.target_modules != [ALL_LINEAR]:
        return
    if _has_experts(model):
        raise ConfigError(
            f"ds.lora.target_modules = {ALL_LINEAR}, but {cfg.actor.model_name_or_path!r} is a mixture of experts, and"
            " LoRA trains neither experts nor routers here. Name the layers of its attention: --ds.lora.target_modules"
            " q_proj k_proj v_proj o_proj."
        )


def check_lora(cfg: Config, model: Path) -> None:
    """Check that every LoRA target is the name of a layer in the model's weight files.

    What the files cannot tell (a mixture of experts, other formats than safetensors) is left to the learner.

    Raises:
        ConfigError: A target is the name of no layer.
    """
    targets = cfg.ds.lora.target_modules
    if not cfg.ds.lora.rank or targets == [ALL_LINEAR]:
        return
    tensors = tensors_of(model, "actor.model_name_or_path")
    layers = {name.removesuffix(".weight") for name in tensors if name.endswith(".weight")}
    if not layers or any(f".{EXPERTS}." in layer for layer in layers):
        return
    for target in targets:
        if not any(layer == target or layer.endswith(f".{target}") for layer in layers):
            known = {layer.rpartition(".")[2] for layer in layers} - set(NOT_TRAINED)
            raise ConfigError(target_fault(target, sorted(name for name in known if "norm" not in name)))
