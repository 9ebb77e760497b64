"""Read-back: the exact proof of what a worker's model holds after a push. No threshold, no log-probs.

    sent tensor "…q_proj.weight"  ──> cut for this rank ──┐
                                                          ├── equal, element by element, or the tensor is named
    model's "…qkv_proj.weight"    ──> its rows of q ──────┘

The read-back does not use the loader that it checks: it finds the place of each checkpoint tensor from the layers' own
sizes and ranks. It undoes what loading does to a tensor:

    fused             rows of qkv_proj and gate_up_proj are told apart again
    tensor parallel   rows or columns of this rank; key/value heads that several ranks share
    padded            the rows of the vocabulary's padding are left out
    tied              a head that has no tensor of its own must hold the embedding
    packed (CPU)      vLLM packs a linear layer into oneDNN's own format and empties `weight`. The layer is then applied
                      to the identity matrix: each output is one weight times 1 plus zeros, which is exact in every
                      precision. So the packed copy that computes is what is compared, not an intermediate.

What it cannot place (quantised layers, fused experts) is counted as unread and left to the log-probs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
import xxhash
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

from ..types import ReadBackReport

Cut = Callable[[torch.Tensor], torch.Tensor]
_HASH_WEIGHT = 6364136223846793005
"""Odd multiplier of the device checksum's position weights (Knuth's MMIX generator)."""
_HASH_BLOCK = 1 << 22
"""Elements that the device checksum takes at a time; bounds its memory."""


class Place(NamedTuple):
    """Where one rank of a model holds (a part of) one checkpoint tensor.

    Attributes:
        module: Identity of the module. A module may hold two copies, with one cut: its parameter and the packed one.
        read: Return what the model holds there.
        cut: Return the part of the checkpoint's tensor that belongs there.
        dtype: What loading converts to.
    """

    module: int
    read: Callable[[], torch.Tensor]
    cut: Cut
    dtype: torch.dtype


class ReadBack:
    """Compares a model's weights with those that were sent to it. One for each worker; see the module's docstring."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._modules: dict[str, torch.nn.Module] = dict(model.named_modules(remove_duplicate=False))
        self._fused: dict[str, tuple[str, int]] = {}
        for fused, parts in (getattr(model, "packed_modules_mapping", None) or {}).items():
            for position, part in enumerate(parts):
                if part != fused:
                    self._fused[part] = (fused, position)
        self._noted: dict[str, dict[int, Any]] = {}

    def compare(self, sent: Iterable[tuple[str, torch.Tensor]]) -> ReadBackReport:
        """Compare what the model holds with the tensors `sent`, under their names in the checkpoint."""

        def equal(place: Place, held: torch.Tensor, tensor: torch.Tensor) -> bool:
            wanted = place.cut(tensor).to(held.device, held.dtype)
            return held.shape == wanted.shape and torch.equal(held, wanted)

        return self._report(dict(sent), equal)

    def note(self, sent: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Keep checksums of tensors that are being sent and not kept, for `compare_noted`."""
        for name, tensor in sent:
            places = {place.module: place for place in self._places(name)}
            self._noted[name] = {
                module: checksum(place.cut(tensor).to(place.dtype)) for module, place in places.items()
            }

    def compare_noted(self) -> ReadBackReport:
        """Compare what the model holds with the tensors of all `note` calls since the last comparison."""
        noted = self._noted
        self._noted = {}

        def equal(place: Place, held: torch.Tensor, sums: dict[int, Any]) -> bool:
            return checksum(held) == sums[place.module]

        return self._report(noted, equal)

    def forget(self) -> None:
        """Drop the notes of a push that was torn."""
        self._noted = {}

    def _report(self, sent: Mapping[str, Any], equal: Callable[[Place, torch.Tensor, Any], bool]) -> ReadBackReport:
        start = time.monotonic()
        differing: list[str] = []
        unread: list[str] = []
        nbytes = 0
        with torch.no_grad():
            for name, tensor in sent.items():
                places = self._places(name)
                if not places:
                    unread.append(name)
                for place in places:
                    held = place.read()
                    nbytes += held.numel() * held.element_size()
                    if name not in differing and not equal(place, held, tensor):
                        differing.append(name)
        missing = self._not_covered(sent)
        return ReadBackReport(len(sent), tuple(differing), tuple(unread), missing, nbytes, time.monotonic() - start)

    def _places(self, name: str) -> list[Place]:
        """Return every place that the checkpoint tensor `name` goes to; none if this class cannot find it."""
        mapper = getattr(self._model, "hf_to_vllm_mapper", None)
        unstacked = name if mapper is None else _map_prefixes(mapper, name)
        path, _, parameter = unstacked.rpartition(".")
        parent, _, leaf = path.rpartition(".")
        module = self._modules.get(path)
        position: int | None = None
        if module is None and leaf in self._fused:
            fused, position = self._fused[leaf]
            module = self._modules.get(f"{parent}.{fused}" if parent else fused)
        if module is None or not hasattr(module, parameter):
            return []
        places = list(_places_of(module, parameter, position))
        head = getattr(self._model, "lm_head", None)
        if places and head is not None and head is not module and self._is_tied(head, module):
            places += _places_of(head, parameter, None)
        return places

    def _is_tied(self, head: torch.nn.Module, embedding: torch.nn.Module) -> bool:
        config = getattr(self._model, "config", None)
        return (
            isinstance(head, ParallelLMHead)
            and isinstance(embedding, VocabParallelEmbedding)
            and bool(getattr(config, "tie_word_embeddings", False))
        )

    def _not_covered(self, sent: Mapping[str, Any]) -> tuple[str, ...]:
        """Return modules with parameters of their own that no sent tensor belongs to: a layer that was not sent."""
        covered: set[int] = set()
        mapper = getattr(self._model, "hf_to_vllm_mapper", None)
        parts: dict[str, set[int]] = {}
        for name in sent:
            unstacked = name if mapper is None else _map_prefixes(mapper, name)
            path, _, parameter = unstacked.rpartition(".")
            parent, _, leaf = path.rpartition(".")
            if path in self._modules:
                covered.add(id(self._modules[path]))
            elif leaf in self._fused and parameter == "weight":
                fused, position = self._fused[leaf]
                parts.setdefault(f"{parent}.{fused}" if parent else fused, set()).add(position)
        for path, positions in parts.items():
            fused = path.rpartition(".")[2]
            if path in self._modules and positions >= {at for of, at in self._fused.values() if of == fused}:
                covered.add(id(self._modules[path]))
        head = getattr(self._model, "lm_head", None)
        uncovered = []
        for path, module in self._model.named_modules():
            own = list(module.parameters(recurse=False))
            if not own or id(module) in covered:
                continue
            if module is head and any(self._is_tied(head, other) for other in self._modules.values()):
                continue
            uncovered.append(path)
        return tuple(uncovered)


def _places_of(module: torch.nn.Module, parameter: str, position: int | None) -> Iterator[Place]:
    """Yield where `module` holds a checkpoint tensor: the `position`-th of those fused in it, or its only one."""
    reads = _reads(module, parameter)
    cut: Cut
    rows: slice | None = None
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
    elif isinstance(module, ColumnParallelLinear):
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
    elif isinstance(module, LinearBase) and not isinstance(module, ReplicatedLinear | RowParallelLinear):
        return  # a layout that is not known here
    else:
        cut = lambda sent: sent  # noqa: E731
    for read in reads:
        yield Place(id(module), read if rows is None else _part(read, rows), cut, _dtype_of(module, parameter))


def _reads(module: torch.nn.Module, parameter: str) -> list[Callable[[], torch.Tensor]]:
    """Return readers of all copies of a parameter that `module` computes with. Empty where there is none to read."""
    held = getattr(module, parameter)
    method = getattr(module, "quant_method", None)
    reads: list[Callable[[], torch.Tensor]] = []
    if isinstance(module, LinearBase) and not isinstance(method, UnquantizedLinearMethod):
        return reads
    if held.numel():
        reads.append(lambda: getattr(module, parameter).detach())
    packed = parameter == "weight" and hasattr(module, "cpu_linear")
    if packed and isinstance(method, UnquantizedLinearMethod | UnquantizedEmbeddingMethod):
        reads.append(lambda: _unpacked(module))
    return reads


def _unpacked(module: Any) -> torch.Tensor:
    """Return the weight [out, in] that a layer's packed kernel multiplies with, by applying it to the identity."""
    size = module.embedding_dim if isinstance(module, VocabParallelEmbedding) else module.input_size_per_partition
    identity = torch.eye(size, dtype=_dtype_of(module, "weight"))
    return module.quant_method.apply(module, identity, None).t()


def _rows(begin: int, size: int) -> Cut:
    return lambda sent: sent[begin : begin + size]


def _part(read: Callable[[], torch.Tensor], rows: slice) -> Callable[[], torch.Tensor]:
    return lambda: read()[rows]


def _map_prefixes(mapper: Any, name: str) -> str:
    """Return the checkpoint's name as the model's module tree has it, before projections are fused."""
    from dataclasses import replace

    mapped = replace(mapper, orig_to_new_stacked={})._map_name(name)
    return name if mapped is None else mapped


def _dtype_of(module: torch.nn.Module, parameter: str) -> torch.dtype:
    """Return the dtype that a parameter has when it is not emptied: an emptied one is float32 whatever it was."""
    dtype = getattr(module, "params_dtype", None) if parameter == "weight" else None
    return dtype or getattr(module, parameter).dtype


def checksum(tensor: torch.Tensor) -> Any:
    """Return a checksum of a tensor's values, the same for equal tensors on one kind of device.

    On the CPU it is a hash of the bytes. On a GPU it is two sums of the elements' bits modulo 2**64, the second with a
    weight for each position, so that exchanged and shifted values are seen; nothing is copied to the host.
    """
    tensor = tensor.detach() + 0  # -0.0 becomes 0.0, as it does in a packed kernel
    if tensor.device.type == "cpu":
        data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
        return xxhash.xxh3_128_hexdigest(data)
    return device_checksum(tensor)


def device_checksum(tensor: torch.Tensor) -> tuple[tuple[int, ...], int, int]:
    """Return (shape, sum, weighted sum) of a tensor's bits, computed where the tensor is."""
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    bits = tensor.contiguous().reshape(-1).view(kind)
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    weighted = torch.zeros((), dtype=torch.int64, device=bits.device)
    for begin in range(0, bits.numel(), _HASH_BLOCK):
        block = bits[begin : begin + _HASH_BLOCK].to(torch.int64)
        position = torch.arange(begin, begin + block.numel(), dtype=torch.int64, device=bits.device)
        weight = (2 * position + 1) * _HASH_WEIGHT
        weight ^= weight >> 29
        total += block.sum()
        weighted += (block * weight).sum()
    return tuple(tensor.shape), int(total), int(weighted)
