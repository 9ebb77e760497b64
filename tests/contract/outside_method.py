"""A method from outside the package: one directory with a recipe and one file, made of the documentation's blocks."""

from __future__ import annotations

import json
from pathlib import Path

from .docs.docs_blocks import block

RECIPE = """
run_dir = "run"

[actor]
model_name_or_path = "model"
num_gpus_per_node = 1
learning_rate = 1e-3
policy_loss_type = "method.py:plain_gradient"

[ds]
param_dtype = "fp32"
attn_implementation = "eager"

[rollout]
engine = "torch"
batch_size = 2
n_samples_per_prompt = 8
max_new_tokens = 96

[env]
name = "guess"
file = "method.py:GuessEnv"
protocol = "method.py:Digits"
max_calls = 2
options = { before = " -> " }

[reward]
name = "method.py:earned"
options = { bonus = 0.2 }
group = "method.py:fewest_calls"

[filter]
names = ["reward", "zero_variance", "method.py:not_too_long"]
reward_range = [-1.0, 10.0]
options = { max_tokens = 500 }
sample = "method.py:silent"

[algo.advantage]
estimator = "method.py:median"
options = { scale = 2.0 }

[train]
max_steps = 2
num_episodes = 1000

[pipeline]
max_staleness = 1

[data]
prompt_dataset = "guess.jsonl"
max_len = 160

[logger]
trajectories = 1.0
tensorboard_dir = "unset"
"""
PARTS = {
    "rewards.md": "def earned",
    "protocols.md": "class Digits",
    "environments.md": "class GuessEnv",
    "algorithms.md": "def plain_gradient",
}


def lay_out(directory: Path, prompts: int = 8) -> Path:
    """method.py, method.toml and the data; returns the recipe."""
    (directory / "method.py").write_text("\n\n".join(block(page, "python", holds) for page, holds in PARTS.items()))
    (directory / "method.toml").write_text(RECIPE)
    row = {"prompt": "Guess.\n", "label": "-", "meta": {"high": 3}}
    (directory / "guess.jsonl").write_text("".join(json.dumps(row) + "\n" for _ in range(prompts)))
    return directory / "method.toml"
