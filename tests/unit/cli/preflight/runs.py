"""Runs that preflight is asked about: what passes on these two machines, and what it says of one that does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from openrlhf_tir.cli.preflight import Machine, check
from openrlhf_tir.config.settings import load
from openrlhf_tir.errors import ConfigError

CPU = Machine(
    gpus=0,
    cpus=2,
    bf16=True,
    shm_free=1 << 30,
    memory=(2 << 30, 24 << 30),
    gpu_bytes=None,
    has_module=lambda name: True,
    isolation_fault=lambda: None,
)
GPUS = replace(CPU, gpus=4, cpus=32, memory=(2 << 30, 256 << 30), gpu_bytes=80 << 30)
ON_CPU = {
    "ds.attn_implementation": "sdpa",
    "vllm.sync_backend": "file",
    "actor.num_gpus_per_node": 1,
    "rollout.batch_size": 2,
    "rollout.n_samples_per_prompt": 2,
}


def refused(ready, machine=CPU, error=ConfigError, **overrides) -> str:
    with pytest.raises(error) as e:
        check(load(None, {**ready, **{k.replace("__", "."): v for k, v in overrides.items()}}), machine=machine)
    return str(e.value)
