"""Every recipe of a method, checked as `train --check-only` does on a machine without GPUs beside a cluster: without
data it says so in one line, with rows of its own schema it passes."""

from __future__ import annotations

import json
import re

import pytest

from openrlhf_tir.cli.preflight import check
from openrlhf_tir.config.settings import RECIPES, load
from openrlhf_tir.errors import ConfigError, DataError
from tests.data.make_samples import rows
from tests.model_files import weights

from .preflight.runs import CPU

CHATML = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
SKYRL = ("skyrl_v0_14b", "skyrl_v0_7b", "skyrl_v0_7b_stage2", "skyrl_v0_8b")
SAMPLES = {
    "artist_functions_7b": [{"prompt": "Book a table.", "label": "-", "meta": {"domains": ["calendar"], "gold": [[]]}}],
    "artist_math_7b": [{"prompt": "1+1?", "label": "2"}],
    "interaction_scaling_1_5b": rows()["orz.json"],
    **{f"model_scaling_{size}": rows()["orz.json"] for size in ("1_5b", "7b", "32b")},
    "otc_grpo_search": rows()["flashrag.jsonl"],
    "otc_grpo_torl": rows()["torl.parquet"],
    "otc_ppo_search": rows()["searchr1.jsonl"],
    "otc_ppo_torl": rows()["torl.parquet"],
    "retool_32b": rows()["dapo.parquet"],
    "retool_ppo_32b": rows()["dapo.parquet"],
    "search_r1_7b": rows()["searchr1.jsonl"],
    **{name: [{"prompt": "Mend it.", "label": "-", "env": "swe", "meta": {"repo": "roman"}}] for name in SKYRL},
    "tool_n1_7b": rows()["tooln1.jsonl"],
    "toolrl_3b": rows()["toolrl.jsonl"],
    "toolrl_ppo_3b": rows()["toolrl.jsonl"],
    "torl_1_5b": rows()["torl.parquet"],
    "torl_7b": rows()["torl.parquet"],
    "zero_tir_rl": rows()["orz.json"],
    "zerotir_32b": rows()["orz.json"],
    "zerotir_7b": rows()["zerotir.jsonl"],
    "zerotir_ppo_7b": rows()["zerotir.jsonl"],
}
ONE_NODE = re.compile(r"interaction_scaling_1_5b|model_scaling_1_5b|otc_.*_torl|toolrl_.*3b|torl_1_5b")
"""The recipes that fit a node of 8 GPUs."""


def test_every_recipe_on_gpus_is_tried_here():
    # fine-tuning: test_sft.py; the quickstart that is of no method has its own rows
    of_rl = (
        p.stem
        for p in RECIPES.glob("*.toml")
        if not p.stem.endswith(("_cpu", "_one_gpu")) and not load(p.stem).sft.dataset
    )
    assert sorted(SAMPLES) == sorted(of_rl)


@pytest.fixture
def beside_a_cluster(tmp_path, monkeypatch, env_server):
    """Overrides: a model directory with a chat template, and a server, which becomes the recipe's."""
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    model = tmp_path / "model"
    model.mkdir()
    for name, text in (
        ("config.json", '{"hidden_size": 128, "num_attention_heads": 4}'),
        ("tokenizer.json", "{}"),
        ("chat_template.jinja", CHATML),
    ):
        (model / name).write_text(text)
    (model / "model.safetensors").write_bytes(weights())
    return {"actor.model_name_or_path": str(model), "run_dir": str(tmp_path / "run"), "env.url": env_server}


def overrides(recipe, beside_a_cluster):
    """Those of `beside_a_cluster`, with the URL of the recipe's server where its engines are on other nodes."""
    env, server = load(recipe).env, beside_a_cluster["env.url"]
    server.bodies["/health"]["env"] = server.bodies["/schema"]["env"] = env.name
    url = None if ONE_NODE.fullmatch(recipe) else server.url
    return {**beside_a_cluster, "env.url": url}


@pytest.mark.parametrize("recipe", SAMPLES)
def test_a_recipe_without_data_says_in_one_line_that_they_are_missing(recipe, beside_a_cluster):
    with pytest.raises(ConfigError) as e:
        check(load(recipe, overrides(recipe, beside_a_cluster)), machine=CPU)
    assert [problem.setting for problem in e.value.problems] == ["data.prompt_dataset"]
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("recipe", SAMPLES)
def test_a_recipe_of_several_nodes_is_refused_without_the_url_of_its_servers(recipe, beside_a_cluster):
    """The controller would start one on its own node's loopback, which engines on other nodes do not reach."""
    with pytest.raises(ConfigError) as e:
        check(load(recipe, {**overrides(recipe, beside_a_cluster), "env.url": None}), machine=CPU)
    told = {(problem.code, problem.setting) for problem in e.value.problems}
    assert (("environment", "env.url") in told) is (ONE_NODE.fullmatch(recipe) is None)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", SAMPLES)
def test_a_recipe_with_rows_of_its_own_schema_passes(recipe, beside_a_cluster, tmp_path):
    batch = load(recipe).rollout.batch_size
    data = tmp_path / "rows.json"
    data.write_text(json.dumps([SAMPLES[recipe][i % len(SAMPLES[recipe])] for i in range(batch)]))
    facts = check(load(recipe, {**overrides(recipe, beside_a_cluster), "data.prompt_dataset": str(data)}), machine=CPU)
    assert any(fact.startswith(f"{batch} ") and str(data) in fact for fact in facts)


def test_a_recipe_on_the_wrong_data_says_which_field_it_wants(beside_a_cluster, tmp_path):
    data = tmp_path / "rows.jsonl"
    data.write_text('{"riddle": "1+1?", "key": "2"}\n')
    with pytest.raises(ConfigError, match=r"data\.input_key = 'prompt' .*rows\.jsonl.*: riddle, key\b"):
        check(
            load("torl_7b", {**overrides("torl_7b", beside_a_cluster), "data.prompt_dataset": str(data)}), machine=CPU
        )


OTHERS = {
    "answer": rows()["torl.parquet"],
    "answers": rows()["searchr1.jsonl"],
    "steps": rows()["toolrl.jsonl"],
    "calls": rows()["tooln1.jsonl"],
    "functions": SAMPLES["artist_functions_7b"],
    "swe": SAMPLES["skyrl_v0_7b"],
}
TAKES = {
    **dict.fromkeys(
        ("torl_1_5b", "zerotir_7b", "retool_32b", "artist_math_7b", "otc_grpo_torl", "otc_ppo_torl"),
        ("answer", "swe", "functions"),
    ),
    "toolrl_3b": ("steps",),
    "tool_n1_7b": ("calls",),
    "search_r1_7b": ("answers", "answer"),
    "otc_ppo_search": ("answers", "answer"),
    "artist_functions_7b": ("functions",),
    "skyrl_v0_7b": ("swe",),
}
"""By recipe: whose rows it may be given. What only an environment tells apart (a label "-") is an answer to a maths
reward, and one text is a list of gold answers to Search-R1."""


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "kind"), [(r, k) for r, taken in TAKES.items() for k in OTHERS if k not in taken])
def test_a_recipe_on_another_methods_rows_says_so_by_file_and_row(recipe, kind, beside_a_cluster, tmp_path):
    cfg = load(recipe)
    data = tmp_path / "rows.json"
    data.write_text(
        json.dumps([OTHERS[kind][i % len(OTHERS[kind])] | {"env": cfg.env.name} for i in range(cfg.rollout.batch_size)])
    )
    own_server = {"env.url": None}  # of a server at a URL it is not known what its rows must have
    with pytest.raises((ConfigError, DataError), match=r"rows\.json"):
        check(load(recipe, {**beside_a_cluster, **own_server, "data.prompt_dataset": str(data)}), machine=CPU)


def test_gold_calls_of_a_plain_row_that_the_reward_cannot_read_are_told_before_a_run(beside_a_cluster, tmp_path):
    cfg = load("toolrl_3b")
    data = tmp_path / "rows.json"
    row = {
        "prompt": [{"role": "user", "content": "q"}],
        "label": "<think> t </think>\n<tool_call>\nnot json\n</tool_call>",
    }
    data.write_text(json.dumps([row] * cfg.rollout.batch_size))
    with pytest.raises(
        DataError,
        match=r"rows\.json item 1: .*'toolrl' .* 1 .*<tool_call> .*'not json'",
    ):
        check(
            load("toolrl_3b", {**overrides("toolrl_3b", beside_a_cluster), "data.prompt_dataset": str(data)}),
            machine=CPU,
        )


@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        (
            "zerotir_7b",
            {
                "env.max_calls": 4,
                "env.protocol": "zerotir",
                "train.env_mask_from": 0,
                "actor.eps_clip_low_high": (0.2, 0.28),
                "actor.pi_old": "learner",
                "filter.names": ["accuracy", "verifiers"],
                "filter.accuracy_range": (0.0, 0.8),
                "filter.sample": "zerotir",
                "eval.n_samples_per_prompt": 32,
                "eval.temperature": 1.0,
                "eval.top_p": 0.7,
            },
        ),
        ("zero_tir_rl", {"train.env_mask_from": 100, "env.max_calls": 2}),
        (
            "torl_7b",
            {
                "env.max_calls": 1,
                "rollout.n_samples_per_prompt": 16,
                "rollout.max_new_tokens": 3072,
                "reward.name": "torl",
                "env.protocol": "torl",
            },
        ),
        (
            "retool_32b",
            {
                "actor.eps_clip_low_high": (0.2, 0.28),
                "actor.dual_clip": 10.0,
                "rollout.max_new_tokens": 16384,
                "env.protocol": "retool",
                "eval.top_p": 0.7,
            },
        ),
        (
            "artist_math_7b",
            {
                "rollout.n_samples_per_prompt": 6,
                "rollout.max_new_tokens": 8000,
                "actor.loss_agg_mode": "seq-mean-token-mean",
            },
        ),
        (
            "artist_functions_7b",
            {"rollout.n_samples_per_prompt": 8, "filter.sample": "over_length", "reward.options": {"functions": True}},
        ),
        (
            "toolrl_3b",
            {
                "rollout.n_samples_per_prompt": 4,
                "rollout.max_new_tokens": 1024,
                "env.max_calls": 0,
                "algo.kl.init_coef": 0.0,
                "eval.temperature": 0.0001,
            },
        ),
        (
            "tool_n1_7b",
            {
                "rollout.n_samples_per_prompt": 5,
                "rollout.max_new_tokens": 8192,
                "rollout.temperature": 0.7,
                "algo.kl.init_coef": 1e-3,
                "eval.temperature": 0.001,
            },
        ),
        (
            "zerotir_ppo_7b",
            {
                "critic.updates": 12,
                "env.max_calls": 20,
                "algo.advantage.estimator": "gae",
                "actor.eps_clip_low_high": (0.2, 0.2),
                "actor.pi_old": "learner",
                "filter.names": [],
                "filter.sample": None,
                "eval.top_p": 0.7,
            },
        ),
        (
            "search_r1_7b",
            {
                "env.options": {"max_turn_tokens": 500},
                "data.max_len": 4096,
                "env.output_max_tokens": 500,
                "env.max_calls": 4,
                "rollout.top_p": 0.95,
                "actor.entropy_coef": 0.001,
                "algo.kl.use_loss": True,
                "algo.kl.estimator": "k3",
            },
        ),
        (
            "skyrl_v0_7b",
            {
                "rollout.batch_size": 16,
                "rollout.n_samples_per_prompt": 16,
                "rollout.temperature": 0.5,
                "rollout.top_p": 0.95,
                "env.max_calls": 15,
                "env.options": {"max_turn_tokens": 1536},
                "algo.kl.init_coef": 0.001,
                "algo.kl.use_loss": True,
                "algo.kl.estimator": "k3",
                "actor.eps_clip_low_high": (0.2, 0.2),
                "actor.dual_clip": 3.0,
                "actor.learning_rate": 1e-6,
                "eval.temperature": 0.0,
                "eval.max_calls": 50,
            },
        ),
        (
            "skyrl_v0_7b_stage2",
            {
                "rollout.batch_size": 16,
                "rollout.temperature": 0.5,
                "env.max_calls": 25,
                "actor.model_name_or_path": "runs/skyrl_v0_7b/model",
            },
        ),
        (
            "skyrl_v0_8b",
            {
                "rollout.batch_size": 32,
                "rollout.n_samples_per_prompt": 8,
                "rollout.temperature": 0.6,
                "rollout.top_p": 0.95,
                "rollout.top_k": 20,
                "env.max_calls": 25,
                "env.options": {"max_turn_tokens": 1536},
                "actor.entropy_coef": 0.0,
                "actor.eps_clip_low_high": (0.2, 0.2),
            },
        ),
        (
            "skyrl_v0_14b",
            {
                "rollout.batch_size": 32,
                "rollout.n_samples_per_prompt": 8,
                "rollout.temperature": 0.6,
                "env.max_calls": 35,
                "env.max_concurrency": 192,
                "env.options": {"max_turn_tokens": 3072},
                "actor.entropy_coef": 0.001,
                "actor.eps_clip_low_high": (0.2, 0.28),
                "algo.advantage.estimator": "gae",
                "critic.learning_rate": 1e-5,
                "critic.adam_betas": (0.9, 0.999),
                "critic.l2": 0.01,
                "actor.dual_clip": 3.0,
                "algo.kl.init_coef": 0.001,
            },
        ),
        (
            "otc_ppo_search",
            {
                "reward.name": "otc",
                "reward.options": {"base": "searchr1", "c": 4},
                "reward.group": None,
                "algo.advantage.estimator": "gae",
                "algo.kl.init_coef": 0.001,
                "algo.kl.use_loss": False,
                "algo.kl.estimator": "k1",
                "rollout.top_p": 0.95,
                "actor.entropy_coef": 0.001,
                "critic.adam_betas": (0.9, 0.999),
                "critic.l2": 0.01,
            },
        ),
        (
            "otc_ppo_torl",
            {
                "reward.name": "otc",
                "reward.options": {"base": "torl", "c": 3},
                "env.max_calls": 3,
                "algo.advantage.estimator": "gae",
                "critic.adam_betas": (0.9, 0.999),
                "critic.l2": 0.01,
            },
        ),
        (
            "retool_ppo_32b",
            {
                "rollout.n_samples_per_prompt": 1,
                "critic.learning_rate": 2e-6,
                "critic.freezing_steps": 38,
                "critic.adam_betas": (0.9, 0.999),
                "critic.l2": 0.01,
                "algo.kl.init_coef": 0.0,
            },
        ),
        (
            "interaction_scaling_1_5b",
            {
                "env.max_calls": 4,
                "critic.updates": 12,
                "algo.advantage.estimator": "gae",
                "actor.eps_clip_low_high": (0.2, 0.2),
                "filter.names": [],
            },
        ),
        (
            "otc_grpo_search",
            {
                "reward.group": "otc",
                "reward.group_options": {"c": 4},
                "reward.name": "searchr1",
                "rollout.n_samples_per_prompt": 5,
                "rollout.top_p": 0.95,
                "actor.entropy_coef": 0.001,
            },
        ),
        ("model_scaling_1_5b", {"env.max_calls": 2, "actor.model_name_or_path": "Qwen/Qwen2.5-1.5B"}),
        ("model_scaling_32b", {"env.max_calls": 2, "actor.model_name_or_path": "Qwen/Qwen2.5-32B"}),
        (
            "toolrl_ppo_3b",
            {
                "rollout.max_new_tokens": 512,
                "data.max_len": 1536,
                "algo.advantage.estimator": "gae",
                "algo.kl.init_coef": 0.001,
                "algo.kl.use_loss": False,
                "critic.learning_rate": 1e-5,
                "critic.l2": 0.01,
            },
        ),
        (
            "otc_grpo_torl",
            {"reward.group": "otc", "reward.group_options": {"c": 3}, "reward.name": "torl", "env.max_calls": 3},
        ),
    ],
)
def test_a_recipe_has_its_papers_values(recipe, settings):
    cfg = load(recipe)

    def at(path):
        value = cfg
        for name in path.split("."):
            value = getattr(value, name)
        return value

    assert {path: at(path) for path in settings} == settings


@pytest.mark.parametrize(
    ("recipe", "prompts", "updates", "size"),
    [
        ("retool_32b", 512, 8, 1024),
        ("tool_n1_7b", 1024, 4, 1280),
        ("toolrl_3b", 512, 4, 512),
        ("toolrl_ppo_3b", 512, 4, 128),
        ("search_r1_7b", 512, 10, 256),
        ("otc_grpo_search", 512, 10, 256),
        ("otc_ppo_search", 512, 2, 256),
        ("torl_7b", 128, 1, 2048),
        ("otc_grpo_torl", 128, 1, 2048),
        ("retool_ppo_32b", 1024, 2, 512),
        ("skyrl_v0_7b", 16, 16, 16),
        ("skyrl_v0_7b_stage2", 16, 16, 16),
        ("skyrl_v0_8b", 32, 8, 32),
        ("skyrl_v0_14b", 32, 8, 32),
    ],
)
def test_a_rollout_batch_makes_as_many_updates_of_as_many_trajectories_as_the_official_code(
    recipe, prompts, updates, size
):
    cfg = load(recipe)
    samples = cfg.rollout.batch_size * cfg.rollout.n_samples_per_prompt
    assert cfg.rollout.batch_size == prompts
    assert (cfg.updates_per_batch, samples // cfg.updates_per_batch) == (updates, size)
    assert cfg.max_staleness == updates - 1, "sync: on-policy in the first update of a batch"
