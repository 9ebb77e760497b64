"""Rules of learner rank i and engine i on one GPU: in turns (train.colocate_all) or at the same time
(train.share_gpus). Each rule names the fact that forbids a combination."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..schema import Config

NO_SLEEP_ON_CPU = (
    "vLLM frees and fills GPU memory when an engine sleeps and wakes, on CPU it does nothing, and processes share a"
    " machine's memory in any case. Leave train.colocate_all out."
)
STAND_IN = "torch"
"""rollout.engine whose sleep is a state only, so that turns can be tested where there is no GPU."""


def _sharing_violations(c: Config) -> Iterator[str]:
    """Yield what does not go with train.share_gpus."""
    ranks = c.actor.world_size
    if c.train.colocate_all:
        yield (
            "train.share_gpus keeps learner and engine on the GPU at the same time, train.colocate_all gives it to them"
            " in turns. Set one of them."
        )
    if c.vllm.num_engines > ranks:
        yield (
            f"train.share_gpus puts one engine at most beside each learner rank, and vllm.num_engines ="
            f" {c.vllm.num_engines} are more than the {ranks} ranks. Use {ranks} or fewer, or raise"
            " actor.num_gpus_per_node."
        )
    if c.vllm.world_size > 1:
        yield (
            f"train.share_gpus with engines of {c.vllm.world_size} GPUs (vllm.tensor_parallel_size, pipeline stages):"
            " Ray gives a process a part of one GPU, not parts of several. Use engines of one GPU, or leave it out."
        )
    if c.vllm.sync_backend == "nccl":
        yield (
            "train.share_gpus with vllm.sync_backend = 'nccl': NCCL refuses two members of a group on one GPU, and"
            " learner and engine are. Use 'file'."
        )
    if c.vllm.kv_cache_mib is None and c.rollout.engine != STAND_IN:
        yield (
            "train.share_gpus needs vllm.kv_cache_mib: without it vLLM measures what is free as it starts, while the"
            " learner beside it takes and gives back memory. Set it, e.g. --vllm.kv_cache_mib 16384 on a card of 80 GiB"
            " (openrlhf-tir size says what fits)."
        )


def violations(c: Config) -> Iterator[str]:
    """Yield what does not go with learner and engine on one GPU, a sentence each."""
    if c.train.share_gpus:
        yield from _sharing_violations(c)
        return
    if not c.train.colocate_all:
        return
    said, ranks = "train.colocate_all", c.actor.world_size
    if c.pipeline.mode != "sync":
        yield (
            f"{said} gives each GPU to a learner rank and an engine in turn, and pipeline.mode = '{c.pipeline.mode}'"
            " trains while engines sample. Use --pipeline.mode sync, or leave it out and give both GPUs of their own"
            " (actor.num_gpus_per_node, vllm.num_engines)."
        )
    if c.vllm.num_engines > ranks:
        yield (
            f"{said} puts one engine at most beside each learner rank, and vllm.num_engines = {c.vllm.num_engines} are"
            f" more than the {ranks} ranks. Use {ranks} or fewer, or raise actor.num_gpus_per_node."
        )
    if c.vllm.world_size > 1:
        yield (
            f"{said} with engines of {c.vllm.world_size} GPUs (vllm.tensor_parallel_size, pipeline stages): Ray gives a"
            " process a part of one GPU, not parts of several. Use engines of one GPU, or leave it out."
        )
    if c.vllm.sync_backend == "nccl":
        yield (
            f"{said} with vllm.sync_backend = 'nccl': NCCL refuses two members of a group on one GPU, and learner and"
            " engine are. Use 'file'."
        )
    if c.ds.zero_stage != 3:
        yield (
            f"{said} moves the states of ZeRO-3 out of the GPU, and ds.zero_stage = {c.ds.zero_stage}."
            " Use 3, or leave it out."
        )
    muon = {
        "actor.optim": c.actor.optim,
        "critic.optim": c.critic.optim if c.algo.advantage.estimator == "gae" else "adam",
    }
    for setting, optim in muon.items():
        if optim == "muon":
            yield (
                f"{said} needs an optimiser whose states DeepSpeed can move, and {setting} = 'muon' is none."
                " Use adam, or leave it out."
            )
