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
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

from ..pushes import ReadBackReport
from . import fused_experts
from .bits import _BITS, _blocks, _has_equal_bits, checksum, same_checksum
from .coverage import _ancestors, _is_known, _kind
from .fused_experts import ExpertPart
from .model_places import Key, Place, _map_prefixes, _place_of_experts, _places_of
from .packed_columns import PackedColumns

log = logging.getLogger(__name__)
PLAIN_TYPES = frozenset({"llama", "mistral", "qwen2", "qwen3", "smollm3"})
"""Model types whose loaders fuse and split tensors but change no value."""


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


def _equal(place: Place, held: torch.Tensor, sent: torch.Tensor) -> bool | None:
    """Return whether a model holds what was sent, bit by bit; None if the shapes differ: then loading changed it."""
    wanted = place.cut(sent)
    if held.shape != wanted.shape:
        return None
    if held.device.type == "cpu" and _has_equal_bits(held, wanted):
        return True  # in a fraction of the time that the blocks take
    blocks = zip(_blocks(held, held.device, held.dtype), _blocks(wanted, held.device, held.dtype), strict=True)
    return all(torch.equal(held_block, wanted_block) for held_block, wanted_block in blocks)


def _differs(place: Place, held: torch.Tensor, sent: torch.Tensor) -> torch.Tensor | None:
    """Return whether a model's bits are other than those that were sent, on their device; None if either is elsewhere.

    Bits that differ may still be equal values (-0.0 and 0.0), which only `_equal` knows.
    """
    wanted = place.cut(sent)
    if held.device != wanted.device or held.dtype != wanted.dtype or held.shape != wanted.shape or place.copy[1]:
        return None
    kind = _BITS[held.element_size()]
    return (held.view(kind) != wanted.view(kind)).any()
