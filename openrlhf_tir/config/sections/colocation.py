"""Rules of learner rank i and engine i on one GPU: in turns (train.colocate_all) or at the same time
(train.share_gpus). Each rule names the fact that forbids a combination."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .conditions import estimator_of

if TYPE_CHECKING:
    from ..schema import Config
    from ..setting import Fault

NO_SLEEP_ON_CPU = (
    "vLLM frees and fills GPU memory when an engine sleeps and wakes, on CPU it does nothing, and processes share a"
    " machine's memory in any case. Leave train.colocate_all out."
)
STAND_IN = "torch"
"""rollout.engine whose sleep is a state only, so that turns can be tested without a GPU."""


def _engines_beside_ranks(c: Config, setting: str) -> Iterator[Fault]:
    """Yield what does not go with one engine beside each learner rank, which both settings need."""
    ranks = c.actor.world_size
    if c.vllm.num_engines > ranks:
        yield (
            f"{setting} puts one engine at most beside each learner rank, and vllm.num_engines ="
            f" {c.vllm.num_engines} are more than the {ranks} ranks. Use {ranks} or fewer, or raise"
            " actor.num_gpus_per_node."
        )
    if c.vllm.world_size > 1:
        yield (
            f"{setting} with engines of {c.vllm.world_size} GPUs (vllm.tensor_parallel_size, pipeline stages):"
            " Ray gives a process a part of one GPU, not parts of several. Use engines of one GPU, or leave it out."
        )
    if c.vllm.sync_backend == "nccl":
        yield (
            f"{setting} with vllm.sync_backend = 'nccl': NCCL refuses two members of a group on one GPU, and"
            " learner and engine are. Use 'file'."
        )


def rank_and_engine_share_a_gpu(c: Config) -> Iterator[Fault]:
    """Yield what does not go with train.share_gpus."""
    if not c.train.share_gpus:
        return
    if c.train.colocate_all:
        yield (
            "train.share_gpus keeps learner and engine on the GPU at the same time, train.colocate_all gives it to them"
            " in turns. Set one of them."
        )
    yield from _engines_beside_ranks(c, "train.share_gpus")
    if c.vllm.kv_cache_mib is None and c.rollout.engine != STAND_IN:
        yield (
            "train.share_gpus needs vllm.kv_cache_mib: without it vLLM measures what is free as it starts, while the"
            " learner beside it takes and gives back memory. Set it, e.g. --vllm.kv_cache_mib 16384 on a card of 80 GiB"
            " (openrlhf-tir size says what fits)."
        )


def rank_and_engine_take_turns(c: Config) -> Iterator[Fault]:
    """Yield what does not go with train.colocate_all."""
    if not c.train.colocate_all or c.train.share_gpus:
        return
    if c.pipeline.mode != "sync":
        yield (
            "train.colocate_all gives each GPU to a learner rank and an engine in turn, and pipeline.mode ="
            f" '{c.pipeline.mode}' trains while engines sample. Use --pipeline.mode sync, or leave it out and give both"
            " GPUs of their own (actor.num_gpus_per_node, vllm.num_engines)."
        )
    yield from _engines_beside_ranks(c, "train.colocate_all")
    if c.ds.zero_stage != 3:
        yield (
            f"train.colocate_all moves the states of ZeRO-3 out of the GPU, and ds.zero_stage = {c.ds.zero_stage}."
            " Use 3, or leave it out."
        )
    yield from _states_that_stay("actor.optim", c.actor.optim)


def critic_can_be_moved(c: Config) -> Iterator[Fault]:
    """Yield that DeepSpeed cannot move the states of the critic's optimiser out of the GPU."""
    if c.train.colocate_all and not c.train.share_gpus and estimator_of(c).critic:
        yield from _states_that_stay("critic.optim", c.critic.optim)


def _states_that_stay(setting: str, optimiser: str) -> Iterator[Fault]:
    if optimiser == "muon":
        yield (
            f"train.colocate_all needs an optimiser whose states DeepSpeed can move, and {setting} = 'muon' is not"
            " one. Use adam, or leave it out."
        )
