"""Embed texts by a model in sentence-transformers' layout, with transformers and torch alone.

    modules.json                        Transformer -> Pooling -> Normalize; without it: the model with mean pooling, as
                                        in sentence-transformers
    1_Pooling/config.json               mean, cls, max or lasttoken
    sentence_bert_config.json           max_seq_length, do_lower_case
    config_sentence_transformers.json   prompts: the prefix of a query, and of a document or passage

Embeddings have length 1. A model with another module, such as Dense, is refused: its embeddings would differ.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from openrlhf_tir.errors import ConfigError

BATCH = 32
"""Texts of one forward pass."""
MODULES = "Transformer", "Pooling", "Normalize"
POOLINGS = "mean", "cls", "max", "lasttoken"
_OLD_NAMES = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Poolings by their names in older configuration files."""


class Encoder:
    """A model that embeds texts."""

    def __init__(self, model: str) -> None:
        """Load a model.

        Args:
            model: A directory, or a name on the hub.

        Raises:
            ConfigError: The model cannot be loaded or used.
        """
        try:
            import torch
            from transformers import AutoModel, AutoTokenizer
        except ImportError as e:
            raise ConfigError(
                f"--dense {model} needs torch and transformers ({e})."
                " `pip install transformers torch`, or leave --dense out for BM25."
            ) from e
        self._name = model
        self._torch = torch
        self._lock = threading.Lock()
        modules = {module["type"].rsplit(".", 1)[-1]: module["path"] for module in self._read("modules.json") or []}
        if other := [kind for kind in modules if kind not in MODULES]:
            raise ConfigError(
                f"--dense {model} has a module {other[0]!r}; supported are {', '.join(MODULES)}."
                " Choose a model that has only these."
            )
        subfolder = modules.get("Transformer", "")
        settings: dict[str, Any] = self._read(_below(subfolder, "sentence_bert_config.json")) or {}
        self._pooling = self._pooling_of(modules.get("Pooling"))
        self._lower = bool(settings.get("do_lower_case"))
        self.prompts: dict[str, str] = (self._read("config_sentence_transformers.json") or {}).get("prompts") or {}
        """Prefix of a text, by "query", "document" or "passage"; empty if the model has none."""
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(model, subfolder=subfolder)
            self._model = AutoModel.from_pretrained(model, subfolder=subfolder).eval()
        except (OSError, ValueError) as e:
            raise ConfigError(
                f"--dense {model} cannot be loaded: {str(e).splitlines()[0]} Give a directory, or a name on the hub"
                " that is in its cache."
            ) from e
        limits = (
            settings.get("max_seq_length"),
            self._tokenizer.model_max_length,
            getattr(self._model.config, "max_position_embeddings", None),
        )
        self._max_tokens = min(limit for limit in limits if limit is not None)

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return the embeddings of texts, [N, D] float32. May be called from several threads."""
        # By length, because a batch is padded to its longest text.
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        parts: list[np.ndarray] = []
        with self._lock, self._torch.inference_mode():  # only one thread at a time may use a tokenizer
            for start in range(0, len(order), BATCH):
                parts.append(self._forward([texts[i] for i in order[start : start + BATCH]]))
        encoded_ND = np.empty((len(texts), parts[0].shape[1] if parts else 0), np.float32)
        if parts:
            encoded_ND[order] = np.concatenate(parts)
        return encoded_ND

    def _forward(self, texts: list[str]) -> np.ndarray:
        texts = [text.strip().lower() if self._lower else text.strip() for text in texts]
        batch = self._tokenizer(texts, padding=True, truncation=True, max_length=self._max_tokens, return_tensors="pt")
        hidden_NTD = self._model(**batch).last_hidden_state.float()
        pooled_ND = _pooled(self._torch, self._pooling, hidden_NTD, batch["attention_mask"])
        return self._torch.nn.functional.normalize(pooled_ND, dim=-1).numpy()

    def _pooling_of(self, path: str | None) -> str:
        """Return the pooling that the model's configuration names. Raises ConfigError."""
        config: dict[str, Any] = (self._read(_below(path, "config.json")) if path else None) or {}
        modes = (
            [config["pooling_mode"]]
            if "pooling_mode" in config
            else [mode for name, mode in _OLD_NAMES.items() if config.get(name)]
        )
        unknown = [
            name for name, on in config.items() if name.startswith("pooling_mode_") and on and name not in _OLD_NAMES
        ]
        if path and (unknown or len(modes) != 1 or modes[0] not in POOLINGS):
            raise ConfigError(
                f"--dense {self._name} pools by {unknown or modes}; supported is one of {', '.join(POOLINGS)}."
                " Choose another model."
            )
        return modes[0] if modes else "mean"

    def _read(self, name: str) -> Any:
        """Return a JSON file of the model; None if it has none. Raises ConfigError."""
        from transformers.utils import cached_file

        try:
            path = cached_file(
                self._name,
                name,
                _raise_exceptions_for_missing_entries=False,
                _raise_exceptions_for_connection_errors=False,
            )
            return json.loads(Path(path).read_text()) if path else None
        except (OSError, ValueError) as e:
            raise ConfigError(f"--dense {self._name}: {name} cannot be read: {str(e).splitlines()[0]}") from e


def _below(directory: str, name: str) -> str:
    return f"{directory}/{name}" if directory else name


def _pooled(torch: Any, pooling: str, hidden_NTD: Any, mask_NT: Any) -> Any:
    """Return one vector for each text, [N, D], from the hidden states of its tokens. Padding does not count."""
    mask_NT1 = mask_NT.unsqueeze(-1).to(hidden_NTD.dtype)
    if pooling == "mean":
        return (hidden_NTD * mask_NT1).sum(1) / mask_NT1.sum(1).clamp(min=1e-9)
    if pooling == "max":
        return hidden_NTD.masked_fill(mask_NT1 == 0, -torch.inf).max(1).values
    positions_NT = torch.arange(mask_NT.shape[1]).expand_as(mask_NT)
    at_N = positions_NT.masked_fill(mask_NT == 0, mask_NT.shape[1] if pooling == "cls" else -1)
    at_N = at_N.min(1).values if pooling == "cls" else at_N.max(1).values
    return hidden_NTD[torch.arange(len(at_N)), at_N]
