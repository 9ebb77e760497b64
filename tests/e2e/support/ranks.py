"""Processes of learner ranks, forked from one that has imported DeepSpeed: an import takes longer than most tests.

What forked ranks do not show: an order of sets that differs from rank to rank (they have one seed of hashes; Ray's
ranks, in test_train.py, have one each), and what happens as an interpreter ends (they end by `os._exit`). Their CPU
time is not among that of a test in `tests/run.sh cost`.
"""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Callable
from typing import Any

PRELOADED = ["openrlhf_tir.learner.zero3", "transformers.models.qwen2.modeling_qwen2", "peft"]


def run_ranks(function: Callable[..., None], *groups: tuple[Any, ...]) -> None:
    """Call `function(rank, *group)` in a process for every rank of every group, all of them at the same time.

    Args:
        function: What a rank does.
        *groups: Its arguments in one process group each, the first of which is the number of ranks.
    """
    import torch.multiprocessing as mp

    multiprocessing.set_forkserver_preload(PRELOADED)
    contexts = [
        mp.start_processes(_settled, (function, *group), nprocs=group[0], join=False, start_method="forkserver")
        for group in groups
    ]
    try:
        for context in contexts:
            while not context.join(timeout=180):
                pass
    finally:
        for process in (process for context in contexts for process in context.processes):
            process.kill()
            process.join()


def _settled(rank: int, function: Callable[..., None], *group: Any) -> None:
    """Call `function` in a process whose collections of garbage leave out what was imported, as a run's ranks do."""
    gc.freeze()
    function(rank, *group)
