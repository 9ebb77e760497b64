"""Model size: how many parameters a model has, before it is loaded: from the headers of its files, else from its
config.json.

A name on the hub is looked up in the cache first, then its config.json (a kilobyte) is fetched. Loads nothing heavy;
raises nothing."""

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
"""Bytes per parameter in a checkpoint for Adam's two moments and the master weights, fp32 (measured: 12.7 for 167,040
parameters, with all that is beside)."""
AVERAGE_BYTES = 4
"""Bytes per parameter in a checkpoint for the average of the weights, fp32 (train.enable_ema)."""
WEIGHT_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
"""Bytes per parameter of the weights, by ds.param_dtype: in a push; besides in a checkpoint with ZeRO-2 (ZeRO-3
restores them from the master weights), and in what LoRA leaves as it is."""
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""What configurations call their number."""
HUB_S = 5.0
"""Deadline of the hub's answer for a file of a kilobyte; without one the size is not known, and the run is as if on a
small /dev/shm."""


def push_bytes(cfg: Config) -> int | None:
    """The size of one pushed file of weights; None if it is not known."""
    n = parameters(cfg.actor.model_name_or_path)
    if n:
        return n * WEIGHT_BYTES[cfg.ds.param_dtype]
    directory = model_directory(cfg.actor.model_name_or_path)
    return (sum(f.stat().st_size for f in directory.glob("*.safetensors")) if directory else 0) or None


def checkpoint_bytes(cfg: Config) -> int:
    """The size of one checkpoint of all ranks, a critic's part counted as the policy's; 0 if it is not known."""
    weights, lora = WEIGHT_BYTES[cfg.ds.param_dtype], cfg.ds.lora.rank > 0
    whole = OPTIMISER_BYTES + (weights if cfg.ds.zero_stage < 3 else 0)
    policy = weights if lora else whole + AVERAGE_BYTES * cfg.train.enable_ema  # LoRA's own are a hundredth: left out
    each = policy + whole * (cfg.algo.advantage.estimator == "gae")
    return (parameters(cfg.actor.model_name_or_path) or 0) * each


def parameters(model: str) -> int | None:
    """How many parameters a model has, a directory or a name on the hub; None if it is not known."""
    directory = model_directory(model)
    return (_in_files(directory) if directory else None) or of_config(config_json(model))


@functools.cache
def attention_parity(model: str) -> float:
    """How many tokens a sequence has whose attention takes as many operations as the model's matrices; infinite if that
    is not known.

        matrices 2 P L, causal attention 2 layers (a d) L^2    operations forward;  parity = P / (layers a d)

    P: parameters that a token meets, without the input's embeddings and the experts that it is not sent to.
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
    """What config.json says of a model, a directory or a name on the hub; {} if it is not to be had."""
    directory = model_directory(model) or _on_hub(model)
    return _json(directory / "config.json") if directory else {}


def model_directory(name: str) -> Path | None:
    """None for a name on the hub, and for what no path can be: whoever checks the model says so."""
    try:
        path = local_path(name, "actor.model_name_or_path")
        return path if name and asked(path, Path.is_dir, "actor.model_name_or_path") else None
    except ConfigError:
        return None


@functools.cache
def _on_hub(name: str) -> Path | None:
    """Where its config.json lies in the cache, beside what else of it is there."""
    if not name or name.startswith(("/", ".", "~")) or name.count("/") > 1:
        return None
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache

    try:
        found = try_to_load_from_cache(name, "config.json")
        if not isinstance(found, str):
            # asks once; the download would ask a hub that is away for half a minute
            get_hf_file_metadata(hf_hub_url(name, "config.json"), timeout=HUB_S)
            found = hf_hub_download(name, "config.json", etag_timeout=HUB_S)
        return Path(found).parent
    except Exception:
        # HTTP libraries', the hub's and the cache's own: the size is not known, and whoever loads the model says why
        return None


def _in_files(directory: Path) -> int | None:
    """From the headers of all its safetensors files; None where there is none, or not all that the index names."""
    files = {f.name for f in directory.glob("*.safetensors")}
    index = _json(directory / "model.safetensors.index.json").get("weight_map", {})
    if not files or not (isinstance(index, dict) and files >= set(index.values())):
        return None
    return sum(_parameters(directory / file) for file in files) or None


def _parameters(file: Path) -> int:
    """0 for a file that is no safetensors file: whoever loads the model says so."""
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
    """The parameters of a decoder with gated MLPs, dense or of experts; biases and norms are left out (less than a
    thousandth).

        layer = h (a d) + 2 h (k d) + (a d) h + 3 h i e + h e
        model = layers * layer + V h (twice, unless tied)

    h hidden size, a heads of size d, k heads of keys, i MLP, e experts, V vocabulary.

    None when the file does not say enough.
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
