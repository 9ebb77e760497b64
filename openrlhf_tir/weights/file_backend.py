"""Load weights from a file, a broadcast or the learner's own memory into a running vLLM worker's model.

This module runs in the worker process. It is a backend of vLLM's weight-transfer API, next to vLLM's own nccl and ipc:

    start_weight_update   puts every layer back into the shape that a checkpoint fills
    update_weights        passes the file's tensors, under Hugging Face names, through the model's own loader
    or receive_weights    does so with the tensors of a broadcast, bucket by bucket as they arrive
    finish_weight_update  processes the layers again (fuses and packs them)

    map_exposed           maps buckets of the learner on the same device, while the engine answers requests
    load_exposed          all of the above with these buckets and the read-back, in one call: the engine stands still
                          meanwhile, and every call to it costs it milliseconds

Importing this module registers the backend. vLLM imports it in every worker because `worker_extension_cls` names
WorkerExtension.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from vllm.config import set_current_vllm_config
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.model_loader import get_model_loader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

from ..machine.host_allocator import give_back_freed
from ..pushes import BroadcastRendezvous, BroadcastResult, ExposedBucket, ReadBackReport
from . import experts_on_cpu
from .broadcast.receiver import Receiver
from .checkpoint_names import CheckpointNames, Tensors
from .copy_plan import CopyPlan, CopyRecorder
from .in_place import loads_in_place
from .ipc.exposer import reason_of
from .ipc.importer import CannotMap, Importer, buckets_of
from .readback import ReadBack

log = logging.getLogger(__name__)


class WorkerExtension:
    """Methods that vLLM adds to its worker class. In them `self` is the worker, which has these attributes."""

    rank: int
    vllm_config: Any
    weight_transfer_engine: FileWeightTransferEngine
    start_weight_update: Callable[[], None]
    finish_weight_update: Callable[[], None]
    _weight_update_active: bool

    def receive_weights(self, meeting: list[Any], first_rank: int, push: str) -> list[Any]:
        """Take part in a broadcast and return a BroadcastResult as plain values. Raises nothing (see receiver.py).

        Args:
            meeting: A BroadcastRendezvous as plain values.
            first_rank: Rank of this engine's first worker in the broadcast.
            push: The identity of the push.
        """
        engine = self.weight_transfer_engine
        with set_current_vllm_config(self.vllm_config):
            return list(engine.received(BroadcastRendezvous(*meeting), first_rank + self.rank, push))

    def map_exposed(self, buckets: Sequence[Any]) -> str:
        """Map buckets of the learner and check their digests. Raises nothing: other workers' answers would stay.

        Args:
            buckets: ExposedBuckets as plain values (importer.py).

        Returns:
            Why they cannot be read here; empty if they can.
        """
        try:
            self.weight_transfer_engine.importer.begin(buckets_of(buckets))
        except CannotMap as error:
            return str(error)
        except Exception as error:  # another version of torch or vLLM: there are other ways to push
            log.exception("What the learner exposes cannot be mapped")
            return reason_of(error)
        return ""

    def load_exposed(self, push: str, buckets: Sequence[Any], remaining: int) -> list[Any]:
        """Load exposed buckets into the model; with the last ones, process the layers and read the model back.

        Args:
            push: The identity of the push.
            buckets: ExposedBuckets as plain values.
            remaining: Number of buckets that follow.

        Returns:
            Seconds of the parts by name, and a ReadBackReport as plain values (None before the last buckets).
        """
        engine = self.weight_transfer_engine
        start = time.monotonic()
        exposed = buckets_of(buckets)
        first = engine.exposed_push != push
        whole = first and not remaining
        if first and self._weight_update_active:
            self.begin_again()  # the learner of another push was lost between two buckets
        elif first:
            # A push of several calls cannot be loaded a second time: its first buckets are overwritten by then.
            engine.layer_by_layer = not (whole and engine.can_load_in_place)
            self.start_weight_update()
        begun = time.monotonic()
        self._load_buckets(push, exposed, whole=whole)
        in_place = not engine.layer_by_layer
        report = None
        if not remaining:
            self.finish_weight_update()
        engine.importer.acknowledge()
        loaded = time.monotonic()
        if not remaining:
            report = self._read_back_exposed(push, exposed, in_place=in_place)
            engine.exposed_push = None
            engine.pushed = None  # else memory that is no longer exposed would be kept mapped
        parts = {"begin": begun - start, "load": loaded - begun, "read_back": time.monotonic() - loaded}
        return [parts, report and list(report)]

    def _load_buckets(self, push: str, exposed: list[ExposedBucket], *, whole: bool) -> None:
        """Load buckets. What cannot be written in place is loaded layer by layer instead, if it is the whole push."""
        engine = self.weight_transfer_engine
        with set_current_vllm_config(self.vllm_config), torch.no_grad():
            try:
                engine.load_exposed(push, exposed, whole=whole)
            except Exception:
                if engine.layer_by_layer or not whole:
                    raise
                log.warning("Weights cannot be written in place: they are loaded layer by layer", exc_info=True)
                engine.load_in_place_no_more()
                engine.layer_by_layer = True
                engine.start_weight_update()
                engine.load_exposed(push, exposed, whole=whole)

    def _read_back_exposed(self, push: str, exposed: list[ExposedBucket], *, in_place: bool) -> ReadBackReport:
        """Read the model back, and check that the learner's memory still is what was announced.

        Weights that were written in place and are not held are loaded once more, layer by layer. So a model whose
        loader needs more than `loads_in_place` knows costs a push some time and no engine.
        """
        engine = self.weight_transfer_engine
        report = engine.read_back()
        if report.fault and in_place:
            log.warning("Weights are loaded layer by layer from now on: written in place, %s", report.fault)
            engine.load_in_place_no_more()
            self.start_weight_update()
            self._load_buckets(push, exposed, whole=True)
            self.finish_weight_update()
            engine.importer.acknowledge()
            report = engine.read_back()
        engine.importer.check(exposed)
        return report

    def begin_again(self) -> None:
        """Prepare the model for another push after one that ended between two of its buckets."""
        with set_current_vllm_config(self.vllm_config):
            self.weight_transfer_engine.undo()

    def read_back(self) -> list[Any]:
        """Compare what this worker's model holds with the last push; return a ReadBackReport as plain values."""
        return list(self.weight_transfer_engine.read_back())


@dataclass
class FileInit(WeightTransferInitInfo):
    """Options of the backend: none."""


@dataclass
class FileUpdate(WeightTransferUpdateInfo):
    """One push by file."""

    path: str
    """A complete safetensors file that this worker's node sees."""


class FileWeightTransferEngine(WeightTransferEngine[FileInit, FileUpdate]):
    """The backend of one worker. vLLM calls the methods that its base class declares."""

    init_info_cls = FileInit
    update_info_cls = FileUpdate
    repack_lm_head = True
    """False while benchmarks/canary builds in the fault that the head keeps its packed copy."""

    def init_transfer_engine(self, init_info: FileInit) -> None:
        _ = self.readback  # created here, while the model still holds what it loaded from disk

    @cached_property
    def receiver(self) -> Receiver:
        return Receiver()

    @cached_property
    def importer(self) -> Importer:
        return Importer(self.device)

    @cached_property
    def can_load_in_place(self) -> bool:
        """True if the loader may write into the tensors that compute; False once the read-back has refuted that."""
        return loads_in_place(self.model, self.device)

    layer_by_layer = True
    """False while a push writes into the tensors that compute."""
    exposed_push: str | None = None
    """The push of which exposed buckets are being loaded; None if there is none."""
    pushed: Callable[[], Tensors] | None = None
    """Returns the tensors of the last push for its read-back; None if only their checksums are noted."""
    _copy_plan: CopyPlan | None = None
    """What the loader copied in the last push that it wrote in place; None if that is not all it does."""

    @cached_property
    def readback(self) -> ReadBack:
        """The read-back of this worker's model, checked on the weights from disk where possible."""
        readback = ReadBack(self.model)
        with set_current_vllm_config(self.vllm_config):
            try:
                readback.check_itself(self._loaded_from_disk())
            except Exception as error:
                # A checkpoint that cannot be read a second time is no reason to stop an engine that runs.
                log.info("The read-back cannot be checked on the weights from disk: %s", error)
                readback.check_itself(None)
        return readback

    @cached_property
    def names(self) -> CheckpointNames:
        """Gives pushed tensors the names that this worker's model loads."""
        has_experts = any(isinstance(module, RoutedExperts) for module in self.model.modules())
        return CheckpointNames.of(self.model_config.model) if has_experts else CheckpointNames()

    def _loaded_from_disk(self) -> Iterator[tuple[str, torch.Tensor]] | None:
        """Return what vLLM read when the engine started; None if it loaded otherwise (random weights)."""
        loader = get_model_loader(self.vllm_config.load_config)
        if not isinstance(loader, DefaultModelLoader):
            return None
        return loader.get_all_weights(self.model_config, self.model)

    def read_back(self) -> ReadBackReport:
        """Prove what the model holds after `finish_weight_update`: see weights/readback.py.

        This ends a push. On a CPU the memory that the previous weights took then goes back to the system.
        """
        with set_current_vllm_config(self.vllm_config):
            report = self._read_back()
        if self.device.type == "cpu":
            give_back_freed()
        return report

    def _read_back(self) -> ReadBackReport:
        return self.readback.compare_noted() if self.pushed is None else self.readback.compare(self.pushed())

    def start_weight_update(self) -> None:
        _ = self.readback  # created before the first push, if `init_transfer_engine` was not called
        if self.layer_by_layer:
            initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: FileUpdate) -> None:
        self.pushed = lambda: self.names(_tensors(update_info.path))
        self._copy_plan = None  # else memory which is no longer exposed would be kept mapped
        self.model.load_weights(self.pushed())

    def received(self, meeting: BroadcastRendezvous, rank: int, push: str) -> BroadcastResult:
        """Take part in a broadcast. It may be repeated between start_weight_update and finish_weight_update."""
        return self.receiver.receive(meeting, rank, push, self._load, self.undo)

    def load_exposed(self, push: str, exposed: list[ExposedBucket], *, whole: bool) -> None:
        """Load buckets that the learner exposes.

        Args:
            push: The identity of the push.
            exposed: The buckets.
            whole: True if they are the whole push. Their memory then stays as it is until the push is over. Otherwise
                the learner overwrites it after the answer, and vLLM's loader may keep tensors for a later bucket: they
                are copied, and their checksums are noted for the read-back.
        """
        self.exposed_push = push
        if whole:
            mapped = (pair for bucket in exposed for pair in self.importer.tensors(bucket))
            tensors = list(self.names(mapped))
            self.pushed = lambda: tensors
            if self.layer_by_layer:
                with disable_mtp_completeness_check():
                    self.model.load_weights(iter(tensors))
            else:
                self._write_in_place(tensors)
            return
        self.importer.check(exposed)
        for bucket in exposed:
            self._load([(name, tensor.clone()) for name, tensor in self.importer.tensors(bucket)])

    def load_in_place_no_more(self) -> None:
        """Load layer by layer from now on: writing in place has failed."""
        self.can_load_in_place = False
        self._copy_plan = None

    def _write_in_place(self, tensors: list[tuple[str, torch.Tensor]]) -> None:
        """Load into the tensors that compute: by the model's loader, then by repeating what it copied."""
        if self._copy_plan is not None and self._copy_plan.fits(tensors):
            self._copy_plan.copy()
            return
        self._copy_plan = None  # first, so that memory which is no longer exposed is not kept mapped
        with disable_mtp_completeness_check(), CopyRecorder() as recorder:
            self.model.load_weights(iter(tensors))
        self._copy_plan = CopyPlan.of(tensors, recorder.copies)

    def _load(self, tensors: list[tuple[str, torch.Tensor]]) -> None:
        self.pushed = None
        tensors = list(self.names(tensors))
        self.readback.note(tensors)
        # A bucket has only a part of the tensors, so a model with a multi-token prediction head would be incomplete.
        with disable_mtp_completeness_check():
            self.model.load_weights(iter(tensors))

    def undo(self) -> None:
        """Prepare the model for another push after one was torn.

        Layers that have received all of their weights keep the new ones; the others get their old weights back.
        """
        self.readback.forget()
        self._copy_plan = None
        self.exposed_push = None
        if self.layer_by_layer:
            for layer in self.model.modules():
                info = get_layerwise_info(layer)
                info.loaded_weights.clear()
                info.load_numel = 0
            finalize_layerwise_reload(self.model, self.model_config)
        self.layer_by_layer = True
        self.start_weight_update()

    def finish_weight_update(self) -> None:
        if not self.layer_by_layer:
            self.layer_by_layer = True
            return
        finalize_layerwise_reload(self.model, self.model_config)
        # A tied lm_head is a separate module that shares the embedding's tensor. The reload processes only the
        # embedding. The head would silently keep the copy that the CPU kernels packed from the *old* weights.
        head = getattr(self.model, "lm_head", None)
        if self.repack_lm_head and head is not None and hasattr(head, "quant_method"):
            head.quant_method.process_weights_after_loading(head)

    def shutdown(self) -> None:
        self.receiver.leave()
        self.importer.leave()


def _tensors(path: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield name and tensor of everything in a safetensors file."""
    from safetensors import safe_open

    with safe_open(path, framework="pt", device="cpu") as f:
        for name in f.keys():  # noqa: SIM118 - not a mapping, it has no __iter__
            yield name, f.get_tensor(name)


WeightTransferEngineFactory.register_engine("file", FileWeightTransferEngine)
experts_on_cpu.install()
