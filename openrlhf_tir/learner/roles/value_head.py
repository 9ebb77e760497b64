"""Find out whether a model directory has a value head, from the headers of its weight files.

No torch is needed and no weight is loaded.
"""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import safe_open
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, cached_file


def has_scalar_head(name: str, prefix: str) -> bool:
    """Return True if a model's weights contain PREFIX.weight with one row.

    Args:
        name: Directory or hub name of the model.
        prefix: Name of the head's module.

    Returns:
        False also for a model without safetensors files.
    """
    key = f"{prefix}.weight"
    index = cached_file(name, SAFE_WEIGHTS_INDEX_NAME, _raise_exceptions_for_missing_entries=False)
    if index:
        files = json.loads(Path(index).read_text())["weight_map"]
        path = cached_file(name, files[key]) if key in files else None
    else:
        path = cached_file(name, SAFE_WEIGHTS_NAME, _raise_exceptions_for_missing_entries=False)
    if path is None:
        return False
    with safe_open(path, "np") as weights:
        names = weights.keys()  # safe_open is not a mapping: it has no `in`
        return key in names and weights.get_slice(key).get_shape()[0] == 1
