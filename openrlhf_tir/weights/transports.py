"""Choose the transport of a run's weight pushes by its configuration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..config import Config
from ..waiting.deadlines import Deadline, broadcast_deadline
from .broadcast.transport import BroadcastTransport, Deadlines
from .file_transport import FileTransport
from .ipc.transport import IpcTransport
from .transport import Transport


def transport_of(
    cfg: Config, learner: Any, directory: Path, *, gpus: bool, place: Callable[[], Path] | None = None
) -> Transport:
    """Return the transport that vllm.sync_backend names.

    Args:
        cfg: The run's configuration.
        learner: The learner; it implements ports.Broadcasts and ports.Exposes.
        directory: Where files for the engines go.
        gpus: True if the run is on GPUs. Without them nothing is shared by CUDA IPC.
        place: Returns the directory to use now, if engines may move to other nodes during the run.
    """
    push = Deadline.of(cfg, "timeouts.push_s")
    if cfg.push_backend in ("gloo", "nccl"):
        return BroadcastTransport(learner, cfg.vllm.world_size, Deadlines(push, broadcast_deadline(cfg)))
    by_file = FileTransport(learner, directory, delta=cfg.vllm.pushes_changes, deadline=push, place=place)
    if cfg.push_backend == "ipc" and gpus:
        return IpcTransport(learner, by_file, push)
    return by_file
