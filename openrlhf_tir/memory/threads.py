"""How many threads a learner rank and an engine compute with where there is no GPU.

In mode sync learner and engines work in turns: the learner's ranks share all cores of a node, and then its engines and
reward models share them. So it is where only one side is started (config/sections/pipeline.py, ALONE). In the other
modes all of them work at the same time and share the cores. More threads than cores slow all down by orders of
magnitude.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from ..config import Config
from ..machine.cores import usable_cores
from .model_size import parameters

PARAMETERS_PER_THREAD = 64_000_000
"""A model has at most one thread for so many parameters. On two cores two threads are faster for SmolLM2 with 134.5
million. Smaller models keep the one thread with which they were measured; where the bound should be was not tried."""


class Threads(NamedTuple):
    """Threads of each process on a node without GPUs.

    Attributes:
        learner: Of a learner rank.
        engine: Of an engine, or of each of its tensor-parallel workers.
    """

    learner: int
    engine: int


def compute_threads(cfg: Config, cores: int | None = None, environ: Mapping[str, str] = os.environ) -> Threads:
    """Return the threads of the processes of a run.

    Args:
        cfg: The configuration.
        cores: Cores of the node; None to count those that this process may use.
        environ: Environment variables. An OMP_NUM_THREADS above 1 is what the user wants; the launch scripts set 1.
    """
    given = environ.get("OMP_NUM_THREADS", "")
    if given.isdecimal() and int(given) > 1:
        return Threads(int(given), int(given))
    cores = cores or usable_cores()
    most = max(1, (parameters(cfg.actor.model_name_or_path) or 0) // PARAMETERS_PER_THREAD)
    ranks = cfg.actor.world_size // cfg.actor.num_nodes
    engines = -(-cfg.vllm.num_engines * cfg.vllm.world_size // cfg.actor.num_nodes)
    beside = 0 if cfg.pipeline.mode == "sync" else 1
    rewards = -(-cfg.reward.replicas // cfg.actor.num_nodes)  # they score while engines roll
    learner = cores // (ranks + beside * (engines + rewards))
    engine = cores // (engines + rewards + beside * ranks)
    return Threads(max(1, min(most, learner)), max(1, min(most, engine)))
