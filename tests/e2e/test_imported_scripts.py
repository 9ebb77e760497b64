"""Scripts of TRL and verl, with rewards and tools of their own, are imported and trained as a stranger would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from openrlhf_tir.telemetry import metrics

from .support.tiny_model import make_tokenizer, save_tiny

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[2]
WITH_TOOLS = (
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<eos>{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
TRL = '''
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


def multiply(a: int, b: int) -> int:
    """Multiply two integers.

    Args:
        a: The first integer.
        b: The second integer.
    """
    return a * b


def even(completions, answer, **kwargs):
    return [float(sum(map(ord, c[-1]["content"])) % 2) for c in completions]


ROWS = [
    {"prompt": [{"role": "user", "content": "3*4?"}], "answer": "12"},
    {"prompt": [{"role": "user", "content": "5*4?"}], "answer": "20"},
    {"prompt": [{"role": "user", "content": "7*4?"}], "answer": "28"},
    {"prompt": [{"role": "user", "content": "9*4?"}], "answer": "36"},
]
cfg = GRPOConfig(output_dir="out", num_generations=4, per_device_train_batch_size=4, max_steps=2)
cfg.max_tool_calling_iterations = 2
GRPOTrainer(
    model="Qwen/Qwen3-0.6B", reward_funcs=even, args=cfg, train_dataset=Dataset.from_list(ROWS), tools=[multiply]
).train()
'''
VERL = """
set -x
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=rows.jsonl data.train_batch_size=8 \\
    actor_rollout_ref.model.path=Qwen/Qwen2.5-3B-Instruct actor_rollout_ref.rollout.name=sglang \\
    actor_rollout_ref.rollout.n=4 actor_rollout_ref.rollout.multi_turn.enable=True \\
    actor_rollout_ref.rollout.multi_turn.max_assistant_turns=3 \\
    actor_rollout_ref.rollout.multi_turn.tool_config_path=tools.yaml \\
    custom_reward_function.path=my_reward.py trainer.n_gpus_per_node=8 trainer.total_epochs=1 $@
"""
REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": float(sum(map(ord, solution_str)) % 2), "length": len(solution_str)}
"""
TOOLS = """
tools:
  - class_name: double.Double
    config: {type: native}
    tool_schema:
      type: function
      function:
        name: double
        description: Double a number.
        parameters: {type: object, properties: {n: {type: integer, description: A number.}}, required: [n]}
"""
TOOL = """
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import ToolResponse


class Double(BaseTool):
    async def execute(self, instance_id, parameters, **kwargs):
        return ToolResponse(text=str(2 * parameters["n"])), 0.0, {}
"""


@pytest.mark.parametrize("project", ["trl", "verl"])
def test_a_script_is_imported_and_trains(tmp_path, project):
    config = save_tiny(tmp_path / "toy", scale=1.0) / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": 4096}))
    tokenizer = make_tokenizer()
    tokenizer.chat_template = WITH_TOOLS
    tokenizer.save_pretrained(tmp_path / "toy")
    row = {
        "data_source": "mine",
        "prompt": [{"role": "user", "content": "1+1?"}],
        "reward_model": {"ground_truth": "2"},
    }
    files = {"train.py": TRL, "train.sh": VERL, "my_reward.py": REWARD, "tools.yaml": TOOLS, "double.py": TOOL}
    files["rows.jsonl"] = f"{json.dumps(row)}\n" * 16
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    script = {"trl": "train.py", "verl": "train.sh"}[project]
    program = [sys.executable, "-m", "openrlhf_tir.cli", f"import-{project}", "--rehearse", "--out", "r.toml", script]
    flags = ["--run", "--actor.model_name_or_path", "toy", "--run-dir", "run", "--rollout.max_new_tokens", "16"]
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cpu"}
    done = subprocess.run([*program, *flags], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    columns = metrics.read(tmp_path / "run")
    assert columns["step"] == [1, 2] and all(np.isfinite(columns["loss"]))
    assert max(columns["canary_max_diff"]) <= 1e-4, "the engine had the learner's weights"
