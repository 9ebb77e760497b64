"""OpenRLHF's example scripts, translated (examples/openrlhf), on the real stack: each as it stands, with a tiny model,
tiny numbers and two updates."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from openrlhf_tir.logs import metrics

from .support.tiny_model import make_model, save_tiny

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples/openrlhf"
SMALL = {
    "actor.num_gpus_per_node": 1,
    "ref.num_gpus_per_node": 1,
    "vllm.num_engines": 1,
    "vllm.tensor_parallel_size": 1,
    "vllm.kv_cache_mib": 64,
    "vllm.max_num_seqs": 16,
    "ds.param_dtype": "fp32",
    "ds.attn_implementation": "eager",
    "ds.packing_samples": "false",
    "actor.adam.lr": 1e-3,
    "rollout.batch_size": 4,
    "rollout.max_new_tokens": 16,
    "rollout.drift_check": 0,
    "data.max_len": 128,
    "train.batch_size": 16,
    "train.max_steps": 2,
    "ckpt.save_steps": 1,
}
"""What every script is given: nothing about its method."""
WITH_CRITIC = {
    "critic.num_gpus_per_node": 1,
    "rollout.n_samples_per_prompt": 4,
    "train.batch_size": 8,
    "train.max_steps": 4,
    "ckpt.save_steps": 2,
}
OF_GROUPS = {"rollout.n_samples_per_prompt": 4}
MORE = {
    "ppo": {**WITH_CRITIC, "reward.num_gpus_per_node": 1, "reward.normalize_enable": "false"},
    "remote_reward": WITH_CRITIC,
    **dict.fromkeys(("reinforce", "reinforce_baseline", "grpo", "rloo", "dr_grpo", "lora", "agent_async"), OF_GROUPS),
}
EVEN = """import torch


def reward_func(queries, prompts, labels, **kwargs):
    sums = [sum(map(ord, query[len(prompt) :])) for query, prompt in zip(queries, prompts)]
    even = torch.tensor([float(s % 2 == 0) for s in sums])
    return {"rewards": even, "scores": even}
"""
"""A reward that a model which knows nothing has now and then."""


def save_reward_model(directory: Path) -> None:
    import transformers

    base = make_model(1, scale=8.0)
    base.config.num_labels = 1
    made = transformers.Qwen2ForSequenceClassification(base.config)
    made.model.load_state_dict(base.model.state_dict())
    save_tiny(directory)
    (directory / "model.safetensors").unlink()
    made.save_pretrained(directory)


@pytest.mark.parametrize("script", MORE)
def test_a_script_trains(script, tmp_path):
    save_tiny(tmp_path / "model", scale=1.0)
    save_reward_model(tmp_path / "rm")
    (tmp_path / "even.py").write_text(EVEN)
    rows = [
        {"prompt": f"{n}+{n}?", "label": str(2 * n), "context_messages": [{"role": "user", "content": f"{n}+{n}?"}]}
        for n in range(64)
    ]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    here = {
        "actor.model_name_or_path": tmp_path / "model",
        "data.prompt_dataset": tmp_path / "rows.json",
        "run-dir": tmp_path / "run",
    }
    if script == "ppo":
        here["reward.model_name_or_path"] = tmp_path / "rm"
    elif script != "agent_async":
        here["reward.remote_url"] = tmp_path / "even.py"
    flags = [word for name, value in {**SMALL, **MORE[script], **here}.items() for word in (f"--{name}", str(value))]
    (tmp_path / "openrlhf-tir").write_text(f'#!/bin/sh\nexec {sys.executable} -m openrlhf_tir.cli "$@"\n')
    (tmp_path / "openrlhf-tir").chmod(0o755)
    env = os.environ | {
        "TIR": str(tmp_path / "openrlhf-tir"),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "DS_ACCELERATOR": "cpu",
    }
    command = ["bash", EXAMPLES / f"{script}.sh", *flags, "--filter.names"]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]

    columns = metrics.read(tmp_path / "run")
    steps = SMALL["train.max_steps"] if script not in ("ppo", "remote_reward") else WITH_CRITIC["train.max_steps"]
    assert columns["step"][-1] == steps and all(np.isfinite(columns["loss"]))
    assert max(columns["canary_max_diff"]) <= 1e-4, "the engine had the learner's weights"
    model = {"ppo": "llama3-8b-rlhf", "remote_reward": "llama3-8b-rlhf"}.get(script, "model")
    assert (tmp_path / "run" / model / "model.safetensors").exists()
    if script == "remote_reward":
        return
    assert (tmp_path / f"run/ckpt/step_{steps:06d}_hf/config.json").exists()
    if script == "ppo":
        assert all(np.isfinite(columns["critic_loss"])) and columns["kl_coef"] == [0.01] * len(columns["step"])
        return
    assert [*(tmp_path / "run/runs").iterdir()], "event files"
    if script == "lora":
        assert (tmp_path / "run/model/adapter/adapter_model.safetensors").exists()
    if script == "agent_async":
        assert all(1 <= tries <= 2 for tries in columns["reward/tries"]) and max(columns["staleness_max"]) <= 2
