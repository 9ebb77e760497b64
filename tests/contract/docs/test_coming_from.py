"""The pages for people who come from verl and TRL, that of GSM8K, and the README: their files run, their tables are
complete."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from openrlhf_tir.cli.checks.data import check_data
from openrlhf_tir.config import Data
from openrlhf_tir.config.rewards import REWARDS
from openrlhf_tir.config.settings import load
from openrlhf_tir.data import load_prompts
from openrlhf_tir.rewards import GROUP_REGISTRY
from openrlhf_tir.rewards import load as load_reward
from openrlhf_tir.rewards.context import RewardContext
from openrlhf_tir.rewards.own import OwnReward
from openrlhf_tir.types import Chat, Segment, Task, Trajectory
from openrlhf_tir.user_code.plugins import ENVIRONMENT
from openrlhf_tir.user_code.plugins import load as load_plugin

from .docs_blocks import DOCS, block


def said(text: str) -> Trajectory:
    ids = np.arange(len(text), dtype=np.int32)
    return Trajectory(0, ids[:1], [Segment("model", ids, ids * 0.0, ids * 0, text)], finish_reason="stop")


def file_of(tmp_path, page: str, holds: str, name: str) -> str:
    (tmp_path / name).write_text(block(page, "python", holds))
    return str(tmp_path / name)


def test_the_reward_of_verls_page_is_one(tmp_path):
    (tmp_path / "my_reward.py").write_text(block("coming_from_verl.md", "python", "def compute_score"))
    row = {"data_source": "openai/gsm8k", "reward_model": {"ground_truth": "42"}, "extra_info": {}}
    name = f"{tmp_path / 'my_reward.py'}:compute_score"
    parts, _ = OwnReward(name)(said("6*7 is 42"), Task("", "", extra=row), RewardContext())
    assert (parts.reward, parts.correct, parts.parts["numbers"]) == (1.0, True, 3.0)


def test_the_rewards_of_trls_page_are_two(tmp_path):
    (tmp_path / "my_rewards.py").write_text(block("coming_from_trl.md", "python", "def accuracy"))
    chat = Chat(({"role": "user", "content": "6*7?"},))
    task = Task("", "", chat=chat, extra={"solution": "42", "level": 1})
    name = str(tmp_path / "my_rewards.py")
    assert OwnReward(f"{name}:accuracy")(said("42"), task, RewardContext())[0] == (1.0, True, {"characters": 2.0})
    assert OwnReward(f"{name}:brevity")(said("42"), task, RewardContext())[0].reward == pytest.approx(-0.002)


@pytest.mark.slow
async def test_the_tool_of_trls_page_multiplies(tmp_path):
    (tmp_path / "my_tools.py").write_text(block("coming_from_trl.md", "python", "def multiply"))
    env = load_plugin(ENVIRONMENT, f"{tmp_path / 'my_tools.py'}:TOOLS")()
    await env.reset({}, 0)
    action = json.dumps([{"name": "multiply", "arguments": {"a": 6, "b": 7}}])
    assert (await env.step(action, 5.0)).observation == "42"


async def test_the_readmes_tool_tells_a_price_and_its_reward_looks_for_the_total(tmp_path):
    (tmp_path / "shop.py").write_text(block("README.md", "python", "def price"))
    env = load_plugin(ENVIRONMENT, f"{tmp_path / 'shop.py'}:price")()
    await env.reset({}, 0)
    action = json.dumps([{"name": "price", "arguments": {"fruit": "pear"}}])
    assert (await env.step(action, 5.0)).observation == "4"
    task = Task("", "", chat=Chat(({"role": "user", "content": "An apple and two pears?"},)), extra={"total": 11})
    reward = OwnReward(f"{tmp_path / 'shop.py'}:says_total")
    assert reward(said("That is 11."), task, RewardContext())[0].reward == 1.0
    assert reward(said("That is 7."), task, RewardContext())[0].reward == 0.0


@pytest.mark.slow
def test_rows_in_gsm8ks_form_are_read_as_the_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(block("gsm8k.md", "python", "make_gsm8k.py"), "make_gsm8k.py", "exec"), {})
    (tmp_path / "gsm8k.toml").write_text(block("gsm8k.md", "toml", "gsm8k.toml"))
    rows = {"data.prompt_dataset": "gsm8k/train.jsonl", "eval.dataset": "gsm8k/test.jsonl"}
    cfg = load("gsm8k.toml", rows)
    assert any(re.match(r"64 .*gsm8k/train\.jsonl", fact) for fact in check_data(cfg, training=True))
    data = Data(prompt_dataset="gsm8k/train.jsonl", input_template=cfg.data.input_template)
    task = load_prompts(data)[0]
    assert task.prompt.endswith('output the final answer after "####".') and task.extra["answer"].endswith(task.label)
    reward = load_reward("gsm8k")
    assert reward(said(f"So it is #### {task.label}"), task, RewardContext()).reward == 1.0
    assert reward(said(task.extra["answer"]), task, RewardContext()).reward == 1.0
    assert reward(said(f"So it is {task.label}"), task, RewardContext()).reward == 0.0


def test_the_table_of_rewards_names_every_registered_one():
    page = (DOCS / "rewards.md").read_text()
    table = page.partition("## Built-in rewards")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(REWARDS)
    assert all(f"`{name}`" in table.rpartition("A group reward")[2] for name in GROUP_REGISTRY)
