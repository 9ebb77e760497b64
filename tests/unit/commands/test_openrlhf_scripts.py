"""OpenRLHF's example scripts, translated (examples/openrlhf): each is run by bash as far as its command line, which a
check of a cluster's run accepts."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from openrlhf_tir.cli import build_parser
from openrlhf_tir.commands import config_and_problems, preflight
from openrlhf_tir.commands.checks.load_elsewhere import load_elsewhere
from openrlhf_tir.commands.preflight import Machine, check, openrlhf_files
from openrlhf_tir.config import Config
from openrlhf_tir.config.openrlhf_flags import RULES, Same, honoured
from openrlhf_tir.config.settings import known_keys, load

from ..config.test_flags_openrlhf import upstream_flags, value_at

EXAMPLES = Path(__file__).parents[3] / "examples/openrlhf"
SCRIPTS = sorted(path.stem for path in EXAMPLES.glob("*.sh"))
METHOD = {
    "agent_async": {
        "train.agent_func_path": f"{EXAMPLES}/agent_func.py:AgentExecutor",
        "pipeline.mode": "pipeline_drain",
        "batches_ahead": 2,
    },
    "dr_grpo": {"algo.advantage.estimator": "dr_grpo", "algo.kl.init_coef": 0.0},
    "grpo": {
        "algo.advantage.estimator": "group_norm",
        "algo.kl.use_loss": True,
        "actor.clip": (0.2, 0.2),
        "filter.order": ["accuracy"],
    },
    "lora": {"ds.lora.rank": 64, "ds.lora.alpha": 64, "actor.learning_rate": 1e-5},
    "ppo": {
        "algo.advantage.estimator": "gae",
        "reward.name": "model",
        "reward.replicas": 2,
        "updates_per_batch": 8,
        "critic.learning_rate": 9e-6,
    },
    "reinforce": {"algo.advantage.estimator": "reinforce", "algo.kl.init_coef": 1e-4, "actor.clip": (0.2, 0.2)},
    "reinforce_baseline": {
        "algo.advantage.estimator": "reinforce_baseline",
        "algo.kl.estimator": "k2",
        "pi_old": "learner",
    },
    "remote_reward": {
        "reward.name": "remote",
        "reward.remote_url": f"{EXAMPLES}/reward_func.py:reward_func",
        "updates_per_batch": 8,
    },
    "rloo": {
        "algo.advantage.estimator": "rloo",
        "algo.kl.use_loss": False,
        "pipeline.mode": "sync",
        "filter.order": [],
    },
}
"""What each script is about, as it ends up in the configuration."""
CPU = Machine(gpus=0, cpus=2, shm_free=1 << 30, has_module=lambda name: True, isolation_fault=lambda: None)
CHATML = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
NOT_OPENRLHFS = {
    "actor.model_name_or_path": "each script names its own",
    "critic.model_name_or_path": "unset: the policy's; OpenRLHF takes the reward model's",
    "data.prompt_dataset": "each script names its own",
    "data.label_key": "every row has a label",
    "ckpt.path": "relative to the run's directory",
    "ckpt.output_dir": "relative to the run's directory",
    "ckpt.best_metric_key": "the one metric of an evaluation",
    "ds.lora.target_modules": "a list of one",
    "vllm.num_engines": "each script names its own",
    "vllm.sync_backend": "no GPU has run nccl here yet",
    "rollout.max_new_tokens": "a number here",
    "algo.kl.horizon": "unset is 10000",
    "logger.wandb.project": "no wandb",
    "logger.wandb.run_name": "no wandb",
    "logger.tensorboard_dir": "no TensorBoard",
    **dict.fromkeys(
        ("ref.num_nodes", "ref.num_gpus_per_node", "critic.num_nodes", "critic.num_gpus_per_node"), "the policy's"
    ),
}


@pytest.fixture
def words(tmp_path):
    """words(script, *more) -> the words of the command that it would run."""
    fake = tmp_path / "openrlhf-tir"
    fake.write_text("#!/bin/sh\nprintf '%s\\0' \"$@\"\n")
    fake.chmod(0o755)

    def of(script: str, *more: str) -> list[str]:
        done = subprocess.run(
            ["bash", EXAMPLES / f"{script}.sh", *more],
            env={"TIR": str(fake), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            check=True,
        )
        return done.stdout.decode().split("\0")[:-1]

    return of


@pytest.fixture
def beside_a_cluster(tmp_path, monkeypatch) -> list[str]:
    """Flags: model directories and rows that are there, on a machine without GPUs from which a cluster is used."""
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    for name, config in (("model", {}), ("rm", {"num_labels": 1, "mean": 0.0, "std": 1.0})):
        directory = tmp_path / name
        directory.mkdir()
        texts = {
            "config.json": json.dumps({"hidden_size": 128, "num_attention_heads": 4, **config}),
            "tokenizer.json": "{}",
            "chat_template.jinja": CHATML,
        }
        for file, text in texts.items():
            (directory / file).write_text(text)
        save_file({"score.weight": np.zeros((1, 128), np.float32)}, directory / "model.safetensors")
    messages = [{"role": "user", "content": "1+1?"}]
    rows = 1024 * [{"prompt": "1+1?", "label": "2", "context_messages": messages}]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    return [
        "--actor.model_name_or_path",
        f"{tmp_path}/model",
        "--data.prompt_dataset",
        f"{tmp_path}/rows.json",
        "--run-dir",
        f"{tmp_path}/run",
    ]


def configured(argv: list[str]):
    args, extra = build_parser("train").parse_known_args(argv)
    args.unknown = extra
    cfg, problems = config_and_problems(args)
    problems.raise_any()
    return cfg


def test_every_script_is_tried_here():
    assert sorted(METHOD) == SCRIPTS


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_is_accepted_where_its_cluster_is(script, words, beside_a_cluster, tmp_path, monkeypatch):
    # imports torch in a process of its own: the test below
    monkeypatch.setattr(preflight, "load_elsewhere", lambda place, name: None)
    reward = ["--reward.model_name_or_path", f"{tmp_path}/rm"] if script == "ppo" else []
    argv = words(script, "--check-only", *beside_a_cluster, *reward)
    cfg = configured(argv)
    assert any("1024 problems" in fact for fact in check(cfg, machine=CPU))
    assert {name: value_at(cfg, name) for name in METHOD[script]} == METHOD[script]


@pytest.mark.slow
@pytest.mark.parametrize("script", ["agent_async", "remote_reward"])
def test_the_files_that_the_scripts_name_can_be_loaded(script, words, beside_a_cluster):
    ((place, name),) = openrlhf_files(configured(words(script, *beside_a_cluster))).items()
    assert name.startswith(f"{EXAMPLES}/")
    load_elsewhere(place, name)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_has_openrlhfs_flags_that_are_honoured_and_says_of_the_others_that_they_are_left_out(script, words):
    given = {word.removeprefix("--") for word in words(script) if word.startswith("--")} - {"recipe"}
    ours = {"logger.tensorboard"}
    assert given - ours <= honoured() and len(given) > 25
    text = (EXAMPLES / f"{script}.sh").read_text()
    left_out = set(re.findall(r"--([\w.]+\w)", "\n".join(line for line in text.splitlines() if "# left out:" in line)))
    assert left_out.isdisjoint(given) and left_out <= set(upstream_flags())


def test_the_recipe_of_the_scripts_has_openrlhfs_defaults():
    """Every flag of the same name has the default of OpenRLHF's parser, or is named above with the reason."""
    cfg = load(str(EXAMPLES / "openrlhf.toml"))
    differ = {}
    for name, action in upstream_flags().items():
        if isinstance(RULES[name], Same):
            theirs, here = action.default, value_at(cfg, name)
            if (list(here) if isinstance(here, tuple) else here) != (
                list(theirs) if isinstance(theirs, tuple) else theirs
            ):
                differ[name] = (here, theirs)
    assert set(differ) == set(NOT_OPENRLHFS), differ
    assert cfg.actor.clip == (0.2, 0.2) and cfg.actor.lr_scheduler == cfg.critic.lr_scheduler == "cosine"


def test_a_script_without_its_model_says_so_and_not_more(words, capsys, tmp_path):
    from openrlhf_tir.cli import main

    assert (
        main(
            words(
                "ppo",
                "--check-only",
                "--actor.model_name_or_path",
                "/nowhere",
                "--data.prompt_dataset",
                "/nowhere.jsonl",
                "--run-dir",
                str(tmp_path),
            )
        )
        == 2
    )
    lines = capsys.readouterr().err.splitlines()
    assert any("/nowhere" in line for line in lines) and not any(
        "is not taken over" in line or "has no effect" in line for line in lines
    )


def test_settings_of_the_recipe_are_settings():
    assert {"rollout.min_valid", "env.protocol", "filter.names"} <= set(known_keys())
    assert load(str(EXAMPLES / "openrlhf.toml")) != Config()
