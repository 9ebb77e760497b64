"""Device states: what of a rank leaves the GPU while engines sample on it (train.colocate_all): Adam's moments, fp32
masters, gradients. The weights stay.

    offload ->  ...  -> onload ->  a step, or the loading of a checkpoint

DeepSpeed moves them (engine.offload_states, reload_states of 0.19.8, ZeRO-3 with its own FusedAdam); with
ds.adam_offload its own optimiser has them in host memory already, and only what gradients are gathered in moves. Never
run on a GPU: signatures are checked against the installed DeepSpeed by a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from ..errors import PipelineError

Engines = Callable[[], Mapping[str, Any]]
"""The DeepSpeed engines of this rank by name, as they are now: policy, critic."""
BUFFER = "_offload_buffer"
"""In the names under which DeepSpeed keeps the host copies of Adam's moments, in the optimiser's own state."""


class DeviceStates(Protocol):
    """Calls are idempotent, and collective."""

    def offload(self) -> None: ...
    def onload(self) -> None: ...
    def needed(self, what: str) -> None:
        """Raises PipelineError while they are offloaded: `what` needs them."""

    def saved(self) -> Any:
        """In it the optimisers' states are those of a rank that never offloads: what a checkpoint is to hold."""


class _Turns:
    """What both kinds know: where the states are."""

    def __init__(self) -> None:
        self.offloaded = False

    def needed(self, what: str) -> None:
        if self.offloaded:
            raise PipelineError(
                f"{what} of a learner rank whose states are in host memory: it is the engines' turn on the GPU."
                " A bug in the turns."
            )


class DeepSpeedStates(_Turns):
    def __init__(self, engines: Engines) -> None:
        super().__init__()
        self.engines = engines

    def offload(self) -> None:
        from deepspeed.runtime.zero.offload_config import OffloadStateTypeEnum

        if self.offloaded:
            return
        moved = [
            OffloadStateTypeEnum.optim_states,
            OffloadStateTypeEnum.hp_params,
            OffloadStateTypeEnum.lp_grads,
            OffloadStateTypeEnum.contiguous_grad_buffer,
        ]
        for engine in self.engines().values():
            engine.offload_states(include=moved)
        self._settled()
        self.offloaded = True

    def onload(self) -> None:
        if not self.offloaded:
            return
        self._settled()
        for engine in self.engines().values():
            engine.reload_states()
        self._settled()
        self.offloaded = False

    @contextmanager
    def saved(self) -> Iterator[None]:
        """DeepSpeed's host copies of the moments are entries of the optimiser's state beside the moments themselves: a
        checkpoint would hold them twice, and a resume would take them to the GPU."""
        kept: list[tuple[dict[str, Any], dict[str, Any]]] = []
        for engine in self.engines().values():
            for state in engine.optimizer.optimizer.state.values():
                copies = {key: state.pop(key) for key in [k for k in state if BUFFER in str(k)]}
                kept.append((state, copies))
        try:
            yield
        finally:
            for state, copies in kept:
                state.update(copies)

    @staticmethod
    def _settled() -> None:
        """Every rank has freed or filled its memory, and torch keeps none of it for itself: the process beside this one
        is to have it."""
        import torch

        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.distributed.barrier()


class StandInForTests(_Turns):
    """Where there is no GPU nothing is moved: the order of the calls is kept to, and written down."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def offload(self) -> None:
        self.offloaded = True
        self.calls.append("offload")

    def onload(self) -> None:
        self.offloaded = False
        self.calls.append("onload")

    @contextmanager
    def saved(self) -> Iterator[None]:
        yield


def device_states(engines: Engines, device: str) -> DeviceStates:
    return StandInForTests() if device == "cpu" else DeepSpeedStates(engines)
