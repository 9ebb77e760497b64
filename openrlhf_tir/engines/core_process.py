"""Fork vLLM's engine process from the process that starts the engine, where no GPU forbids it.

vLLM spawns its EngineCore beside a CPU engine and in every Ray actor. A spawned process imports torch, transformers and
vLLM a second time, which is 8 to 9 CPU seconds of a start on two cores and a third of a gigabyte. A forked one has them
and shares the pages.

What makes the fork safe here:

    CUDA            never: the caller decides by `gpu`
    OpenMP          GNU's runtime does not survive a fork once it has a pool of threads; with one thread it has none
    Ray's threads   they hold locks that a fork would copy, but nothing in EngineCore calls Ray. The workers of tensor
                    parallelism are spawned: vLLM's platform for CPUs sets VLLM_WORKER_MULTIPROC_METHOD to that, and
                    then asks Ray nothing
    Ray's sockets   the child gives them up at once: Ray sees that an actor died by its socket
"""

from __future__ import annotations

import gc
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.context import ForkContext, ForkProcess
from pathlib import Path

from ..machine.replaced import replaced

OPEN_FILES = Path("/proc/self/fd")
STANDARD_STREAMS = 3
"""Descriptors below it are standard input, output and error."""


def may_fork(*, gpu: bool) -> bool:
    """Return True if vLLM's engine process can be a fork of this one."""
    import torch

    return not gpu and os.environ.get("OMP_NUM_THREADS") == "1" and torch.get_num_threads() == 1


@contextmanager
def forked_core() -> Iterator[None]:
    """Within the block vLLM forks its engine process; its workers, if it has several, are spawned by that process."""
    from vllm.v1.engine import utils

    # The child would otherwise copy every page with an object of Python's as soon as it collects garbage.
    gc.collect()
    gc.freeze()
    try:
        with replaced(utils, "get_mp_context", _Context):
            yield
    finally:
        gc.unfreeze()


class _Process(ForkProcess):
    """A forked process without the sockets and the title of its parent."""

    def run(self) -> None:
        give_up_sockets()
        # Ray has given this process a title, which vLLM replaces only where the package setproctitle is installed.
        if "ray._raylet" in sys.modules:
            sys.modules["ray._raylet"].setproctitle(f"VLLM::{self.name}")
        super().run()


class _Context(ForkContext):
    """What vLLM asks for a process and for a queue."""

    Process = _Process


def give_up_sockets() -> None:
    """Replace all inherited sockets by /dev/null.

    They are not closed: objects of the parent's threads still know their numbers and close them when they are
    collected, and a number that was free might by then be a socket of vLLM's. What vLLM passes to the process must be
    no socket: its queues, and its pipes of one direction, are pipes.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir(OPEN_FILES):
        number = int(name)
        is_socket = False
        with suppress(OSError):  # the descriptor of the directory itself is gone by now
            is_socket = stat.S_ISSOCK(os.fstat(number).st_mode)
        if is_socket and number >= STANDARD_STREAMS:
            os.dup2(null, number, inheritable=False)
    os.close(null)
