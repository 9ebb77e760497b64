"""Load weights from a safetensors file or a broadcast into a running vLLM worker's model, on CPU and GPU.

This module runs in the worker process. It is a backend of vLLM's weight-transfer API, next to vLLM's own nccl and ipc:

    start_weight_update   puts every layer back into the shape that a checkpoint fills
    update_weights        passes the file's tensors, under Hugging Face names, through the model's own loader
    or receive_weights    does so with the tensors of a broadcast, bucket by bucket as they arrive
    finish_weight_update  processes the layers again (fuses and packs them)

Importing this module registers the backend. vLLM imports it in every worker because `worker_extension_cls` names
WorkerExtension.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from vllm.config import set_current_vllm_config
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader import get_model_loader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

from ..types import BroadcastRendezvous, BroadcastResult, ReadBackReport
from .broadcast.receiver import Receiver
from .readback import ReadBack

log = logging.getLogger(__name__)
EXTENSION = f"{__name__}.WorkerExtension"


class WorkerExtension:
    """Methods that vLLM adds to its worker class. In them `self` is the worker."""

    def receive_weights(self, meeting: list[Any], first_rank: int, push: str) -> list[Any]:
        """Take part in a broadcast and return a BroadcastResult as plain values. Raises nothing (see receiver.py).

        Args:
            meeting: A BroadcastRendezvous as plain values.
            first_rank: Rank of this engine's first worker in the broadcast.
            push: The identity of the push.
        """
        engine = self.weight_transfer_engine  # type: ignore[attr-defined]
        with set_current_vllm_config(self.vllm_config):  # type: ignore[attr-defined]
            return list(engine.received(BroadcastRendezvous(*meeting), first_rank + self.rank, push))  # type: ignore[attr-defined]

    def read_back(self) -> list[Any]:
        """Compare what this worker's model holds with the last push; return a ReadBackReport as plain values."""
        return list(self.weight_transfer_engine.read_back())  # type: ignore[attr-defined]


@dataclass
class FileInit(WeightTransferInitInfo):
    """Options of the backend."""

    repack_lm_head: bool = True
    """False only in the test that shows which fault the canary finds."""


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

    def init_transfer_engine(self, init_info: FileInit) -> None:
        self.repack_lm_head = init_info.repack_lm_head
        _ = self.readback  # created here, while the model still holds what it loaded from disk

    @cached_property
    def receiver(self) -> Receiver:
        return Receiver()

    path: str | None = None
    """The file of the last push; None if it came by broadcast."""

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

    def _loaded_from_disk(self) -> Iterator[tuple[str, torch.Tensor]] | None:
        """Return what vLLM read when the engine started; None if it loaded otherwise (random weights)."""
        loader = get_model_loader(self.vllm_config.load_config)
        if not isinstance(loader, DefaultModelLoader):
            return None
        return loader.get_all_weights(self.model_config, self.model)

    def read_back(self) -> ReadBackReport:
        """Prove what the model holds after `finish_weight_update`: see weights/readback.py."""
        with set_current_vllm_config(self.vllm_config):
            if self.path is None:
                return self.readback.compare_noted()
            return self.readback.compare(_tensors(self.path))

    def start_weight_update(self) -> None:
        _ = self.readback  # created before the first push, if `init_transfer_engine` was not called
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: FileUpdate) -> None:
        self.path = update_info.path
        self.model.load_weights(_tensors(update_info.path))

    def received(self, meeting: BroadcastRendezvous, rank: int, push: str) -> BroadcastResult:
        """Take part in a broadcast. It may be repeated between start_weight_update and finish_weight_update."""
        return self.receiver.receive(meeting, rank, push, self._load, self._undo)

    def _load(self, tensors: list[tuple[str, torch.Tensor]]) -> None:
        self.path = None
        self.readback.note(tensors)
        # A bucket has only a part of the tensors, so a model with a multi-token prediction head would be incomplete.
        with disable_mtp_completeness_check():
            self.model.load_weights(iter(tensors))

    def _undo(self) -> None:
        """Prepare the model for another push after one was torn.

        Layers that have received all of their weights keep the new ones; the others get their old weights back.
        """
        self.readback.forget()
        for layer in self.model.modules():
            info = get_layerwise_info(layer)
            info.loaded_weights.clear()
            info.load_numel = 0
        finalize_layerwise_reload(self.model, self.model_config)
        self.start_weight_update()

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        # A tied lm_head is a separate module that shares the embedding's tensor. The reload processes only the
        # embedding. The head would silently keep the copy that the CPU kernels packed from the *old* weights.
        head = getattr(self.model, "lm_head", None)
        if self.repack_lm_head and head is not None and hasattr(head, "quant_method"):
            head.quant_method.process_weights_after_loading(head)

    def shutdown(self) -> None:
        self.receiver.leave()


def _tensors(path: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield name and tensor of everything in a safetensors file."""
    from safetensors import safe_open

    with safe_open(path, framework="pt", device="cpu") as f:
        for name in f.keys():  # noqa: SIM118 - not a mapping, it has no __iter__
            yield name, f.get_tensor(name)


WeightTransferEngineFactory.register_engine("file", FileWeightTransferEngine)
