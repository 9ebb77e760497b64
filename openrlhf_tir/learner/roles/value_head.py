"""Value head: whether a model directory holds a head of one number, read from the headers of its weight files. No
torch, nothing is loaded."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import safe_open
from transformers.utils import cached_file

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"


def has_scalar_head(name: str, prefix: str) -> bool:
    """Whether PREFIX.weight is among the weights of directory or hub name `name`, of one row. False where there are no
    safetensors to ask."""
    key = f"{prefix}.weight"
    index = cached_file(name, INDEX, _raise_exceptions_for_missing_entries=False)
    if index:
        files = json.loads(Path(index).read_text())["weight_map"]
        path = cached_file(name, files[key]) if key in files else None
    else:
        path = cached_file(name, SINGLE, _raise_exceptions_for_missing_entries=False)
    if path is None:
        return False
    with safe_open(path, "np") as weights:
        return key in weights.keys() and weights.get_slice(key).get_shape()[0] == 1  # noqa: SIM118  it is no mapping
