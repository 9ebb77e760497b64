"""Ray: join the cluster this job was submitted to, or start one on this machine. Resources and environment of our actors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ray

from ..config import Config

LOCAL_OBJECT_STORE = 512 << 20


@contextmanager
def ray_session(cfg: Config) -> Iterator[None]:
    """A connection to Ray. Inside `ray job submit` (RAY_ADDRESS is set) or after `ray start`, that cluster; else one of our own.

    Logical CPUs of a local cluster are as many as our actors need: on two cores they share them.
    """
    if os.environ.get("RAY_ADDRESS"):
        ray.init(log_to_driver=cfg.logger.worker_logs, logging_level="warning")
    else:
        actors = cfg.vllm.num_engines + cfg.actor.world_size + 2
        ray.init(
            address="local",  # never a cluster that someone else happens to run here
            num_cpus=max(actors, os.cpu_count() or 1),
            include_dashboard=False,
            log_to_driver=cfg.logger.worker_logs,
            object_store_memory=LOCAL_OBJECT_STORE if not has_gpus() else None,
            logging_level="warning",
        )
    try:
        yield
    finally:
        ray.shutdown()


def has_gpus() -> bool:
    """Whether this node has GPUs; read from the driver's device files, so that torch is not imported for it."""
    return any(Path("/dev").glob("nvidia[0-9]*"))


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
    if not has_gpus():
        env |= {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    return env
