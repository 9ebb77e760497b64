"""Settings of Python's cycle collector for a process that imports torch or holds thousands of trajectories."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG = 10_000
"""Surplus of new over freed objects after which the youngest generation is collected.

Python's 700 are a few turns' worth: with 10,000 live trajectories the collector, which finds almost nothing, took a
third of the CPU of a turn. Cycles hold a few MiB until they are collected.
"""


def collect_rarely() -> None:
    """Collect the youngest generation less often. Call it before heavy imports.

    With Python's own threshold a fifth of the CPU that the import of torch, transformers and DeepSpeed takes goes into
    looking for cycles among objects that stay for good.
    """
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])


@contextmanager
def importing() -> Iterator[None]:
    """Collect less often in a block of imports only, for a process in which a late collection would hold tensors."""
    before = gc.get_threshold()
    collect_rarely()
    try:
        yield
    finally:
        gc.set_threshold(*before)


def freeze_what_is_loaded() -> None:
    """Exclude everything that is loaded from further collections, and collect less often. Call it at the end of the
    start."""
    gc.collect()
    gc.freeze()
    collect_rarely()
