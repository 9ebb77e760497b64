"""The number of a model's parameters before it is loaded: from the headers of its files, or from its config.json.

A name on the hub is looked up in the cache first; then its config.json (a kilobyte) is fetched. Nothing heavy is
loaded. An unknown size is None, not an error.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from ..config import Config
from ..config.paths import can_only_be_path, local_path, query_path
from ..config.sections.conditions import estimator_of
from ..errors import ConfigError

OPTIMISER_BYTES = 12
"""Bytes per parameter in a checkpoint for Adam's two moments and the master weights, in fp32. Measured: 12.7 for a
whole checkpoint of 167,040 parameters."""
AVERAGE_BYTES = 4
"""Bytes per parameter in a checkpoint for the average of the weights, fp32 (train.ema_beta)."""
WEIGHT_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
"""Bytes per parameter of the weights, by ds.param_dtype: in a push, in a checkpoint with ZeRO-2 (ZeRO-3 restores them
from the master weights), and of the weights that LoRA does not train."""
_EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Names of the number of experts in configurations."""
_CHOSEN_COUNTS = ("num_experts_per_tok", "experts_per_token", "top_k_experts", "moe_topk", "moe_top_k", "moe_k")
"""Names of the number of experts that a token is sent to."""
_SHARED_COUNTS = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
"""Names of the number of experts that every token is sent to, beside the chosen ones."""
_SHARED_SIZES = ("shared_expert_intermediate_size", "shared_intermediate_size")
"""Names of the inner size of all shared experts together."""
_DENSE_LAYERS = ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index")
"""Names of the number of layers at the beginning that have no experts."""
INCOMPLETE = (KeyError, TypeError, ValueError, AttributeError, ArithmeticError)
"""Errors of reading a config.json that is incomplete or damaged; ArithmeticError is of an infinity, or of no heads."""
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
    """Return the size of one checkpoint of all ranks in bytes; 0 if it is not known. A critic counts as the policy.

    Raises:
        ConfigError: The user's own estimator, which says whether there is a critic, cannot be loaded.
    """
    weights = WEIGHT_BYTES[cfg.ds.param_dtype]
    trained_model = OPTIMISER_BYTES + (weights if cfg.ds.zero_stage < 3 else 0)
    policy = trained_model + AVERAGE_BYTES * (cfg.train.ema_beta is not None)
    if cfg.ds.lora.rank > 0:
        policy = weights  # LoRA's own weights and states are a hundredth of that
    critic = trained_model if estimator_of(cfg).critic else 0
    return (parameters(cfg.actor.model_name_or_path) or 0) * (policy + critic)


def parameters(model: str) -> int | None:
    """Return the number of a model's parameters; None if it is not known.

    Args:
        model: A directory, or a name on the hub.
    """
    directory = model_directory(model)
    from_files = _in_files(directory) if directory else None
    return from_files or of_config(config_json(model))


@dataclass(frozen=True)
class Sizes:
    """Sizes of a decoder's layers.

    Attributes:
        hidden: Hidden size.
        layers: Number of layers.
        heads: Attention heads.
        keys: Heads of keys and values.
        head_dim: Size of a head.
    """

    hidden: int
    layers: int
    heads: int
    keys: int
    head_dim: int


def sizes_of(text: Mapping[str, Any]) -> Sizes:
    """Return the sizes in the part of a config.json that `text_config` returns. Raises one of INCOMPLETE."""
    hidden, layers, heads = (int(text[key]) for key in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
    keys = int(text.get("num_key_value_heads") or heads)
    return Sizes(hidden, layers, heads, keys, int(text.get("head_dim") or hidden // heads))


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a config.json that describes the decoder."""
    return config.get("text_config") or config


@dataclass(frozen=True)
class Experts:
    """A decoder's experts, as its config.json has them.

    Attributes:
        count: Experts of a layer among which its router chooses.
        chosen: Experts that a token is sent to; 0 if the configuration does not tell.
        inner: Inner size of one expert.
        shared: Inner size of all experts together that every token is sent to.
        layers: Layers that have experts.
        dense_inner: Inner size of the MLP of the other layers.
    """

    count: int
    chosen: int
    inner: int
    shared: int
    layers: int
    dense_inner: int

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Experts | None:
        """Return the experts of a model; None if it has none. Raises one of INCOMPLETE."""
        text = text_config(config)
        count = _first(text, _EXPERT_COUNTS)
        if not count:
            return None
        # Llama 4's `intermediate_size` is an expert's; its dense layers have a size of their own.
        dense_inner = int(text.get("intermediate_size_mlp") or text.get("intermediate_size") or 0)
        inner = _first(text, ("moe_intermediate_size",)) or int(text["intermediate_size"])
        shared = _first(text, _SHARED_SIZES) or inner * _first(text, _SHARED_COUNTS)
        if "intermediate_size_mlp" in text:
            shared = inner
        return cls(count, _first(text, _CHOSEN_COUNTS), inner, shared, _layers_with_experts(text), dense_inner)


def _first(text: Mapping[str, Any], names: Sequence[str]) -> int:
    """Return the first number that the configuration has under one of these names; 0 if there is none.

    Some models have a number for each layer. The largest counts.
    """
    value = next((text[name] for name in names if text.get(name)), 0)
    return max(map(int, value)) if isinstance(value, list) else int(value)


def _layers_with_experts(text: Mapping[str, Any]) -> int:
    """Return how many layers of a mixture have experts. The names are those of several families."""
    layers = range(int(text["num_hidden_layers"]))
    kinds = text.get("mlp_layer_types")
    if isinstance(kinds, list):
        return sum(kind != "dense" for kind in kinds)
    frequency = text.get("moe_layer_freq")
    if isinstance(frequency, list):
        return sum(map(bool, frequency))
    chosen = text.get("moe_layers")
    if isinstance(chosen, list):
        return len(chosen)
    step = _first(text, ("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval")) or 1
    dense = set(text.get("mlp_only_layers") or ()) | set(range(_first(text, _DENSE_LAYERS)))
    return sum(layer not in dense and (layer + 1) % step == 0 for layer in layers)


def active_parameters(config: Mapping[str, Any]) -> int | None:
    """Return the parameters with which a token is computed; None if config.json is incomplete.

    Experts that the token is not sent to are left out, and so is the embedding of the input where it is not the head
    as well: it is a table that is looked up.
    """
    try:
        experts = Experts.of(config)
        count = of_config(config, experts=experts.chosen if experts and experts.chosen else None)
    except INCOMPLETE:
        return None
    if count is None:
        return None
    text = text_config(config)
    return count - (0 if _is_tied(config) else int(text["vocab_size"]) * int(text["hidden_size"]))


def _is_tied(config: Mapping[str, Any]) -> bool:
    """Return True if the head has no matrix of its own."""
    return text_config(config).get("tie_word_embeddings", config.get("tie_word_embeddings", False)) is True


@functools.cache
def attention_parity(model: str) -> float:
    """Return the sequence length at which attention takes as many operations as the model's matrices.

    It is infinite if it is not known. For a sequence of L tokens, forward:

        matrices 2 P L, causal attention 2 layers (a d) L^2 operations;  parity = P / (layers a d)

    P: parameters with which a token is computed (`active_parameters`).
    """
    config = config_json(model)
    active = active_parameters(config)
    if active is None:
        return math.inf
    sizes = sizes_of(text_config(config))
    return active / (sizes.layers * sizes.heads * sizes.head_dim)


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
        return path if name and query_path(path, Path.is_dir, "actor.model_name_or_path") else None
    except ConfigError:
        return None


@functools.cache
def _on_hub(name: str) -> Path | None:
    """Return the directory in the hub's cache that holds the model's config.json; None if it cannot be had."""
    if not name or can_only_be_path(name):
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


def of_config(config: Mapping[str, Any], *, experts: int | None = None) -> int | None:
    """Return the parameters of a decoder with gated MLPs, dense or with experts; None if config.json is incomplete.

        attention     h (a d) + 2 h (k d) + (a d) h
        dense layer   attention + 3 h i
        expert layer  attention + 3 h (i e + s) + h e
        model         layers + V h (twice, unless tied)

    h: hidden size, a: heads of size d, k: heads of keys, i: inner size of the MLP or of an expert, e: experts, s: inner
    size of the shared experts, V: vocabulary. Biases and norms, less than a thousandth, are left out. `_latent` has the
    attention of models with `kv_lora_rank` (DeepSeek).

    Args:
        config: The content of config.json.
        experts: Count this many experts in place of all.
    """
    text = text_config(config)
    try:
        h, layers, heads, keys, d = astuple(sizes_of(text))
        vocabulary = int(text["vocab_size"])
        attention = _latent(text, h, heads) if text.get("kv_lora_rank") else 2 * h * heads * d + 2 * h * keys * d
        mixture = Experts.of(config)
        if mixture is None:
            mlps = layers * 3 * h * int(text["intermediate_size"])
        else:
            count = mixture.count if experts is None else experts
            with_experts = 3 * h * (mixture.inner * count + mixture.shared) + h * count
            mlps = mixture.layers * with_experts + (layers - mixture.layers) * 3 * h * mixture.dense_inner
    except INCOMPLETE:
        return None
    total = layers * attention + mlps + vocabulary * h * (1 if _is_tied(config) else 2)
    return total if total > 0 else None


def _latent(text: Mapping[str, Any], h: int, heads: int) -> int:
    """Return the parameters of one layer's latent attention (MLA).

    Queries come from `q_lora_rank` values if there is such a rank, keys and values from `kv_lora_rank` values and the
    part of a key that has the position.
    """
    rope, plain, value = (int(text[name]) for name in ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"))
    rank = int(text["kv_lora_rank"])
    q_rank = int(text.get("q_lora_rank") or 0)
    queries = q_rank * (h + heads * (plain + rope)) if q_rank else h * heads * (plain + rope)
    return queries + h * (rank + rope) + rank * heads * (plain + value) + heads * value * h
