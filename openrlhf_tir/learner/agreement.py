"""Let a disk error of one rank fail the collective call on every rank.

A rank that leaves a collective method alone keeps the other ranks waiting in it until their deadline. So code between
two collectives stores its OSError, runs the remaining collectives with the others, and passes the error to `agree`,
after which either every rank raises or none does.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import torch.distributed as dist


def agree(fault: OSError | None) -> None:
    """Raise OSError on every rank if any rank passes an error. Collective.

    Args:
        fault: The error of this rank; None if it had none.

    Raises:
        OSError: The error of the lowest rank that had one, with its number in the message.
    """
    faults: list[tuple[int | None, str] | None] = [None] * dist.get_world_size()
    dist.all_gather_object(faults, None if fault is None else (fault.errno, str(fault)))
    for rank, error in enumerate(faults):
        if error is not None:
            error_number, message = error
            raise OSError(error_number or errno.EIO, f"learner rank {rank}: {message}") from fault


def only_on_rank_0(rank: int, step: Callable[..., None], *args: Any) -> None:
    """Call `step(*args)` on rank 0. Collective.

    Raises:
        OSError: On every rank if `step` raised one.
    """
    fault = None
    if rank == 0:
        try:
            step(*args)
        except OSError as error:
            fault = error
    agree(fault)
