"""File backend: a safetensors file -> a running vLLM worker's model. Lives in the worker process; works on CPU and GPU.

It is one more backend of vLLM's weight-transfer API, beside vLLM's own nccl and ipc, so that one code path drives all of them:

    start_weight_update -> every layer is put back into the shape that a checkpoint fills
    update_weights      -> the file's tensors, in HF names, go through the model's own loader
    finish_weight_update-> layers are processed (fused, packed) again

Importing this module registers the backend: vLLM imports it in every worker because `worker_extension_cls` names WorkerExtension.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

EXTENSION = f"{__name__}.WorkerExtension"


class WorkerExtension:
    """Adds nothing to the worker; naming it is what makes vLLM import this module there."""


@dataclass
class FileInit(WeightTransferInitInfo):
    repack_lm_head: bool = True
    """False only in the test that shows what the canary is for."""


@dataclass
class FileUpdate(WeightTransferUpdateInfo):
    path: str
    """A complete safetensors file that this worker's node sees."""


class FileWeightTransferEngine(WeightTransferEngine[FileInit, FileUpdate]):
    init_info_cls = FileInit
    update_info_cls = FileUpdate
    repack_lm_head = True

    def init_transfer_engine(self, init_info: FileInit) -> None:
        self.repack_lm_head = init_info.repack_lm_head

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: FileUpdate) -> None:
        self.model.load_weights(_tensors(update_info.path))

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        # A tied lm_head is a module of its own that shares the embedding's tensor. The reload processes the embedding, but the
        # head keeps the copy that the CPU kernels packed from the *old* weights, without an error.
        head = getattr(self.model, "lm_head", None)
        if self.repack_lm_head and head is not None and hasattr(head, "quant_method"):
            head.quant_method.process_weights_after_loading(head)

    def shutdown(self) -> None:
        """Does nothing: nothing is held between updates."""


def _tensors(path: str) -> Iterator[tuple[str, torch.Tensor]]:
    from safetensors import safe_open

    with safe_open(path, framework="pt", device="cpu") as f:
        for name in f.keys():  # noqa: SIM118 - not a mapping, it has no __iter__
            yield name, f.get_tensor(name)


WeightTransferEngineFactory.register_engine("file", FileWeightTransferEngine)
