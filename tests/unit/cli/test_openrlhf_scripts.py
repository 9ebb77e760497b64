"""OpenRLHF scripts of our own (examples/openrlhf): each is imported, and a check of a cluster accepts its recipe."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

pytest.importorskip("tree_sitter_bash")

from openrlhf_tir.cli import main, preflight
from openrlhf_tir.cli.checks.load_elsewhere import load_here
from openrlhf_tir.cli.checks.names import openrlhf_files
from openrlhf_tir.cli.command_line import build_parser
from openrlhf_tir.cli.configuration import config_of
from openrlhf_tir.cli.exit_codes import DONE
from openrlhf_tir.cli.preflight import check
from openrlhf_tir.config.catalog import value_at
from openrlhf_tir.config.flags import config_from
from openrlhf_tir.config.integrations.bash_script import read_script
from openrlhf_tir.config.integrations.openrlhf_command_flags import read_flags
from openrlhf_tir.config.integrations.openrlhf_commands import calls_of
from openrlhf_tir.config.integrations.openrlhf_parsers import TRAIN_PPO_RAY
from openrlhf_tir.config.openrlhf_flags import RULES
from openrlhf_tir.config.problems import Problems
from openrlhf_tir.errors import TirError

from .preflight.runs import CPU

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
        "actor.eps_clip_low_high": (0.2, 0.2),
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
    "reinforce": {
        "algo.advantage.estimator": "reinforce",
        "algo.kl.init_coef": 1e-4,
        "actor.eps_clip_low_high": (0.2, 0.2),
    },
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
CHATML = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


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


def recipe_of(script: str, tmp_path: Path, *options: str) -> str:
    """The file of a script's recipe."""
    out = tmp_path / f"{script}.toml"
    assert main(["import-openrlhf", *options, "--out", str(out), str(EXAMPLES / f"{script}.sh")]) == DONE
    return str(out)


def parsed(argv: list[str]):
    args, args.unknown = build_parser("train").parse_known_args(["train", *argv])
    return args


def configured(argv: list[str]):
    return config_of(parsed(argv))


def models_of(script: str, tmp_path: Path) -> list[str]:
    if script != "ppo":
        return []
    return ["--reward.model_name_or_path", f"{tmp_path}/rm", "--critic.model_name_or_path", f"{tmp_path}/rm"]


def test_every_script_is_tried_here():
    assert sorted(METHOD) == SCRIPTS


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_scripts_recipe_is_accepted_where_its_cluster_is(script, beside_a_cluster, tmp_path, monkeypatch, env_server):
    # imports torch in a process of its own: the test below
    monkeypatch.setattr(preflight, "load_elsewhere", lambda place, name: None)
    recipe = recipe_of(script, tmp_path)
    env_server.bodies["/health"]["env"] = env_server.bodies["/schema"]["env"] = "echo"
    servers = ["--env.url", env_server.url] if script == "ppo" else []  # the one that needs more than one node
    cfg = configured(["--recipe", recipe, *beside_a_cluster, *models_of(script, tmp_path), *servers])
    assert any(re.match(r"1024 .*rows\.json", fact) for fact in check(cfg, machine=CPU))
    assert {name: value_at(cfg, name) for name in METHOD[script]} == METHOD[script]


@pytest.mark.slow
@pytest.mark.parametrize("script", ["agent_async", "remote_reward"])
def test_the_files_that_the_scripts_name_can_be_loaded(script, tmp_path):
    ((place, name),) = openrlhf_files(configured(["--recipe", recipe_of(script, tmp_path)]))
    assert name.startswith(f"{EXAMPLES}/")
    load_here(place, name)  # a process of its own would import torch


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_has_openrlhfs_flags_only(script):
    (call,) = calls_of(read_script(EXAMPLES / f"{script}.sh").commands)
    given = read_flags(call.words, TRAIN_PPO_RAY)
    assert not given.notes and len(given.values) > 25 and given.values.keys() <= RULES.keys()


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_rehearsal_keeps_the_method_and_asks_for_no_gpu(script, beside_a_cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(preflight, "load_elsewhere", lambda place, name: None)
    monkeypatch.delenv("RAY_ADDRESS")
    recipe = recipe_of(script, tmp_path, "--rehearse")
    cfg = configured(["--recipe", recipe, *beside_a_cluster, *models_of(script, tmp_path)])
    check(cfg, machine=CPU)
    sizes = ("reward.replicas", "updates_per_batch", "filter.order")
    kept = {name: value for name, value in METHOD[script].items() if name not in sizes}
    assert {name: value_at(cfg, name) for name in kept} == kept
    assert cfg.actor.world_size == cfg.vllm.num_engines == 1 and cfg.rollout.batch_size == 4


def test_a_script_without_its_model_says_so_and_not_more(tmp_path):
    recipe = recipe_of("ppo", tmp_path)
    missing = ["--actor.model_name_or_path", "/nowhere", "--data.prompt_dataset", "/nowhere.jsonl"]
    problems = Problems()
    cfg = config_from(parsed(["--recipe", recipe, *missing, "--run-dir", str(tmp_path)]), problems)
    with pytest.raises(TirError) as refused:
        check(cfg, problems=problems)
    assert any("/nowhere" in problem.message for problem in refused.value.problems)
    assert "no_effect" not in {problem.code for problem in refused.value.problems}
