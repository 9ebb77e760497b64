"""Read the linear layers that vLLM packs into oneDNN's format on a CPU, some columns of each in every comparison.

vLLM empties the `weight` of such a layer. The layer is applied to rows of the identity matrix instead: each output is
one weight times 1 plus zeros, which is exact in every precision.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

STRIDE = 8
"""A push reads back one of STRIDE neighbouring columns of a packed layer. What loading can confuse (a layer, a rank's
part, a head, one of several fused tensors) is rows, or many neighbouring columns."""


class PackedColumns:
    """Reads the packed layers in one comparison, all at the columns of that comparison.

    Tensors that are fused in one layer are read by one matrix product. A later comparison must not see it: it has a
    reader of its own.
    """

    def __init__(self, compared: int) -> None:
        """`compared`: number of earlier comparisons, which selects the columns."""
        self._compared = compared
        self._units: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        """The unit vectors by width and dtype."""
        self._last: tuple[Any, torch.Tensor] | None = None
        """The fused layer that was read last, and its columns."""

    def indices(self, module: Any) -> torch.Tensor:
        """Return the columns of this comparison, in order."""
        return _columns(_width(module), self._compared)

    def weights(self, module: Any, *, is_fused: bool) -> torch.Tensor:
        """Return these columns of the weight [out, in] with which a layer computes: its outputs for unit vectors."""
        if self._last is not None and self._last[0] is module:
            return self._last[1]
        width = _width(module)
        dtype = dtype_of(module, "weight")
        units = self._units.get((width, dtype))
        if units is None:
            units = self._units[width, dtype] = torch.eye(width, dtype=dtype)[self.indices(module)]
        held: torch.Tensor = module.quant_method.apply(module, units, None).t()
        if is_fused:
            self._last = module, held
        return held


def _columns(width: int, compared: int) -> torch.Tensor:
    """Return the columns of a packed layer that are read in the comparison after `compared` others, in order.

    Their place in their block changes from block to block: an update that changes, say, even columns only is seen.
    """
    stride = min(STRIDE, width)
    blocks = torch.arange(-(-width // stride))
    columns = stride * blocks + (compared + 5 * blocks) % stride
    return columns[columns < width]


def _width(module: Any) -> int:
    return int(module.embedding_dim if isinstance(module, VocabParallelEmbedding) else module.input_size_per_partition)


def dtype_of(module: torch.nn.Module, parameter: str) -> torch.dtype:
    """Return the dtype that a parameter has when it is not emptied: an emptied one is float32 whatever it was."""
    dtype = getattr(module, "params_dtype", None) if parameter == "weight" else None
    return dtype or getattr(module, parameter).dtype
