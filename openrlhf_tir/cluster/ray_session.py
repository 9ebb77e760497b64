"""Ray: join the cluster this job was submitted to, or start one on this machine. Resources and environment of our actors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from ..config import Config
from ..deadlines import Deadline, within
from ..errors import ClusterFull, DeadlineMissed
from ..machine import gpu_count

LOCAL_OBJECT_STORE = 512 << 20
START_ATTEMPTS = 3
START_TIMED_OUT = "timed out during startup"


@contextmanager
def ray_session(cfg: Config) -> Iterator[None]:
    """A connection to Ray. Inside `ray job submit` (RAY_ADDRESS is set) or after `ray start`, that cluster; else one of our own.

    Logical CPUs of a local cluster are as many as our actors need: on two cores they share them.
    """
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray's coming default; it warns where neither is chosen
    if os.environ.get("RAY_ADDRESS"):
        ray.init(log_to_driver=cfg.logger.worker_logs, logging_level="warning")
    else:
        _start_local(cfg)
    try:
        yield
    finally:
        ray.shutdown()


def _start_local(cfg: Config) -> None:
    """A Ray of our own. It gives its daemons 30 s to come up, which a busy machine can miss: then they get another chance."""
    rewarding = cfg.reward.model_replicas if cfg.reward.model_name_or_path else 0
    actors = cfg.vllm.num_engines + cfg.actor.world_size + rewarding + 2
    for left in reversed(range(START_ATTEMPTS)):
        try:
            ray.init(
                address="local",  # never a cluster that someone else happens to run here
                num_cpus=max(actors, os.cpu_count() or 1),
                include_dashboard=False,
                log_to_driver=cfg.logger.worker_logs,
                object_store_memory=LOCAL_OBJECT_STORE if not gpu_count() else None,
                logging_level="warning",
            )
            return
        except Exception as e:  # Ray raises nothing narrower here
            if START_TIMED_OUT not in str(e) or not left:
                raise
            ray.shutdown()


async def place(bundles: list[dict[str, float]], strategy: str, what: str, cfg: Config) -> PlacementGroup:
    """Reserve resources. Raises ClusterFull when the cluster does not have them free within timeouts.placement_s (a restart by the launcher:
    and train.start_wait_s); then, and when the caller is cancelled, nothing stays reserved.
    """
    group = placement_group(bundles, strategy=strategy)
    try:
        patience = Deadline.of(cfg, "timeouts.placement_s") + Deadline.of(cfg, "train.start_wait_s")
        await within(patience, _ready(group), f"The reservation for {what}")
    except DeadlineMissed:
        remove_placement_group(group)
        free, total = ({k: v for k, v in r.items() if k in ("CPU", "GPU")} for r in (ray.available_resources(), ray.cluster_resources()))
        raise ClusterFull(
            f"The Ray cluster has no room for {what}: {bundles} ({strategy}) is wanted, {free} of {total} is free. "
            "Start Ray with more (ray start --num-cpus), or ask for fewer engines or ranks (vllm.num_engines, actor.num_gpus_per_node)."
        ) from None
    except BaseException:
        remove_placement_group(group)
        raise
    return group


async def _ready(group: PlacementGroup) -> None:
    await group.ready()


def worker_env(cfg: Config) -> dict[str, str]:
    """Environment variables of every actor. One thread each: more on shared cores is catastrophic."""
    env = {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONWARNINGS": "ignore::FutureWarning",
        "PYTHONUNBUFFERED": "1",
    }
    for secret in (cfg.env.token_env, "WANDB_API_KEY"):
        if secret in os.environ:
            env[secret] = os.environ[secret]
    if not gpu_count():
        env |= {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    return env
