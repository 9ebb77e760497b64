"""What an emulated run of the workload is told: its sizes, and limits that nothing meets."""

from __future__ import annotations

from typing import Any

from openrlhf_tir.config import Config
from openrlhf_tir.simulation.workload import Workload

ENV = "sleeping"
PATIENCE_S = 3600.0
"""Wall-clock deadline of groups and calls: nothing may fail because two cores were busy."""


def workload_config(w: Workload, run_dir: str = "runs/emulated", **sections: dict[str, Any]) -> Config:
    """`sections` add to the fields of the workload's, or replace them."""
    tree: dict[str, Any] = {
        "run_dir": run_dir,
        "actor": {"num_gpus_per_node": 1},
        "rollout": {
            "batch_size": w.prompts,
            "n_samples_per_prompt": w.samples_per_prompt,
            "max_new_tokens": 1_000_000,
            "group_deadline_s": PATIENCE_S,
            "drift_check": 0.0,  # the emulated engine's tokens say nothing
        },
        "vllm": {"max_num_seqs": w.engine.max_running},
        "algo": {"advantage": {"estimator": "group_norm"}},  # with which all settings of the pipeline go
        "env": {
            "name": ENV,
            "protocol": "retool",
            "max_calls": w.tool_calls,
            "max_concurrency": w.env_capacity,
            "output_max_tokens": 100_000,
            "step_timeout_s": PATIENCE_S,
        },
        "data": {"max_len": 2_000_000},
    }
    for name, fields in sections.items():
        tree[name] = tree.get(name, {}) | fields
    return Config.model_validate(tree)
