"""Move the optimizer's state off the GPU while engines sample on it (train.colocate_all).

Adam's moments, the fp32 master weights and the gradients move to host memory. The weights stay on the GPU.

    offload -> engines sample -> onload -> optimizer step, or loading of a checkpoint

DeepSpeed does the moving: `engine.offload_states` and `reload_states` of 0.19.8, which need ZeRO-3 and its own
FusedAdam. With ds.adam_offload the optimizer's states are in host memory anyway, and only the gradient buffers move.
This code has never run on a GPU; a test compares its calls with the signatures of the installed DeepSpeed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ..errors import PipelineError

Engines = Callable[[], Mapping[str, Any]]
"""Returns the current DeepSpeed engines of this rank by name: the policy's, and the critic's if there is one."""
BUFFER = "_offload_buffer"
"""Part of the keys under which DeepSpeed stores the host copies of Adam's moments in the optimizer's own state."""


class DeviceStates:
    """Moves the state of this rank's engines, and knows where it is.

    `offload` and `onload` are collective and idempotent. On a CPU nothing moves, but `require_on_device` raises after
    `offload` there as well: so a test without a GPU sees calls in the wrong order.
    """

    def __init__(self, engines: Engines, device: str) -> None:
        """Begin with the state on the device.

        Args:
            engines: Returns the engines.
            device: "cpu", or "cuda:N".
        """
        self.engines = engines
        self.on_gpu = device != "cpu"
        self.offloaded = False

    def require_on_device(self, operation: str) -> None:
        """Raise PipelineError if the state is offloaded. `operation` names what needs it, for the message."""
        if self.offloaded:
            raise PipelineError(
                f"{operation} was requested while the optimizer's state of this learner rank is in host memory: the"
                " engines have the GPU now. This is a bug in the order of the calls; please report it."
            )

    def offload(self) -> None:
        """Move the state to host memory."""
        if self.on_gpu and not self.offloaded:
            from deepspeed.runtime.zero.offload_config import OffloadStateTypeEnum

            moved = [
                OffloadStateTypeEnum.optim_states,
                OffloadStateTypeEnum.hp_params,
                OffloadStateTypeEnum.lp_grads,
                OffloadStateTypeEnum.contiguous_grad_buffer,
            ]
            for engine in self.engines().values():
                engine.offload_states(include=moved)
            self._release_memory()
        self.offloaded = True

    def onload(self) -> None:
        """Move the state back onto the GPU."""
        if self.on_gpu and self.offloaded:
            self._release_memory()
            for engine in self.engines().values():
                engine.reload_states()
            self._release_memory()
        self.offloaded = False

    @contextmanager
    def without_host_copies(self) -> Iterator[None]:
        """Take DeepSpeed's host copies of the moments out of the optimizers' states while a checkpoint is saved.

        They lie beside the moments themselves: a checkpoint would contain them twice, and a resume would load the
        copies onto the GPU.
        """
        removed: list[tuple[dict[str, Any], dict[str, Any]]] = []
        for engine in self.engines().values():
            for state in engine.optimizer.optimizer.state.values():
                copies = {key: state.pop(key) for key in [k for k in state if BUFFER in str(k)]}
                removed.append((state, copies))
        try:
            yield
        finally:
            for state, copies in removed:
                state.update(copies)

    @staticmethod
    def _release_memory() -> None:
        """Wait until every rank has moved its state, and return torch's cached GPU memory to the driver.

        The engine is another process: it cannot use what torch keeps cached here.
        """
        import torch

        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.distributed.barrier()
