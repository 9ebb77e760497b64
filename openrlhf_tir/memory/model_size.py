"""The number of a model's parameters before it is loaded: from the headers of its files, or from its config.json.

A name on the hub is looked up in the cache first; then its config.json (a kilobyte) is fetched. Nothing heavy is loaded
and nothing is raised: an unknown size is None.
"""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import Any

from ..config import Config
from ..config.paths import asked, local_path
from ..errors import ConfigError

OPTIMISER_BYTES = 12
"""Bytes per parameter in a checkpoint for Adam's two moments and the master weights, in fp32. Measured: 12.7 for a
whole checkpoint of 167,040 parameters."""
AVERAGE_BYTES = 4
"""Bytes per parameter in a checkpoint for the average of the weights, fp32 (train.enable_ema)."""
WEIGHT_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
"""Bytes per parameter of the weights, by ds.param_dtype: in a push, in a checkpoint with ZeRO-2 (ZeRO-3 restores them
from the master weights), and of the weights that LoRA does not train."""
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Names of the number of experts in configurations."""
HUB_S = 5.0
"""Deadline of the hub's answer for a file of a kilobyte, in seconds. If it passes, the size is unknown, and the run
pushes its weights as on a small /dev/shm."""


def push_bytes(cfg: Config) -> int | None:
    """Return the size of one pushed file of weights in bytes; None if it is not known."""
    count = parameters(cfg.actor.model_name_or_path)
    if count:
        return count * WEIGHT_BYTES[cfg.ds.param_dtype]
    directory = model_directory(cfg.actor.model_name_or_path)
    if directory is None:
        return None
    return sum(file.stat().st_size for file in directory.glob("*.safetensors")) or None


def checkpoint_bytes(cfg: Config) -> int:
    """Return the size of one checkpoint of all ranks in bytes; 0 if it is not known. A critic counts as the policy."""
    weights = WEIGHT_BYTES[cfg.ds.param_dtype]
    trained_model = OPTIMISER_BYTES + (weights if cfg.ds.zero_stage < 3 else 0)
    policy = trained_model + AVERAGE_BYTES * cfg.train.enable_ema
    if cfg.ds.lora.rank > 0:
        policy = weights  # LoRA's own weights and states are a hundredth of that
    critic = trained_model if cfg.algo.advantage.estimator == "gae" else 0
    return (parameters(cfg.actor.model_name_or_path) or 0) * (policy + critic)


def parameters(model: str) -> int | None:
    """Return the number of a model's parameters; None if it is not known.

    Args:
        model: A directory, or a name on the hub.
    """
    directory = model_directory(model)
    from_files = _in_files(directory) if directory else None
    return from_files or of_config(config_json(model))


@functools.cache
def attention_parity(model: str) -> float:
    """Return the sequence length at which attention takes as many operations as the model's matrices.

    It is infinite if it is not known. For a sequence of L tokens, forward:

        matrices 2 P L, causal attention 2 layers (a d) L^2 operations;  parity = P / (layers a d)

    P: parameters that a token meets, without the embeddings of the input and the experts that it is not sent to.
    """
    config = config_json(model)
    text = config.get("text_config") or config
    chosen = {
        name: text["num_experts_per_tok"] for name in EXPERTS if text.get(name) and text.get("num_experts_per_tok")
    }
    n = of_config({**config, **text, "text_config": None, **chosen})
    if n is None:
        return math.inf
    h, layers, heads, vocabulary = (
        int(text[key]) for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    )
    tied = text.get("tie_word_embeddings", config.get("tie_word_embeddings", False)) is True
    return (n - (0 if tied else vocabulary * h)) / (layers * heads * int(text.get("head_dim") or h // heads))


def config_json(model: str) -> dict[str, Any]:
    """Return the content of a model's config.json; {} if it cannot be read."""
    directory = model_directory(model) or _on_hub(model)
    return _json(directory / "config.json") if directory else {}


def model_directory(name: str) -> Path | None:
    """Return the directory that a model's name means; None for a name on the hub, and for text that cannot be a path.

    The check of the model reports the latter.
    """
    try:
        path = local_path(name, "actor.model_name_or_path")
        return path if name and asked(path, Path.is_dir, "actor.model_name_or_path") else None
    except ConfigError:
        return None


@functools.cache
def _on_hub(name: str) -> Path | None:
    """Return the directory in the hub's cache that holds the model's config.json; None if it cannot be had."""
    if not name or name.startswith(("/", ".", "~")) or name.count("/") > 1:
        return None
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache

    try:
        found = try_to_load_from_cache(name, "config.json")
        if not isinstance(found, str):
            # One request. The download itself would retry for half a minute if the hub does not answer.
            get_hf_file_metadata(hf_hub_url(name, "config.json"), timeout=HUB_S)
            found = hf_hub_download(name, "config.json", etag_timeout=HUB_S)
        return Path(found).parent
    except Exception:
        # Errors of HTTP libraries, of the hub and of the cache. The code that loads the model reports them.
        return None


def _in_files(directory: Path) -> int | None:
    """Return the parameters in all safetensors files; None if there are none, or not all that the index names."""
    files = {file.name for file in directory.glob("*.safetensors")}
    index = _json(directory / "model.safetensors.index.json").get("weight_map", {})
    if not files or not (isinstance(index, dict) and files >= set(index.values())):
        return None
    return sum(_parameters(directory / file) for file in files) or None


def _parameters(file: Path) -> int:
    """Return the parameters in one file; 0 if it is not a safetensors file, which the loading of the model reports."""
    try:
        with file.open("rb") as f:
            header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, MemoryError, RecursionError):
        return 0


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def of_config(config: dict[str, Any]) -> int | None:
    """Return the parameters of a decoder with gated MLPs, dense or with experts; None if config.json is incomplete.

        layer = h (a d) + 2 h (k d) + (a d) h + 3 h i e + h e
        model = layers * layer + V h (twice, unless tied)

    h: hidden size, a: heads of size d, k: heads of keys, i: inner size of the MLP, e: experts, V: vocabulary. Biases
    and norms, less than a thousandth, are left out.
    """
    text = config.get("text_config") or config
    try:
        h, layers, heads, vocabulary = (
            int(text[key]) for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
        )
        keys, d = int(text.get("num_key_value_heads") or heads), int(text.get("head_dim") or h // heads)
        experts = next((int(text[key]) for key in EXPERTS if text.get(key)), 0)
        if experts:
            inner = int(text.get("moe_intermediate_size") or text["intermediate_size"])
            shared = int(text.get("shared_expert_intermediate_size") or inner * int(text.get("n_shared_experts") or 0))
            mlp = 3 * h * (inner * experts + shared) + h * experts
        else:
            mlp = 3 * h * int(text["intermediate_size"])
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError):  # the last: infinity, or no heads
        return None
    tied = text.get("tie_word_embeddings", config.get("tie_word_embeddings", False))
    total = layers * (2 * h * heads * d + 2 * h * keys * d + mlp) + vocabulary * h * (1 if tied is True else 2)
    return total if total > 0 else None
