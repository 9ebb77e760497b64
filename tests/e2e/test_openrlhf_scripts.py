"""OpenRLHF scripts of our own (examples/openrlhf) on the real stack: each is imported as it stands and rehearsed with a
tiny model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from openrlhf_tir.telemetry import metrics

from .support.tiny_model import make_model, save_tiny

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples/openrlhf"
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


SCRIPTS = sorted(path.stem for path in EXAMPLES.glob("*.sh"))


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_is_rehearsed(script, tmp_path):
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
        "rollout.drift_check": 0,
        "rollout.max_new_tokens": 16,
    }
    if script == "ppo":
        here |= dict.fromkeys(("reward.model_name_or_path", "critic.model_name_or_path"), tmp_path / "rm")
        here["reward.normalize_enable"] = "false"
    elif script != "agent_async":
        here["reward.remote_url"] = tmp_path / "even.py"
    flags = [word for name, value in here.items() for word in (f"--{name}", str(value))]
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cpu"}
    program = [sys.executable, "-m", "openrlhf_tir.cli", "import-openrlhf", "--rehearse"]
    command = [*program, str(EXAMPLES / f"{script}.sh"), "--run", *flags]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]

    columns = metrics.read(tmp_path / "run")
    assert columns["step"][-1] in (2, 4) and all(np.isfinite(columns["loss"]))
    assert max(columns["canary_max_diff"]) <= 1e-4, "the engine had the learner's weights"
    model = {"ppo": "llama3-8b-rlhf", "remote_reward": "llama3-8b-rlhf"}.get(script, "model")
    assert (tmp_path / "run" / model / "model.safetensors").exists()
    if script in ("ppo", "remote_reward"):
        assert all(np.isfinite(columns["critic_loss"])) and columns["kl_coef"] == [0.01] * len(columns["step"])
    if script == "lora":
        assert (tmp_path / "run/model/adapter/adapter_model.safetensors").exists()
    if script == "agent_async":
        assert all(1 <= tries <= 2 for tries in columns["reward/tries"]) and max(columns["staleness_max"]) <= 2
