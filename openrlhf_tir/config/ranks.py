"""Learner ranks of a configuration that does not set `actor.num_gpus_per_node`: what this machine has.

on a cluster               the field's default: the head may have no GPU
GPUs on this machine       those that engines and reward models leave (all of them where engines are beside ranks), or
                           fewer where a batch does not divide over as many; a fine-tuning has neither engines nor
                           reward models, and its batch is sft.batch_size
none                       one rank: ranks of one machine share its cores, and each holds its own activations
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from ..machine.gpus import usable_gpus
from .schema import Config
from .sections.learner import Ds


def runs_here(cfg: Config, environ: Mapping[str, str] = os.environ) -> bool:
    """Return True if the run uses this machine alone. Otherwise the GPUs are a cluster's, whose head may have none.

    Args:
        cfg: The run's configuration.
        environ: The environment, whose RAY_ADDRESS says that the run is one of a cluster. An empty one says nothing.
    """
    return cfg.actor.num_nodes == 1 and not environ.get("RAY_ADDRESS")


def ranks_of_machine(
    cfg: Config, *, fine_tuning: bool = False, gpus: int | None = None, environ: Mapping[str, str] = os.environ
) -> Config:
    """Return the configuration with as many learner ranks as this machine has room for, unless it says how many.

    Args:
        fine_tuning: Whether the run is a fine-tuning, which has learner ranks alone.
        gpus: GPUs of this machine; counted unless given.
        environ: The environment; see `runs_here`.
    """
    if "num_gpus_per_node" in cfg.actor.model_fields_set or not runs_here(cfg, environ):
        return cfg
    here = usable_gpus() if gpus is None else gpus
    if fine_tuning:
        return _with_ranks(cfg, _most_ranks(cfg.ds, here, cfg.sft.batch_size, cfg.sft.batch_size))
    engines = 0 if cfg.engines_beside_ranks else cfg.vllm.num_engines * cfg.vllm.world_size
    samples = cfg.rollout.batch_size * cfg.rollout.n_samples_per_prompt
    left = here - engines - cfg.reward.replicas
    return _with_ranks(cfg, _most_ranks(cfg.ds, left, samples, cfg.train.batch_size or samples))


def _most_ranks(ds: Ds, gpus: int, batch: int, update: int) -> int:
    """Return the most ranks that the rules accept; 1 if they accept no number.

    Args:
        ds: Its rings are of ranks that share their sequences, and its secondary partition must divide the ranks.
        gpus: Ranks at most.
        batch: Samples that must divide over the rings.
        update: Samples of an update, of which every ring needs one.
    """
    ring = ds.ring_attn_size
    accepted = (
        rings * ring
        for rings in range(min(gpus // ring, update), 0, -1)
        if batch % rings == 0 and rings * ring % min(ds.zpg, rings * ring) == 0
    )
    return next(accepted, 1)


def _with_ranks(cfg: Config, ranks: int) -> Config:
    return cfg.model_copy(update={"actor": cfg.actor.model_copy(update={"num_gpus_per_node": ranks})})
