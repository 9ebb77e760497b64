"""Files of a model that pass for whole without a model in them."""

from __future__ import annotations

import numpy as np
from safetensors.numpy import save


def weights(parameters: int = 500) -> bytes:
    """Return a safetensors file of one half-precision tensor with so many parameters, all of them 0."""
    return save({"lm_head.weight": np.zeros(parameters, np.float16)})
