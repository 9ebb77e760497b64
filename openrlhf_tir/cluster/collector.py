"""Python's cycle collector in a process that holds thousands of trajectories: what it is told once all is loaded."""

from __future__ import annotations

import gc

YOUNG = 10_000
"""Objects more than were freed, between two collections of the youngest. Python's 700 are a few turns' worth: with
10,000 live trajectories the collector, which finds next to nothing, took a third of the CPU of a turn. What cycles hold
meanwhile is some MiB."""


def settle() -> None:
    """What is loaded stays to the end, and is looked through no more; what comes is looked through less often. To be
    called when the start is over."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])
