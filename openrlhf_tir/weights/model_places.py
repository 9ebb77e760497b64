"""Find where vLLM's model of one worker holds the tensors of a checkpoint, for the read-back (readback.py).

    "model.layers.0.self_attn.q_proj.weight"         a name in the checkpoint
      -> "layers.0.self_attn.q_proj", "weight"       module_name: the prefixes of the model's module tree
      -> qkv_proj, "weight", position 0              locate: the module that holds it, and its position there
      -> rows 0 to 576 of qkv_proj.weight            places: what to read in the model, and which part of the
                                                     checkpoint's tensor belongs there

Nothing here uses the loader that the read-back checks. A place follows from the layers' own sizes and ranks:

    fused             the rows of qkv_proj and gate_up_proj are separated again
    tensor parallel   rows or columns of this rank; key/value heads that several ranks share
    padded            the rows of the vocabulary's padding are left out
    tied              a head that has no tensor of its own must hold the embedding
    experts           those of a mixture are matrices of two tensors (fused_experts.py)
    packed (CPU)      the copy that computes is in oneDNN's own format; some of its columns are read (packed_columns.py)
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple

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
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)

from . import fused_experts
from .fused_experts import ExpertPart
from .packed_columns import PackedColumns, dtype_of

log = logging.getLogger(__name__)
Cut = Callable[[torch.Tensor], torch.Tensor]
"""Returns the part of a checkpoint's tensor that belongs to a place."""
Key = tuple[int, str, int | None]
"""Identity of a location: id of the module, parameter, and position among the tensors that are fused there. It does not
depend on the names in the checkpoint."""


class Copy(NamedTuple):
    """Identity of one copy of a tensor: a module may hold two.

    Attributes:
        module_id: id of the module.
        packed: True for the packed copy, of which only some columns are read.
    """

    module_id: int
    packed: bool


class Place(NamedTuple):
    """Where a model holds (a part of) one checkpoint tensor.

    Attributes:
        copy: Identity of the copy.
        read: Return what the model holds there.
        cut: Return the part of the checkpoint's tensor that belongs there, in the shape of `read`.
        dtype: The dtype that loading converts to.
    """

    copy: Copy
    read: Callable[[], torch.Tensor]
    cut: Cut
    dtype: torch.dtype


class Location(NamedTuple):
    """Where in the module tree a checkpoint tensor is.

    Attributes:
        module: The module.
        parameter: Name of its parameter.
        position: Position among the tensors that are fused in the module; None if the tensor is not one of several.
    """

    module: torch.nn.Module
    parameter: str
    position: int | None


class _Layout(NamedTuple):
    """Where a checkpoint tensor is within its module.

    Attributes:
        rows: Rows of the module's parameter; None: all.
        cut: Return the part of the checkpoint's tensor that belongs to this rank.
    """

    rows: slice | None
    cut: Cut


class ModelPlaces:
    """Finds the places of checkpoint tensors in a model, by their names in the checkpoint.

    Attributes:
        model: The model.
        modules: All modules by path. A module that is used twice has two paths.
        fused: Name of a checkpoint's module -> name of the module in which vLLM fuses it, and its position there.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.modules: dict[str, torch.nn.Module] = dict(model.named_modules(remove_duplicate=False))
        self.fused: dict[str, tuple[str, int]] = {}
        for fused, parts in (getattr(model, "packed_modules_mapping", None) or {}).items():
            for position, part in enumerate(parts):
                if part != fused:
                    self.fused[part] = (fused, position)
        self._module_names: dict[str, str] = {}
        """Names in the checkpoint -> in the module tree, as far as they were asked for."""

    def module_name(self, name: str) -> str:
        """Return the checkpoint's name as the module tree has it, before projections are fused."""
        mapper = getattr(self.model, "hf_to_vllm_mapper", None)
        if mapper is None:
            return name
        mapped = self._module_names.get(name)
        if mapped is None:
            # The mapper may fuse projections as well, which `locate` does itself.
            mapped = dataclasses.replace(mapper, orig_to_new_stacked={})._map_name(name)
            if mapped is None:
                mapped = name  # the mapper would leave the tensor out
            self._module_names[name] = mapped
        return mapped

    def experts(self, name: str) -> ExpertPart | None:
        """Return what a checkpoint tensor is of a layer's experts; None if it is something else."""
        return fused_experts.part_of(self.modules, self.module_name(name))

    def locate(self, name: str) -> Location | None:
        """Return the location of a checkpoint tensor that is not of a layer's experts; None if it has none."""
        path, _, parameter = self.module_name(name).rpartition(".")
        module = self.modules.get(path)
        position: int | None = None
        if module is None:
            fused_path, position = self.fused_module(path)
            module = self.modules.get(fused_path)
        if module is None or not hasattr(module, parameter):
            return None
        return Location(module, parameter, position)

    def fused_module(self, path: str) -> tuple[str, int | None]:
        """Return the path of the module in which `path` is fused, and its position there; `path` if it is in none."""
        parent, _, leaf = path.rpartition(".")
        if leaf not in self.fused:
            return path, None
        fused, position = self.fused[leaf]
        return (f"{parent}.{fused}" if parent else fused), position

    def key(self, name: str) -> Key | None:
        """Return the identity of a checkpoint tensor's location; None if it has none."""
        experts = self.experts(name)
        if experts is not None:
            # One key for all experts of a layer: checkpoint and learner cut them into different tensors.
            return id(experts.module), experts.parameter, None
        location = self.locate(name)
        return None if location is None else (id(location.module), location.parameter, location.position)

    def places(self, name: str, columns: PackedColumns) -> list[Place]:
        """Return every place that a checkpoint tensor goes to; empty if none is known here.

        Args:
            name: Name of the tensor in the checkpoint.
            columns: Reads packed copies.
        """
        experts = self.experts(name)
        if experts is not None:
            return [_place_of_experts(experts)] if fused_experts.is_readable(experts.module) else []
        location = self.locate(name)
        if location is None:
            return []
        try:
            places = list(_places_at(location, columns))
            if places:
                for head in self._heads_tied_to(location.module):
                    places += _places_at(Location(head, location.parameter, None), columns)
        except Exception as error:  # a layer whose structure is not known here
            log.debug("%s cannot be placed: %s", name, error)
            return []
        return places

    def shares_embedding(self, head: ParallelLMHead) -> bool:
        """Return True if a head has no tensor of its own in the checkpoint."""
        return self._ties_embeddings() or any(
            module is not head and isinstance(module, VocabParallelEmbedding) and module.weight is head.weight
            for module in self.modules.values()
        )

    def _heads_tied_to(self, module: torch.nn.Module) -> list[torch.nn.Module]:
        is_embedding = isinstance(module, VocabParallelEmbedding) and not isinstance(module, ParallelLMHead)
        head = getattr(self.model, "lm_head", None)
        if is_embedding and isinstance(head, ParallelLMHead) and self._ties_embeddings():
            return [head]
        return []

    def _ties_embeddings(self) -> bool:
        config = getattr(self.model, "config", None)
        text_config = getattr(config, "get_text_config", lambda: config)()
        return any(bool(getattr(part, "tie_word_embeddings", False)) for part in (config, text_config))


def _places_at(location: Location, columns: PackedColumns) -> Iterator[Place]:
    """Yield the copies that a module has of a checkpoint tensor; none if its layout is not known here."""
    module, parameter, position = location
    method = getattr(module, "quant_method", None)
    if isinstance(module, LinearBase) and not isinstance(method, UnquantizedLinearMethod):
        return
    layout = _layout(location)
    if layout is None:
        return
    rows, cut = layout
    dtype = dtype_of(module, parameter)
    # Packing empties a weight.
    if getattr(module, parameter).numel():
        read = _read_rows(lambda: getattr(module, parameter).detach(), rows)
        yield Place(Copy(id(module), packed=False), read, cut, dtype)
    is_packed = parameter == "weight" and hasattr(module, "cpu_linear")
    if is_packed and isinstance(method, UnquantizedLinearMethod | UnquantizedEmbeddingMethod):
        read = _read_rows(lambda: columns.weights(module, is_fused=position is not None), rows)
        cut_columns = _with_columns(cut, columns.indices(module), dtype)
        yield Place(Copy(id(module), packed=True), read, cut_columns, dtype)


def _layout(location: Location) -> _Layout | None:
    """Return where a checkpoint tensor is within its module; None if the layout is not known here."""
    module, parameter, position = location
    if isinstance(module, QKVParallelLinear | MergedColumnParallelLinear):
        if position is not None:
            return _layout_of_part(module, position)
        # The checkpoint has fused the tensors as well. With tensor parallelism a rank's rows are not contiguous there.
        return _Layout(None, _whole) if module.tp_size <= 1 else None
    if position is not None:
        return None
    if isinstance(module, ColumnParallelLinear):
        size = module.output_size_per_partition
        return _Layout(None, _rows(module.tp_rank * size, size))
    if isinstance(module, RowParallelLinear) and parameter == "weight":
        size = module.input_size_per_partition
        begin = module.tp_rank * size
        return _Layout(None, lambda sent: sent[:, begin : begin + size])
    if isinstance(module, VocabParallelEmbedding):
        shard = module.shard_indices
        size = shard.org_vocab_end_index - shard.org_vocab_start_index
        return _Layout(slice(0, size), _rows(shard.org_vocab_start_index, size))
    if isinstance(module, LinearBase) and not isinstance(module, ReplicatedLinear | RowParallelLinear):
        return None
    return _Layout(None, _whole)


def _layout_of_part(module: QKVParallelLinear | MergedColumnParallelLinear, position: int) -> _Layout:
    """Return the layout of one of the tensors that are fused in a module."""
    if isinstance(module, QKVParallelLinear):
        part = ("q", "k", "v")[position]
        size = module._get_shard_size_mapping(part)
        offset = module._get_shard_offset_mapping(part)
        # With fewer key/value heads than ranks, several ranks hold the same one.
        rank = module.tp_rank if part == "q" else module.tp_rank // module.num_kv_head_replicas
    else:
        sizes = [total // module.tp_size for total in module.output_sizes]
        size = sizes[position]
        offset = sum(sizes[:position])
        rank = module.tp_rank
    return _Layout(slice(offset, offset + size), _rows(rank * size, size))


def _place_of_experts(part: ExpertPart) -> Place:
    """Return where a model holds some of a layer's experts."""
    held: torch.Tensor = getattr(part.module, part.parameter)
    return Place(
        Copy(id(part.module), packed=False),
        lambda: fused_experts.read(part),
        lambda sent: fused_experts.cut(part, sent),
        held.dtype,
    )


def _whole(sent: torch.Tensor) -> torch.Tensor:
    return sent


def _rows(begin: int, size: int) -> Cut:
    return lambda sent: sent[begin : begin + size]


def _read_rows(read: Callable[[], torch.Tensor], rows: slice | None) -> Callable[[], torch.Tensor]:
    return read if rows is None else lambda: read()[rows]


def _with_columns(cut: Cut, columns: torch.Tensor, dtype: torch.dtype) -> Cut:
    """Return a cut that also selects columns of what `cut` returns, as a packed layer of `dtype` shows them.

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
