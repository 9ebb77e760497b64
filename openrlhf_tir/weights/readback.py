"""Compare what a worker's model holds after a push with what was sent, exactly: no threshold and no log-probs.

    sent tensor "…q_proj.weight"  ──> cut for this rank ──┐
                                                          ├── equal, element by element, or the tensor is named
    model's "…qkv_proj.weight"    ──> its rows of q ──────┘

The read-back does not use the loader that it checks: it finds the place of each checkpoint tensor from the layers' own
sizes and ranks. It undoes what loading does to a tensor:

    fused             the rows of qkv_proj and gate_up_proj are separated again
    tensor parallel   rows or columns of this rank; key/value heads that several ranks share
    padded            the rows of the vocabulary's padding are left out
    tied              a head that has no tensor of its own must hold the embedding
    experts           those of a mixture are matrices of two tensors (fused_experts.py)
    packed (CPU)      vLLM packs a linear layer into oneDNN's own format and empties `weight`. What is compared is the
                      packed copy that computes, read by a matrix product (packed_columns.py), so every push reads one
                      column of each block of eight, and the next push another one: all rows and every block are seen
                      at once, every element in eight pushes.

Where both sides are on a GPU, each tensor is compared there, and the host reads all answers at once at the end: a host
that waits for each tensor would hold the engine up. What differs so is compared once more in the exact way above.

What it cannot place (quantised layers, experts spread over ranks, what the checkpoint has fused where ranks share it,
another shape) is counted as unread and left to the log-probs: a right push is never refused because of it. A loader may
also change values (GPT-NeoX reorders rows, GPT-2 transposes). So the read-back itself is checked once, on the weights
that the engine loaded from disk when it started: what it does not find there stays unread. Without such a load it is
used only for model types whose loaders are known to change nothing.
"""

from __future__ import annotations

import logging
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

from ..pushes import ReadBackReport
from . import fused_experts
from .fused_experts import ExpertPart
from .packed_columns import PackedColumns, dtype_of

log = logging.getLogger(__name__)
Cut = Callable[[torch.Tensor], torch.Tensor]
_HASH_WEIGHT = 6364136223846793005
"""Odd multiplier of the device checksum's position weights (Knuth's MMIX generator)."""
_BLOCK = 1 << 22
"""Most elements that are compared or summed at a time, unless a row is longer. Limits the memory for it."""
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers of the same size, in bytes, as a value."""
PLAIN_TYPES = frozenset({"llama", "mistral", "qwen2", "qwen3", "smollm3"})
"""Model types whose loaders fuse and split tensors but change no value."""
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


Equal = Callable[[Place, torch.Tensor, Any], bool | None]
"""Returns whether a place holds what was sent; None if that is unknown."""
Differs = Callable[[Place, torch.Tensor, Any], torch.Tensor | None]
"""Returns a bool on the device, True if a place holds something else than what was sent; None if only the exact
comparison can say. Does not wait for the device."""


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
        self._mapped_names: dict[str, str] = {}
        """Names in the checkpoint -> in the module tree, as far as they were asked for."""
        self._known_places: dict[str, list[Place]] = {}
        """The places of each tensor on a GPU, as far as they were asked for."""
        self._noted: dict[str, dict[tuple[int, bool], Any]] = {}
        self._compared = 0
        """Number of comparisons without a difference; it says which columns of packed layers the next one reads."""
        self._packed = PackedColumns(0)
        """Reads packed layers in the comparison that runs, or notes their columns for the next one."""
        self._trusted: set[Key] | None = None
        """Places at which a load from disk was read back correctly; None: all places."""
        self._logged: set[str] = set()
        """Tensors that the log has named as unread."""
        self._covered_for: tuple[frozenset[str], frozenset[str]] | None = None
        """The tensors that were sent and not read when `_missing` was computed."""
        self._missing: tuple[str, ...] = ()
        """Modules that should have been sent a tensor and were not, in the last comparison."""
        self._never_sent: frozenset[str] = frozenset()
        """Modules for which the checkpoint on disk has no tensor either."""
        devices = (parameter.device for parameter in model.parameters())
        self._device = next((device for device in devices if device.type != "meta"), torch.device("cpu"))
        """The device of all checksums. It is stored because a parameter is a meta tensor while weights are loaded."""

    def check_itself(self, loaded: Iterable[tuple[str, torch.Tensor]] | None) -> tuple[str, ...]:
        """Find out, on weights that are known to be loaded rightly, which tensors can be read back; trust only those.

        Args:
            loaded: The checkpoint that the model holds now; None if there is none, as with random weights.

        Returns:
            Tensors of the checkpoint that are left to the log-probs.
        """
        self._trusted = None
        self._covered_for = None
        self._known_places.clear()
        self._packed = PackedColumns(self._compared)
        if loaded is not None:
            held, found, unread, names = self._held(loaded)
            self._known_places.clear()  # what is not held is not trusted from now on
            if len(held) > found / 2:
                self._trusted = held
                self._never_sent = frozenset(self._not_covered(names, set()))
                self._log_once(unread)
                return tuple(unread)
        kind = getattr(getattr(self._model, "config", None), "model_type", None)
        if kind not in PLAIN_TYPES:
            self._trusted = set()
            log.info("The read-back is unchecked and %s is not a plain model type: only log-probs prove a push", kind)
        return ()

    def _held(self, loaded: Iterable[tuple[str, torch.Tensor]]) -> tuple[set[Key], int, list[str], list[str]]:
        """Find the places that hold what was loaded.

        Returns:
            The places that hold all of their tensors, the number of places that hold some of them (an expert's place
            has many), the names that were not found, and all names.
        """
        held: set[Key] = set()
        unread: list[str] = []
        names: list[str] = []
        wrong: set[Key] = set()
        for name, tensor in loaded:
            names.append(name)
            with torch.no_grad():
                verdict, _ = self._verdict(name, tensor, _equal)
            key = self._key(name)
            if key is not None and verdict:
                held.add(key)
            else:
                unread.append(name)
                if key is not None:
                    wrong.add(key)
        return held - wrong, len(held), unread, names

    def compare(self, sent: Iterable[tuple[str, torch.Tensor]]) -> ReadBackReport:
        """Compare what the model holds with the tensors `sent`, under their names in the checkpoint."""
        return self._report(dict(sent), _equal, _differs)

    def note(self, sent: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Store checksums of tensors that arrive and are not kept, for `compare_noted`."""
        self._packed = PackedColumns(self._compared)
        for name, tensor in sent:
            self._noted[name] = sums = {}
            for place in self._places(name):
                try:
                    sums[place.copy] = checksum(place.cut(tensor), self._device, place.dtype)
                except Exception as error:
                    # This is no reason to refuse a push: the tensor counts as unread.
                    log.debug("%s cannot be noted: %s", name, error)

    def compare_noted(self) -> ReadBackReport:
        """Compare what the model holds with the tensors of all `note` calls since the last comparison."""
        noted = self._noted
        self._noted = {}

        def equal(place: Place, held: torch.Tensor, sums: dict[tuple[int, bool], Any]) -> bool | None:
            noted_sum = sums.get(place.copy)
            if noted_sum is None or noted_sum[0] != tuple(held.shape):
                return None
            return same_checksum(checksum(held, self._device, held.dtype), noted_sum)

        def differs(place: Place, held: torch.Tensor, sums: dict[tuple[int, bool], Any]) -> torch.Tensor | None:
            noted_sum = sums.get(place.copy)
            if noted_sum is None or noted_sum[0] != tuple(held.shape) or isinstance(noted_sum[1], str):
                return None
            return (checksum(held, self._device, held.dtype)[1] != noted_sum[1]).any()

        return self._report(noted, equal, differs)

    def forget(self) -> None:
        """Drop the checksums of a push that was torn."""
        self._noted = {}

    def _report(self, sent: Mapping[str, Any], equal: Equal, differs: Differs) -> ReadBackReport:
        start = time.monotonic()
        differing: list[str] = []
        unread: list[str] = []
        self._packed = PackedColumns(self._compared)
        with torch.no_grad():
            held, nbytes = self._held_by_quick_comparison(sent, differs)
            for name, tensor in sent.items():
                if name in held:
                    continue
                verdict, size = self._verdict(name, tensor, equal)
                nbytes += size
                if verdict is None:
                    unread.append(name)
                elif not verdict:
                    differing.append(name)
        if not differing:  # a repeated push is read where the fault was seen
            self._compared += 1
        self._log_once(unread)
        key = (frozenset(sent), frozenset(unread))
        if key != self._covered_for:  # the same tensors are sent in every push
            self._missing = self._not_covered(sent, set(unread))
            self._covered_for = key
        return ReadBackReport(
            len(sent), tuple(differing), tuple(unread), self._missing, nbytes, time.monotonic() - start
        )

    def _held_by_quick_comparison(self, sent: Mapping[str, Any], differs: Differs) -> tuple[set[str], int]:
        """Compare all tensors where they are, and read the answers once.

        Returns:
            Tensors that every place holds bit by bit, and the bytes that were compared for them. The others are not
            judged: they differ, or need the exact comparison.
        """
        if self._device.type == "cpu":
            return set(), 0  # waiting costs nothing there, and packed layers need the exact comparison
        names: list[str] = []
        answers: list[torch.Tensor] = []
        nbytes = 0
        for name, tensor in sent.items():
            try:
                size, answer = self._quick_answer(name, tensor, differs)
            except Exception as error:
                # A failure of the read-back itself says nothing about the push.
                log.debug("%s cannot be compared quickly: %s", name, error)
                continue
            if answer is not None:
                names.append(name)
                answers.append(answer)
                nbytes += size
        if not names:
            return set(), 0
        different = torch.stack(answers).tolist()  # the only wait for the device
        return {name for name, differs_there in zip(names, different, strict=True) if not differs_there}, nbytes

    def _quick_answer(self, name: str, tensor: Any, differs: Differs) -> tuple[int, torch.Tensor | None]:
        """Return the bytes compared, and whether any place of a tensor differs; None if that is not known quickly."""
        combined: torch.Tensor | None = None
        nbytes = 0
        for place in self._places(name):
            held = place.read()
            answer = differs(place, held, tensor)
            if answer is None:
                return 0, None
            nbytes += held.numel() * held.element_size()
            combined = answer if combined is None else combined | answer
        return nbytes, combined

    def _verdict(self, name: str, tensor: Any, equal: Equal) -> tuple[bool | None, int]:
        """Return whether every place of a tensor holds it (None if that is unknown), and the bytes compared."""
        verdicts: list[bool | None] = []
        nbytes = 0
        for place in self._places(name):
            try:
                held = place.read()
                nbytes += held.numel() * held.element_size()
                verdicts.append(equal(place, held, tensor))
            except Exception as error:
                # A failure of the read-back itself says nothing about the push.
                log.debug("%s cannot be read back: %s", name, error)
                verdicts.append(None)
        if False in verdicts:
            return False, nbytes
        return (None if None in verdicts or not verdicts else True), nbytes

    def _log_once(self, unread: list[str]) -> None:
        new = [name for name in unread if name not in self._logged]
        self._logged.update(new)
        if new:
            log.info("%d tensors cannot be read back; only log-probs prove them: %s", len(new), ", ".join(new[:10]))

    def _unstacked(self, name: str) -> str:
        """Return the checkpoint's name as the module tree has it, before projections are fused."""
        mapper = getattr(self._model, "hf_to_vllm_mapper", None)
        if mapper is None:
            return name
        mapped = self._mapped_names.get(name)
        if mapped is None:
            mapped = self._mapped_names[name] = _map_prefixes(mapper, name)
        return mapped

    def _found(self, name: str) -> tuple[torch.nn.Module, str, int | None] | None:
        """Return the module, the parameter and the position in it of a checkpoint tensor; None if there is none."""
        path, _, parameter = self._unstacked(name).rpartition(".")
        parent, _, leaf = path.rpartition(".")
        module = self._modules.get(path)
        position: int | None = None
        if module is None and leaf in self._fused:
            fused, position = self._fused[leaf]
            module = self._modules.get(f"{parent}.{fused}" if parent else fused)
        if module is None or not hasattr(module, parameter):
            return None
        return module, parameter, position

    def _experts(self, name: str) -> ExpertPart | None:
        """Return what a checkpoint tensor is of a layer's experts; None if it is something else."""
        return fused_experts.part_of(self._modules, self._unstacked(name))

    def _key(self, name: str) -> Key | None:
        experts = self._experts(name)
        if experts is not None:
            # One key for all experts of a layer: checkpoint and learner cut them into different tensors.
            return id(experts.module), experts.parameter, None
        found = self._found(name)
        return None if found is None else (id(found[0]), found[1], found[2])

    def _places(self, name: str) -> list[Place]:
        """Return every place that the checkpoint tensor `name` goes to; none if this class cannot find or trust it.

        On a GPU no layer is packed, so that a tensor has the same places in every push: they are found once.
        """
        if self._device.type == "cpu":
            return self._find_places(name)
        places = self._known_places.get(name)
        if places is None:
            places = self._known_places[name] = self._find_places(name)
        return places

    def _find_places(self, name: str) -> list[Place]:
        if self._trusted is not None and self._key(name) not in self._trusted:
            return []
        experts = self._experts(name)
        if experts is not None:
            return [_place_of_experts(experts)] if fused_experts.is_readable(experts.module) else []
        found = self._found(name)
        if found is None:
            return []
        module, parameter, position = found
        try:
            places = list(_places_of(module, parameter, position, self._packed))
            if places:
                for head in self._heads_tied_to(module):
                    places += _places_of(head, parameter, None, self._packed)
        except Exception as error:  # a layer whose structure is not known here
            log.debug("%s cannot be placed: %s", name, error)
            return []
        return places

    def _heads_tied_to(self, module: torch.nn.Module) -> list[torch.nn.Module]:
        if not isinstance(module, VocabParallelEmbedding) or isinstance(module, ParallelLMHead) or not self._ties():
            return []
        return [head for head in (getattr(self._model, "lm_head", None),) if isinstance(head, ParallelLMHead)]

    def _ties(self) -> bool:
        config = getattr(self._model, "config", None)
        inner = getattr(config, "get_text_config", lambda: config)()
        return any(bool(getattr(of, "tie_word_embeddings", False)) for of in (config, inner))

    def _not_covered(self, sent: Iterable[str], unread: set[str]) -> tuple[str, ...]:
        """Return modules that should have been sent a tensor and were not: a layer that was left out.

        Only linear layers, embeddings and norms count, and only where the learner has tensors for such modules: for
        another of their kind (the same path in another layer) or for one beside them. A tensor that was sent and not
        placed may belong to the modules that it lies beside.
        """
        covered: set[int] = set()
        paths: set[str] = set()
        parts: dict[str, set[int]] = {}
        unplaced: set[str] = set()
        pieces: dict[str, set[tuple[int, str, int]]] = {}
        for name in sent:
            experts = self._experts(name)
            if experts is not None:
                pieces.setdefault(experts.path, set()).update(experts.pieces)
                continue
            path = self._unstacked(name).rpartition(".")[0]
            parent, _, leaf = path.rpartition(".")
            if path in self._modules:
                covered.add(id(self._modules[path]))
                paths.add(path)
            elif leaf in self._fused:
                fused, position = self._fused[leaf]
                whole = f"{parent}.{fused}" if parent else fused
                parts.setdefault(whole, set()).add(position)
                if whole not in self._modules:
                    unplaced |= _ancestors(path)
            elif name in unread:
                unplaced |= _ancestors(path)
        for path, positions in parts.items():
            fused = path.rpartition(".")[2]
            if path in self._modules and positions >= {at for of, at in self._fused.values() if of == fused}:
                covered.add(id(self._modules[path]))
            paths.add(path)
        for path, filled in pieces.items():
            module = self._modules[path]
            if filled >= fused_experts.expected_pieces(module):
                covered.add(id(module))
            paths.add(path)
        kinds = {_kind(path) for path in paths}
        beside = {ancestor for path in paths for ancestor in _ancestors(path)}
        uncovered = []
        for path, module in self._model.named_modules():
            if not any(True for _ in module.parameters(recurse=False)) or id(module) in covered:
                continue
            parent = path.rpartition(".")[0]
            if path in self._never_sent or path in unplaced or parent in unplaced or not _is_known(module):
                continue
            if isinstance(module, ParallelLMHead) and self._shares_embedding(module):
                continue
            if _kind(path) in kinds or parent in beside:
                uncovered.append(path)
        return tuple(uncovered)

    def _shares_embedding(self, head: torch.nn.Module) -> bool:
        return self._ties() or any(
            module is not head and isinstance(module, VocabParallelEmbedding) and module.weight is head.weight
            for module in self._modules.values()
        )


def _ancestors(path: str) -> set[str]:
    """Return `path` and the path of every module around it; the whole model is the empty path."""
    names = path.split(".")
    return {".".join(names[:length]) for length in range(len(names) + 1)}


def _kind(path: str) -> str:
    """Return a path that is the same for one module of every layer."""
    return ".".join("*" if part.isdigit() else part for part in path.split("."))


def _is_known(module: torch.nn.Module) -> bool:
    """Return whether `module` is one that a checkpoint fills and that this file can read: linear, embedding, norm."""
    if isinstance(module, LinearBase):
        return isinstance(module.quant_method, UnquantizedLinearMethod)
    if isinstance(module, VocabParallelEmbedding | torch.nn.Linear | torch.nn.Embedding):
        return True
    if fused_experts.is_readable(module):
        return True
    return type(module).__name__.endswith("Norm")


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


def _equal(place: Place, held: torch.Tensor, sent: torch.Tensor) -> bool | None:
    """Return whether a model holds what was sent, bit by bit; None if the shapes differ: then loading changed it."""
    wanted = place.cut(sent)
    if held.shape != wanted.shape:
        return None
    if held.device.type == "cpu" and _has_equal_bits(held, wanted):
        return True  # in a fraction of the time that the blocks take
    blocks = zip(_blocks(held, held.device, held.dtype), _blocks(wanted, held.device, held.dtype), strict=True)
    return all(torch.equal(held_block, wanted_block) for held_block, wanted_block in blocks)


def _has_equal_bits(held: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Return whether two tensors on the CPU have the same bits. The bits that differ may still be equal values."""
    if held.device != wanted.device or held.dtype != wanted.dtype:
        return False
    kind = _BITS[held.element_size()]
    return torch.equal(held.view(kind), wanted.view(kind))


def _differs(place: Place, held: torch.Tensor, sent: torch.Tensor) -> torch.Tensor | None:
    """Return whether a model's bits are other than those that were sent, on their device; None if either is elsewhere.

    Bits that differ may still be equal values (-0.0 and 0.0), which only `_equal` knows.
    """
    wanted = place.cut(sent)
    if held.device != wanted.device or held.dtype != wanted.dtype or held.shape != wanted.shape or place.copy[1]:
        return None
    kind = _BITS[held.element_size()]
    return (held.view(kind) != wanted.view(kind)).any()


def _blocks(tensor: torch.Tensor, device: torch.device, dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """Yield the bits of a tensor as flat blocks of whole rows on a device; equal values have equal bits.

    -0.0 becomes 0.0, as it does in a packed kernel. A row that is not finite becomes NaN as a whole, which is what
    applying a packed layer to the identity makes of it.
    """
    table = tensor.detach()
    table = table.reshape(1) if table.dim() == 0 else table
    row = max(1, table[0].numel()) if table.shape[0] else 1
    step = max(1, _BLOCK // row)
    for begin in range(0, table.shape[0], step):
        block = table[begin : begin + step].to(device, dtype).reshape(-1, row) + 0
        kind = _BITS[block.element_size()]
        if dtype.is_floating_point and block.element_size() > 1:
            block = block.masked_fill(~torch.isfinite(block).all(dim=1, keepdim=True), float("nan"))
        yield block.contiguous().reshape(-1).view(kind)


def checksum(tensor: torch.Tensor, device: torch.device, dtype: torch.dtype) -> tuple[Any, ...]:
    """Return (shape, checksum) of a tensor's values as `dtype`: equal if, and for practical purposes only if, they are.

    Both sides of a comparison are computed on `device`, wherever the tensor is. On the CPU it is a hash of the bits. On
    a GPU it is two sums of the bits modulo 2**64, [2] int64, so that nothing is copied to the host or waits for it; the
    second sum has a weight for each position, so that it changes if values are exchanged or shifted.
    """
    blocks = _blocks(tensor, device, dtype)
    shape = tuple(tensor.shape)
    if device.type != "cpu":
        return shape, _sums(blocks, device)
    digest = xxhash.xxh3_128()
    for block in blocks:
        digest.update(block.numpy())
    return shape, digest.hexdigest()


def same_checksum(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Return True if two checksums are equal. Waits for the device if they are there."""
    if one[0] != other[0]:
        return False
    return one[1] == other[1] if isinstance(one[1], str) else bool(torch.equal(one[1], other[1]))


def _sums(blocks: Iterable[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Return the sum and the weighted sum of blocks of bits, [2] int64, computed where they are."""
    total = torch.zeros((), dtype=torch.int64, device=device)
    weighted = torch.zeros((), dtype=torch.int64, device=device)
    begin = 0
    for whole in blocks:
        for bits in whole.split(_BLOCK):
            block = bits.to(torch.int64)
            position = torch.arange(begin, begin + block.numel(), dtype=torch.int64, device=device)
            weight = (2 * position + 1) * _HASH_WEIGHT
            weight ^= weight >> 29
            total += block.sum()
            weighted += (block * weight).sum()
            begin += block.numel()
    return torch.stack((total, weighted))
