"""Settings of Python's cycle collector for a process that holds thousands of trajectories."""

from __future__ import annotations

import gc

YOUNG = 10_000
"""Surplus of new over freed objects after which the youngest generation is collected.

Python's 700 are a few turns' worth: with 10,000 live trajectories the collector, which finds almost nothing, took a
third of the CPU of a turn. Cycles hold a few MiB until they are collected.
"""


def settle() -> None:
    """Exclude everything that is loaded from further collections, and collect less often. Call it at the end of the
    start."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])
