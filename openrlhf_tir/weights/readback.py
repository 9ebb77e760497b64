"""Compare what a worker's model holds after a push with what was sent, exactly: no threshold and no log-probs.

    sent tensor "…q_proj.weight"  ──> cut for this rank ──┐
                                                          ├── equal, element by element, or the tensor is named
    model's "…qkv_proj.weight"    ──> its rows of q ──────┘

Once, before the first push:

    check_itself     compare with the weights that the engine loaded from disk: what is not found there is not trusted.
                     A loader may change values (GPT-NeoX reorders rows, GPT-2 transposes), and a right push must not
                     be refused because of it. Without such a load only model types are read back whose loaders are
                     known to change nothing.

After each push, either

    compare          the tensors that were sent are still there
or
    note             while they arrive: keep checksums, not tensors
    compare_noted    then: compare with these

The comparison of a push:

    1. find the places of each tensor in the model (model_places.py). A tensor without a trusted place is unread.
    2. on a GPU, compare all places there, and wait for the answers once: a host that waits for each tensor would hold
       the engine up. A tensor whose bits are all equal is done.
    3. compare the others exactly (bits.py), one by one: a tensor is equal, differs or is unread.
    4. look for modules that were sent nothing (coverage.py).

vLLM packs a linear layer on a CPU and empties its `weight`. What is compared is the packed copy that computes, read by
a matrix product, so every push reads one column of each block of eight, and the next push another one: all rows and
every block are seen at once, every element in eight pushes (packed_columns.py).

What cannot be placed or compared (quantised layers, experts spread over ranks, what the checkpoint has fused where
ranks share it, another shape) is unread and left to the log-probs. So is what raises here: a failure of the read-back
says nothing about the push.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ..pushes import ReadBackReport
from .bits import Checksum, checksum, differs_on_device, has_equal_values
from .coverage import modules_without_tensor
from .model_places import Copy, Key, ModelPlaces, Place
from .packed_columns import PackedColumns

log = logging.getLogger(__name__)
PLAIN_TYPES = frozenset({"llama", "mistral", "qwen2", "qwen3", "smollm3"})
"""Model types whose loaders fuse and split tensors but change no value."""


class _WithTensors:
    """Compares with tensors that were sent."""

    def differs(self, place: Place, held: torch.Tensor, sent: torch.Tensor) -> torch.Tensor | None:
        """Return a bool on the device, True if the bits differ; None if only `is_equal` can say. Does not wait."""
        return None if place.copy.packed else differs_on_device(held, place.cut(sent))

    def is_equal(self, place: Place, held: torch.Tensor, sent: torch.Tensor) -> bool | None:
        """Return whether the values are equal; None if that is unknown."""
        wanted = place.cut(sent)
        if held.shape != wanted.shape:
            return None  # loading has changed the tensor
        return has_equal_values(held, wanted)


class _WithChecksums:
    """Compares with the checksums, by copy, of tensors that were sent."""

    def __init__(self, device: torch.device) -> None:
        """`device`: where the checksums were computed."""
        self._device = device

    def differs(self, place: Place, held: torch.Tensor, sent: Mapping[Copy, Checksum]) -> torch.Tensor | None:
        if place.copy not in sent:
            return None
        shape, sent_checksum = sent[place.copy]
        if shape != tuple(held.shape):
            return None  # loading has changed the tensor
        _, held_checksum = checksum(held, self._device, held.dtype)
        return (held_checksum != sent_checksum).any()

    def is_equal(self, place: Place, held: torch.Tensor, sent: Mapping[Copy, Checksum]) -> bool | None:
        differs = self.differs(place, held, sent)
        return None if differs is None else not differs.item()


_Comparison = _WithTensors | _WithChecksums
"""Compares a place with what was sent: a tensor, or what `note` kept of it."""


class ReadBack:
    """Compares a model's weights with those that were sent to it. One for each worker; see the module's docstring."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = ModelPlaces(model)
        devices = (parameter.device for parameter in model.parameters())
        self._device = next((device for device in devices if device.type != "meta"), torch.device("cpu"))
        """The device of all checksums. It is stored because a parameter is a meta tensor while weights are loaded."""
        self._trusted: set[Key] | None = None
        """Places at which a load from disk was read back correctly; None: all places."""
        self._never_sent: frozenset[str] = frozenset()
        """Modules for which the checkpoint on disk has no tensor either."""
        self._places_on_gpu: dict[str, list[Place]] = {}
        """The places of each tensor on a GPU, as far as they were asked for."""
        self._noted: dict[str, dict[Copy, Checksum]] = {}
        """Checksums of the tensors of a push, by name."""
        self._compared = 0
        """Number of comparisons without a difference. It says which columns of packed layers the next one reads."""
        self._logged: set[str] = set()
        """Tensors that the log has named as unread."""
        self._last_missing: tuple[tuple[frozenset[str], frozenset[str]], tuple[str, ...]] | None = None
        """(sent, unread) of the last comparison, and the modules that should have been sent a tensor and were not."""

    def check_itself(self, loaded: Iterable[tuple[str, torch.Tensor]] | None) -> tuple[str, ...]:
        """Find out, on weights that are known to be loaded rightly, which tensors can be read back; trust only those.

        Args:
            loaded: The checkpoint that the model holds now; None if there is none, as with random weights.

        Returns:
            Tensors of the checkpoint that are left to the log-probs.
        """
        self._trust(None)
        if loaded is not None:
            names, unread, held = self._read_back_loaded(loaded)
            if held:
                self._trust(held)
                self._never_sent = frozenset(modules_without_tensor(self._model, names, (), self._never_sent))
                self._log_once(unread)
                return tuple(unread)
        model_type = getattr(getattr(self._model.model, "config", None), "model_type", None)
        if model_type not in PLAIN_TYPES:
            self._trust(set())
            log.info(
                "The read-back is unchecked and %s is not a plain model type: only log-probs prove a push", model_type
            )
        return ()

    def _trust(self, keys: set[Key] | None) -> None:
        """Trust the read-back at these places only (None: at all of them), and forget what depends on that."""
        self._trusted = keys
        self._places_on_gpu.clear()
        self._last_missing = None

    def _read_back_loaded(self, loaded: Iterable[tuple[str, torch.Tensor]]) -> tuple[list[str], list[str], set[Key]]:
        """Compare the model with what it was loaded from.

        Returns:
            The names of all tensors, of those that were not found in the model, and the places that hold all of their
            tensors (an expert's place has many). No place unless these are more than half of the places that hold some
            tensor: such a check proves nothing.
        """
        names: list[str] = []
        unread: list[str] = []
        held: set[Key] = set()
        wrong: set[Key] = set()
        columns = PackedColumns(self._compared)
        for name, tensor in loaded:
            names.append(name)
            with torch.no_grad():
                verdict, _ = self._verdict(name, tensor, _WithTensors(), columns)
            key = self._model.key(name)
            if not verdict or key is None:
                unread.append(name)
            if key is not None:
                (held if verdict else wrong).add(key)
        complete = held - wrong
        return names, unread, complete if len(complete) > len(held) / 2 else set()

    def compare(self, sent: Iterable[tuple[str, torch.Tensor]]) -> ReadBackReport:
        """Compare what the model holds with the tensors `sent`, under their names in the checkpoint."""
        return self._report(dict(sent), _WithTensors())

    def note(self, sent: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Store checksums of tensors that arrive and are not kept, for `compare_noted`."""
        columns = PackedColumns(self._compared)
        for name, tensor in sent:
            checksums: dict[Copy, Checksum] = {}
            for place in self._places(name, columns):
                try:
                    checksums[place.copy] = checksum(place.cut(tensor), self._device, place.dtype)
                except Exception as error:
                    log.debug("%s cannot be noted: %s", name, error)  # it counts as unread
            self._noted[name] = checksums

    def compare_noted(self) -> ReadBackReport:
        """Compare what the model holds with the tensors of all `note` calls since the last comparison."""
        noted = self._noted
        self._noted = {}
        return self._report(noted, _WithChecksums(self._device))

    def forget(self) -> None:
        """Drop the checksums of a push that was torn."""
        self._noted = {}

    def _report(self, sent: Mapping[str, Any], comparison: _Comparison) -> ReadBackReport:
        """Compare all tensors of a push; see the module's docstring."""
        start = time.monotonic()
        differing: list[str] = []
        unread: list[str] = []
        columns = PackedColumns(self._compared)
        with torch.no_grad():
            equal, nbytes = self._equal_on_device(sent, comparison, columns)
            for name, tensor in sent.items():
                if name in equal:
                    continue
                verdict, tensor_bytes = self._verdict(name, tensor, comparison, columns)
                nbytes += tensor_bytes
                if verdict is None:
                    unread.append(name)
                elif not verdict:
                    differing.append(name)
        if not differing:  # a repeated push is read where the fault was seen
            self._compared += 1
        self._log_once(unread)
        missing = self._missing(sent, unread)
        return ReadBackReport(len(sent), tuple(differing), tuple(unread), missing, nbytes, time.monotonic() - start)

    def _equal_on_device(
        self, sent: Mapping[str, Any], comparison: _Comparison, columns: PackedColumns
    ) -> tuple[set[str], int]:
        """Compare all tensors where they are, and read the answers once.

        Returns:
            Tensors that every place holds bit by bit, and the bytes that were compared. Of the others nothing is said:
            they differ, or need the exact comparison.
        """
        if self._device.type == "cpu":
            return set(), 0  # waiting costs nothing there, and packed layers need the exact comparison
        names: list[str] = []
        answers: list[torch.Tensor] = []
        nbytes = 0
        for name, tensor in sent.items():
            try:
                answer, tensor_bytes = self._differs_on_device(name, tensor, comparison, columns)
            except Exception as error:
                log.debug("%s cannot be compared quickly: %s", name, error)
                continue
            if answer is not None:
                names.append(name)
                answers.append(answer)
                nbytes += tensor_bytes
        if not names:
            return set(), 0
        differing = torch.stack(answers).tolist()  # the only wait for the device
        return {name for name, differs in zip(names, differing, strict=True) if not differs}, nbytes

    def _differs_on_device(
        self, name: str, tensor: Any, comparison: _Comparison, columns: PackedColumns
    ) -> tuple[torch.Tensor | None, int]:
        """Return whether any place of a tensor differs, as a bool on the device, and the bytes compared.

        None instead of the bool if a place needs the exact comparison, or there is no place.
        """
        combined: torch.Tensor | None = None
        nbytes = 0
        for place in self._places(name, columns):
            held = place.read()
            differs = comparison.differs(place, held, tensor)
            if differs is None:
                return None, 0
            nbytes += held.numel() * held.element_size()
            combined = differs if combined is None else combined | differs
        return combined, nbytes

    def _verdict(
        self, name: str, tensor: Any, comparison: _Comparison, columns: PackedColumns
    ) -> tuple[bool | None, int]:
        """Return whether every place of a tensor holds it (None if that is unknown), and the bytes compared."""
        verdicts: list[bool | None] = []
        nbytes = 0
        for place in self._places(name, columns):
            try:
                held = place.read()
                nbytes += held.numel() * held.element_size()
                verdicts.append(comparison.is_equal(place, held, tensor))
            except Exception as error:
                log.debug("%s cannot be read back: %s", name, error)
                verdicts.append(None)
        if False in verdicts:
            return False, nbytes
        if None in verdicts or not verdicts:
            return None, nbytes
        return True, nbytes

    def _places(self, name: str, columns: PackedColumns) -> list[Place]:
        """Return every trusted place that a checkpoint tensor goes to."""
        if self._device.type == "cpu":
            return self._trusted_places(name, columns)
        # On a GPU no layer is packed, so that a tensor has the same places in every push: they are found once.
        if name not in self._places_on_gpu:
            self._places_on_gpu[name] = self._trusted_places(name, columns)
        return self._places_on_gpu[name]

    def _trusted_places(self, name: str, columns: PackedColumns) -> list[Place]:
        if self._trusted is not None and self._model.key(name) not in self._trusted:
            return []
        return self._model.places(name, columns)

    def _missing(self, sent: Mapping[str, Any], unread: list[str]) -> tuple[str, ...]:
        """Return modules that should have been sent a tensor and were not. Every push usually sends the same ones."""
        names = (frozenset(sent), frozenset(unread))
        if self._last_missing is None or self._last_missing[0] != names:
            missing = modules_without_tensor(self._model, sent, frozenset(unread), self._never_sent)
            self._last_missing = (names, missing)
        return self._last_missing[1]

    def _log_once(self, unread: list[str]) -> None:
        new = [name for name in unread if name not in self._logged]
        self._logged.update(new)
        if new:
            log.info("%d tensors cannot be read back; only log-probs prove them: %s", len(new), ", ".join(new[:10]))
