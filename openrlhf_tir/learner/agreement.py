"""Agreement: one rank's fault is every rank's. A rank that leaves a collective method alone keeps the others in it
until their deadline.

what the disk refuses between two collectives is kept, and the rank goes through the rest with the others
agree(fault)                collective: then all raise it, or none
"""

from __future__ import annotations

import errno

import torch.distributed as dist


def agree(fault: OSError | None) -> None:
    """Collective. Raises OSError on every rank when one or more have met a fault: the first one's, with its rank."""
    faults: list[tuple[int | None, str] | None] = [None] * dist.get_world_size()
    dist.all_gather_object(faults, None if fault is None else (fault.errno, str(fault)))
    for rank, said in enumerate(faults):
        if said is not None:
            raise OSError(said[0] or errno.EIO, f"learner rank {rank}: {said[1]}") from fault
