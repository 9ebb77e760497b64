"""OpenRLHF's flags: the installed parser against config.openrlhf_flags, flag by flag."""

from __future__ import annotations

import argparse
import ast
import re
from datetime import datetime
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from openrlhf_tir.config.catalog import known_keys, value_at
from openrlhf_tir.config.flags import Parser, add_config_flags, check_unknown, overrides_of
from openrlhf_tir.config.foreign_names import is_foreign, meaning
from openrlhf_tir.config.openrlhf_flags import RULES, Becomes, Implied, Only, Refused, Same, honoured, translate
from openrlhf_tir.config.openrlhf_renamed import GONE, NAMES, OLD_CORRECTION, SWITCHES_WITH_A_VALUE
from openrlhf_tir.config.problems import Problems
from openrlhf_tir.config.settings import load
from openrlhf_tir.errors import ConfigError


@cache
def upstream_flags() -> dict[str, argparse.Action]:
    """The options that openrlhf's script builds, by running the statements before parse_args: no ray, torch or vllm."""
    spec = find_spec("openrlhf")
    if spec is None:
        pytest.skip("openrlhf is not installed")
    source = Path(spec.submodule_search_locations[0], "cli", "train_ppo_ray.py").read_text()
    main = next(node for node in ast.parse(source).body if isinstance(node, ast.If))
    stop = next(i for i, node in enumerate(main.body) if "parse_args" in ast.unparse(node))
    scope = {"argparse": argparse, "datetime": datetime}
    exec(compile(ast.Module(main.body[:stop], []), "train_ppo_ray", "exec"), scope)
    return {
        option.removeprefix("--"): action
        for action in scope["parser"]._actions
        for option in action.option_strings
        if option not in ("-h", "--help")
    }


@cache
def parser() -> Parser:
    parser = Parser(allow_abbrev=False)
    add_config_flags(parser)
    return parser


def parse(*argv: str):
    """The configuration of flags: OpenRLHF's are translated as import-openrlhf does, ours parsed as train does."""
    ours: list[str] = []
    theirs: dict[str, list[str]] = {}
    values = ours
    for word in argv:
        if word.startswith("--"):
            values = theirs.setdefault(word[2:], []) if is_foreign(word[2:]) else ours
            if values is not ours:
                continue
        values.append(word)
    args, extra = parser().parse_known_args(ours)
    check_unknown(extra)
    args.compat = {**args.compat, **theirs}
    return load(args.recipe, overrides_of(args))


def test_every_flag_of_openrlhf_has_a_rule_and_no_rule_is_invented():
    upstream = upstream_flags()
    assert len(upstream) >= 139
    assert set(upstream) == set(RULES)


def test_the_same_flags_are_fields_of_config():
    assert {name for name, rule in RULES.items() if isinstance(rule, Same)} <= set(known_keys())


def test_every_refusal_says_what_to_do():
    for name, rule in RULES.items():
        if isinstance(rule, Refused | Only):
            assert rule.reason.endswith("."), name
            assert len(rule.reason) > 15, name


@pytest.mark.parametrize("name", sorted(name for name in RULES if is_foreign(name)))
def test_a_name_that_is_openrlhfs_alone_is_no_flag_of_ours(name):
    _, extra = parser().parse_known_args([f"--{name}", *([] if upstream_flags()[name].nargs == 0 else ["1"])])
    with pytest.raises(ConfigError, match="import-openrlhf") as e:
        check_unknown(extra)
    assert {problem.code for problem in e.value.problems} == {"foreign_flag"}
    assert e.value.problems[1].message.startswith(f"--{name} ")


@pytest.mark.parametrize("name", sorted({*NAMES, *SWITCHES_WITH_A_VALUE, *OLD_CORRECTION, *GONE}))
def test_a_name_of_an_older_openrlhf_is_no_flag_of_ours(name):
    assert is_foreign(name)
    assert meaning(name, ["VALUE"]).endswith(".")


@pytest.mark.parametrize(
    ("name", "values", "here"),
    [
        ("bf16", [], "--ds.param_dtype bf16."),
        ("flash_attn", [], "--ds.attn_implementation flash_attention_2."),
        ("use_icepop", [], "--algo.advantage.is_correction_mode mask."),
        ("vllm_is_correction_type", ["no_such"], "tis | icepop"),
        ("reward_clip_range", ["-1", "1"], "--reward.clip_range -1 1."),
        ("async_queue_size", ["3"], "(N + 1) * k - 1"),
        ("perf", [], "report.html"),
    ],
)
def test_a_flag_of_openrlhf_is_answered_with_the_value_that_it_has_here(name, values, here):
    assert here in meaning(name, values)


@pytest.mark.parametrize("name", ["use_wandb", "logger.wandb.key"])
def test_the_answer_to_a_key_does_not_repeat_it(name):
    assert meaning(name, ["0123abc"]).endswith("--logger.wandb.key.")


@pytest.mark.parametrize("name", [n for n, r in RULES.items() if isinstance(r, Refused)])
def test_a_refused_flag_raises_with_its_reason(name):
    with pytest.raises(ConfigError) as e:
        parse(f"--{name}", *([] if upstream_flags()[name].nargs == 0 else ["1"]))
    assert [problem for problem in e.value.problems if problem.code == "foreign_flag"]
    assert f"--{name} " in str(e.value) and RULES[name].reason in str(e.value)


EXAMPLES = {
    "actor.model_name_or_path": ("org/model", "org/model"),
    "actor.num_gpus_per_node": ("2", 2),
    "actor.eps_clip_low_high": ("0.1 0.3", (0.1, 0.3)),
    "actor.dual_clip": ("3", 3.0),
    "actor.policy_loss_type": ("gspo", "gspo"),
    "actor.loss_agg_mode": ("seq-mean-token-mean", "seq-mean-token-mean"),
    "ds.zero_stage": ("2", 2),
    "ds.param_dtype": ("fp16", "fp16"),
    "ds.attn_implementation": ("sdpa", "sdpa"),
    "ds.grad_accum_dtype": ("fp32", "fp32"),
    "ds.lora.dropout": ("0.1", 0.1),
    "ds.lora.target_modules": ("q_proj v_proj", ["q_proj", "v_proj"]),
    "reward.remote_url": ("http://10.0.0.1:5000/get_reward", "http://10.0.0.1:5000/get_reward"),
    "rollout.batch_size": ("64", 64),
    "rollout.n_samples_per_prompt": ("8", 8),
    "rollout.max_new_tokens": ("77", 77),
    "rollout.temperature": ("0.7", 0.7),
    "rollout.top_p": ("0.9", 0.9),
    "vllm.gpu_memory_utilization": ("0.5", 0.5),
    "vllm.sync_backend": ("nccl", "nccl"),
    "algo.advantage.estimator": ("rloo", "rloo"),
    "algo.advantage.is_correction_level": ("token", "token"),
    "algo.advantage.is_correction_mode": ("clip", "clip"),
    "algo.advantage.is_correction_gating": ("tv", "tv"),
    "algo.advantage.is_correction_threshold": ("0.25 4", (0.25, 4.0)),
    "algo.advantage.gamma": ("0.5", 0.5),
    "algo.kl.init_coef": ("0", 0.0),
    "algo.kl.estimator": ("k3", "k3"),
    "reward.clip_range": ("-2 3", (-2.0, 3.0)),
    "algo.advantage.lambd": ("0.5", 0.5),
    "actor.lr_warmup_ratio": ("0.5", 0.5),
    "actor.min_lr_ratio": ("0.5", 0.5),
    "train.batch_size": ("2048", 2048),
    "data.prompt_probs": ("0.7,0.3", [0.7, 0.3]),
    "data.max_len": ("9999", 9999),
    "eval.temperature": ("0.6", 0.6),
    "actor.optim": ("muon", "muon"),
    "critic.optim": ("muon", "muon"),
    "ds.experts_implementation": ("eager", "eager"),
}


NEEDS = {
    "train.colocate_all": "--pipeline.mode sync",
    **dict.fromkeys(("algo.kl.use_loss", "algo.kl.target", "ref.offload"), "--algo.kl.init_coef 0.1"),
    "reward.normalize_enable": "--reward.model_name_or_path rm",
    "algo.kl.horizon": "--algo.kl.init_coef 0.1 --algo.kl.target 0.1",
    "critic.model_name_or_path": "--algo.advantage.estimator gae",
    "ckpt.save_hf": "--ckpt.save_steps 5",
    "ds.ring_attn_size": "--ds.packing_samples --ds.attn_implementation sdpa",
}
"""What a flag is refused without."""


@pytest.mark.parametrize("name", [n for n, r in RULES.items() if isinstance(r, Same)])
def test_a_flag_of_the_same_name_lands_in_its_field(name):
    action, needed = upstream_flags()[name], NEEDS.get(name, "").split()
    if action.nargs == 0:
        assert value_at(parse(f"--{name}", *needed), name) is True
        return
    text, expected = EXAMPLES.get(
        name, ("4", 4) if action.type is int else ("0.5", 0.5) if action.type is float else ("some", "some")
    )
    assert value_at(parse(f"--{name}", *text.split(), *needed), name) == expected


@pytest.mark.parametrize(
    ("argv", "key", "expected"),
    [
        ("--actor.adam.lr 3e-6", "actor.learning_rate", 3e-6),
        ("--actor.adam.betas 0.8 0.9", "actor.adam_betas", (0.8, 0.9)),
        ("--actor.adam.weight_decay 0.01", "actor.l2", 0.01),
        ("--actor.adam.eps 1e-6", "actor.adam_eps", 1e-6),
        ("--actor.eps_clip 0.1", "actor.eps_clip_low_high", (0.1, 0.1)),
        ("--actor.lr_scheduler cosine_with_min_lr", "actor.lr_scheduler", "cosine"),
        ("--actor.lr_scheduler linear", "actor.lr_scheduler", "linear"),
        ("--actor.lr_scheduler inverse_sqrt", "actor.lr_scheduler", "inverse_sqrt"),
        ("--actor.lr_scheduler polynomial", "actor.lr_scheduler", "linear"),
        ("--train.enable_ema", "train.ema_beta", 0.992),
        ("--ckpt.disable_ds", "ckpt.max_num", 0),
        ("--reward.model_name_or_path rm", "reward.name", "model"),
        ("--reward.model_name_or_path rm --reward.num_gpus_per_node 3", "reward.model_replicas", 3),
        ("--critic.adam.lr 3e-6", "critic.learning_rate", 3e-6),
        ("--critic.adam.betas 0.8 0.9", "critic.adam_betas", (0.8, 0.9)),
        ("--critic.adam.eps 1e-6", "critic.adam_eps", 1e-6),
        ("--critic.adam.weight_decay 0.01", "critic.l2", 0.01),
        ("--critic.lr_scheduler cosine_with_min_lr", "critic.lr_scheduler", "cosine"),
        ("--train.async_enable", "pipeline.mode", "one_step"),
        ("--train.async_enable --train.partial_rollout_enable", "pipeline.mode", "pipeline"),
        ("--train.partial_rollout_enable --train.async_enable", "pipeline.mode", "pipeline"),
        ("--algo.dynamic_filtering_enable", "filter.accuracy_range", (0.0, 1.0)),
        ("--algo.dynamic_filtering_enable", "filter.order", ["accuracy"]),
        ("--algo.dynamic_filtering_range 0.2 0.8 --algo.dynamic_filtering_enable", "filter.accuracy_range", (0.2, 0.8)),
        ("--ckpt.load_enable", "train.resume", True),
        ("--ckpt.load_enable", "train.resume_or_start", True),
        ("--train.dynamic_batch_enable", "ds.packing_samples", True),
        ("--train.async_enable --train.async_queue_size 1", "pipeline.mode", "one_step"),
        ("--train.async_enable --train.async_queue_size 3", "pipeline.mode", "pipeline_drain"),
        ("--train.async_enable --train.async_queue_size 3", "batches_ahead", 3),
        ("--train.async_enable --train.partial_rollout_enable --train.async_queue_size 2", "pipeline.mode", "pipeline"),
        ("--train.async_enable --train.partial_rollout_enable --train.async_queue_size 2", "max_staleness", 2),
        ("--actor.optim muon --actor.muon.no_nesterov", "actor.muon.nesterov", False),
        ("--critic.optim muon --critic.muon.no_nesterov", "critic.muon.nesterov", False),
    ],
)
def test_a_translated_flag_lands_where_the_table_says(argv, key, expected):
    assert value_at(parse(*argv.split()), key) == expected


def test_every_translated_flag_is_covered_above():
    translated = {n for n, r in RULES.items() if isinstance(r, Becomes)}
    marks = test_a_translated_flag_lands_where_the_table_says.pytestmark
    tried = {word.removeprefix("--") for argv, *_ in marks[0].args[1] for word in argv.split() if word.startswith("--")}
    assert translated <= tried


@pytest.mark.parametrize("name", [n for n, r in RULES.items() if isinstance(r, Only)])
def test_a_flag_with_one_supported_value_takes_that_and_refuses_others(name):
    problems = Problems()
    assert translate({name: [RULES[name].value]}, {}, problems) == {}
    assert not problems
    translate({name: ["7"]}, {}, problems)
    with pytest.raises(ConfigError, match=rf"--{re.escape(name)} 7 .*{re.escape(RULES[name].value)}") as e:
        problems.raise_any()
    assert e.value.code == "invalid_value"


@pytest.mark.parametrize("name", [n for n, r in RULES.items() if isinstance(r, Implied)])
def test_an_implied_flag_changes_nothing(name):
    assert parse(f"--{name}", *([] if upstream_flags()[name].nargs == 0 else ["4"])) == load()


def test_our_own_name_and_a_translated_one_that_says_something_else_are_refused():
    with pytest.raises(
        ConfigError,
        match=r"--actor\.adam\.lr 1e-5 .*--actor\.learning_rate .*1e-4",
    ):
        parse("--actor.learning_rate", "1e-4", "--actor.adam.lr", "1e-5")
    assert parse("--actor.learning_rate", "1e-4", "--actor.adam.lr", "1e-4").actor.learning_rate == 1e-4
    assert parse("--pipeline.mode", "pipeline", "--train.async_enable").pipeline.mode == "pipeline"


def test_a_translated_flag_without_its_value_is_refused():
    with pytest.raises(ConfigError, match=r"--actor\.adam\.lr ") as e:
        parse("--actor.adam.lr")
    assert e.value.code == "invalid_value"


def test_a_queue_without_async_training_is_refused():
    with pytest.raises(ConfigError, match=r"--train\.async_queue_size .*--train\.async_enable"):
        parse("--train.async_queue_size", "2")


def test_what_is_honoured_takes_other_values_than_openrlhfs_default():
    assert all(not isinstance(RULES[name], Refused | Only) for name in honoured())
    assert {"data.max_images_per_prompt", "vllm.sync_with_ray", "use_ms"}.isdisjoint(honoured())
    assert honoured() <= set(upstream_flags())


def test_whatever_openrlhf_lists_as_the_values_of_an_honoured_flag_is_taken():
    listed = {
        name: action.choices for name, action in upstream_flags().items() if name in honoured() and action.choices
    }
    assert len(listed) > 5
    refused = {}
    for name, values in listed.items():
        for value in values:
            try:
                parse(f"--{name}", str(value), *NEEDS.get(name, "").split())
            except ConfigError as e:
                refused[name, value] = str(e)
    assert not refused
