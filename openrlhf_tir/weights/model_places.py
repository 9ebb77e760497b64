"""Places where a model holds checkpoint tensors, for the read-back (readback.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    LinearBase,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
    UnquantizedLinearMethod,
)
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod, VocabParallelEmbedding

from . import fused_experts
from .fused_experts import ExpertPart
from .packed_columns import PackedColumns, dtype_of

Cut = Callable[[torch.Tensor], torch.Tensor]
Key = tuple[int, str, int | None]
"""A place in a model: module, parameter, and position among the tensors that are fused there. It does not depend on the
names in the checkpoint."""


class Place(NamedTuple):
    """Where one rank of a model holds (a part of) one checkpoint tensor.

    Attributes:
        copy: Identity of the module, and True for its packed copy. A module may hold two copies of a tensor.
        read: Return what the model holds there.
        cut: Return the part of the checkpoint's tensor that belongs there.
        dtype: The dtype that loading converts to.
    """

    copy: tuple[int, bool]
    read: Callable[[], torch.Tensor]
    cut: Cut
    dtype: torch.dtype


def _places_of(
    module: torch.nn.Module, parameter: str, position: int | None, columns: PackedColumns
) -> Iterator[Place]:
    """Yield where `module` holds a checkpoint tensor: the `position`-th of those fused in it, or its only one.

    `columns` reads a packed copy.
    """
    cut: Cut
    rows: slice | None = None
    fused_in_checkpoint = isinstance(module, QKVParallelLinear | MergedColumnParallelLinear) and position is None
    if fused_in_checkpoint and module.tp_size > 1:
        return  # a rank's rows are not contiguous in the checkpoint's tensor
    if isinstance(module, QKVParallelLinear) and position is not None:
        part = ("q", "k", "v")[position]
        size = module._get_shard_size_mapping(part)
        offset = module._get_shard_offset_mapping(part)
        rank = module.tp_rank if part == "q" else module.tp_rank // module.num_kv_head_replicas
        rows = slice(offset, offset + size)
        cut = _rows(rank * size, size)
    elif isinstance(module, MergedColumnParallelLinear) and position is not None:
        sizes = [total // module.tp_size for total in module.output_sizes]
        offset = sum(sizes[:position])
        rows = slice(offset, offset + sizes[position])
        cut = _rows(module.tp_rank * sizes[position], sizes[position])
    elif position is not None:
        return
    elif isinstance(module, ColumnParallelLinear) and not fused_in_checkpoint:
        cut = _rows(module.tp_rank * module.output_size_per_partition, module.output_size_per_partition)
    elif isinstance(module, RowParallelLinear) and parameter == "weight":
        size = module.input_size_per_partition
        begin = module.tp_rank * size
        cut = lambda sent: sent[:, begin : begin + size]  # noqa: E731
    elif isinstance(module, VocabParallelEmbedding):
        shard = module.shard_indices
        count = shard.org_vocab_end_index - shard.org_vocab_start_index
        rows = slice(0, count)
        cut = _rows(shard.org_vocab_start_index, count)
    elif isinstance(module, LinearBase) and not isinstance(
        module, ReplicatedLinear | RowParallelLinear | ColumnParallelLinear
    ):
        return  # a layout that is not known here
    else:
        cut = lambda sent: sent  # noqa: E731
    method = getattr(module, "quant_method", None)
    if isinstance(module, LinearBase) and not isinstance(method, UnquantizedLinearMethod):
        return
    dtype = dtype_of(module, parameter)
    if getattr(module, parameter).numel():
        yield Place((id(module), False), _part(lambda: getattr(module, parameter).detach(), rows), cut, dtype)
    packed = parameter == "weight" and hasattr(module, "cpu_linear")
    if packed and isinstance(method, UnquantizedLinearMethod | UnquantizedEmbeddingMethod):
        read = _part(lambda: columns.weights(module, is_fused=position is not None), rows)
        yield Place((id(module), True), read, _cut_columns(cut, columns.indices(module), dtype), dtype)


def _place_of_experts(part: ExpertPart) -> Place:
    """Return where a model holds some of a layer's experts."""
    held: torch.Tensor = getattr(part.module, part.parameter)
    return Place(
        (id(part.module), False),
        lambda: fused_experts.read(part),
        lambda sent: fused_experts.cut(part, sent),
        held.dtype,
    )


def _cut_columns(cut: Cut, columns: torch.Tensor, dtype: torch.dtype) -> Cut:
    """Return a cut that also selects columns of what `cut` returns.

    A packed layer makes NaN of a whole row with a value that is not finite, whichever columns are read.
    """

    def columns_of(sent: torch.Tensor) -> torch.Tensor:
        part = cut(sent).to(dtype)
        # A sum in the tensor's own dtype takes a tenth of the time of one in float32. If it overflows, rows are looked
        # at, and none is masked.
        if not torch.isfinite(part.sum()):
            part = part.masked_fill(~torch.isfinite(part).all(dim=1, keepdim=True), float("nan"))
        return part.t().index_select(0, columns.to(part.device)).t()  # laid out as the layer's outputs are

    return columns_of


def _rows(begin: int, size: int) -> Cut:
    return lambda sent: sent[begin : begin + size]


def _part(read: Callable[[], torch.Tensor], rows: slice | None) -> Callable[[], torch.Tensor]:
    return read if rows is None else lambda: read()[rows]


def _map_prefixes(mapper: Any, name: str) -> str:
    """Return the checkpoint's name as the model's module tree has it, before projections are fused."""
    from dataclasses import replace

    mapped = replace(mapper, orig_to_new_stacked={})._map_name(name)
    return name if mapped is None else mapped
