"""The command line of `sft`: which settings it has, OpenRLHF's train_sft names, and what is refused."""

from __future__ import annotations

import re

import pytest

from openrlhf_tir.config.catalog import known_keys
from openrlhf_tir.config.fine_tuning import NAMES, USED, add_flags, config_of
from openrlhf_tir.config.flags import Parser
from openrlhf_tir.config.problems import Problems
from openrlhf_tir.config.sections.pipeline import ALONE
from openrlhf_tir.errors import ConfigError

HERE = "--actor.num_gpus_per_node 1 --sft.dataset d.jsonl"


def config(*argv: str):
    parser, problems = Parser(allow_abbrev=False), Problems()
    add_flags(parser)
    args, args_extra = parser.parse_known_args(argv)
    args.unknown = args_extra
    cfg = config_of(args, problems)
    problems.raise_any()
    return cfg


def test_every_setting_that_is_named_exists():
    assert set(known_keys()) >= USED and set(NAMES.values()) <= USED


def test_openrlhfs_names_of_train_sft_set_what_they_mean():
    argv = (
        "--model.model_name_or_path m --data.dataset d.jsonl --data.input_key q --data.output_key a --adam.lr 2e-5"
        " --adam.betas 0.9 0.98 --train.batch_size 32 --train.max_epochs 3 --train.micro_batch_size 4 --data.max_len"
        " 512 --lr_scheduler cosine_with_min_lr --data.apply_chat_template --eval.dataset e.jsonl --eval.steps 10"
        " --actor.num_gpus_per_node 1 --ds.zero_stage 2 --ckpt.load_enable"
    )
    cfg = config(*argv.split())
    s = cfg.sft
    assert (cfg.actor.model_name_or_path, s.dataset, s.input_key) == ("m", "d.jsonl", "q")
    assert (s.output_key, s.learning_rate) == ("a", 2e-5)
    assert (cfg.actor.adam_betas, s.batch_size, s.max_epochs) == ((0.9, 0.98), 32, 3)
    assert (cfg.train.micro_batch_size, s.max_len) == (4, 512)
    assert (s.lr_scheduler, s.apply_chat_template, s.eval_dataset) == ("cosine", True, "e.jsonl")
    assert (cfg.eval.steps, cfg.ds.zero_stage, cfg.train.resume) == (10, 2, True)
    assert (cfg.train.batch_size, cfg.train.max_epochs) == (None, 1)  # of RL, which it leaves alone


def test_a_recipe_of_rl_gives_model_and_ranks_and_nothing_of_its_rollouts():
    cfg = config("--recipe", "zerotir_ppo_7b", "--sft.dataset", "d.jsonl")
    assert (
        cfg.actor.model_name_or_path.startswith("Qwen/")
        and cfg.algo.advantage.estimator != "gae"
        and cfg.algo.kl.init_coef == 0
    )
    assert cfg.pipeline == ALONE


def test_what_a_recipe_of_rl_has_for_its_own_optimiser_breaks_no_rule_of_a_fine_tuning(tmp_path):
    (tmp_path / "rl.toml").write_text('[actor]\noptim = "muon"\naux_loss_coef = 0.01\n[train]\ncolocate_all = true\n')
    shared = "--actor.num_gpus_per_node 2 --ds.ring_attn_size 2 --ds.packing_samples --ds.attn_implementation sdpa"
    cfg = config("--recipe", str(tmp_path / "rl.toml"), "--sft.dataset", "d.jsonl", *shared.split())
    assert (cfg.actor.optim, cfg.actor.aux_loss_coef, cfg.ds.ring_attn_size) == ("adam", 0.0, 2)
    assert not cfg.engines_beside_ranks, "its learner has torch's AdamW, not the one whose states leave the GPU"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--actor.num_gpus_per_node 1", r"sft\.dataset"),
        (
            "--sft.dataset d --actor.num_gpus_per_node 8 --sft.batch_size 4",
            r"sft\.batch_size = 4.*8",
        ),
        (
            f"{HERE} --sft.output_key a",
            r"sft\.output_key = 'a'.*sft\.input_key",
        ),
        (
            f"{HERE} --sft.max_len 99999",
            r"sft\.max_len = 99999.*train\.max_tokens_per_gpu = 16192",
        ),
        (f"{HERE} --sft.mask_blocks interpreter", r"sft\.mask_blocks .*'interpreter'"),
        (f"{HERE} --rollout.batch_size 4", r"--rollout\.batch_size"),
        (f"{HERE} --actor.learning_rate 1", r"--actor\.learning_rate"),
        (
            f"{HERE} --train.batch_size 8 --sft.batch_size 9",
            r"--train\.batch_size .*--sft\.batch_size",
        ),
        (f"{HERE} --eval.steps 9", r"--eval\.steps 9 .*sft\.eval_dataset"),
        (f"{HERE} --sft.datset x", r"'sft\.dataset'"),
        (f"{HERE} --train.save_before_s 5", r"train\.save_before_s = 5 .*train\.stop_grace_s = 20"),
    ],
)
def test_what_cannot_work_is_one_line_with_fact_value_and_remedy(argv, message):
    with pytest.raises(ConfigError) as e:
        config(*argv.split())
    assert re.search(message, str(e.value)) and len(str(e.value).splitlines()) == 1


def test_several_mistakes_are_told_at_once():
    with pytest.raises(ConfigError) as e:
        config(
            "--sft.batch_size", "0", "--sft.lr_scheduler", "step", "--env.max_calls", "2",
            "--actor.num_gpus_per_node", "1",
        )  # fmt: skip
    said = str(e.value)
    assert all(
        re.search(name, said)
        for name in (
            "sft.batch_size = '0'",
            "sft.lr_scheduler = 'step'",
            r"--env\.max_calls",
            r"sft\.dataset",
        )
    )


def test_help_lists_what_fine_tuning_has_and_nothing_else():
    parser = Parser(prog="x")
    add_flags(parser)
    settings = {name for name in USED if "." in name}

    def listed(text: str) -> set[str]:
        return {name for name in re.findall(r"^  --([\w.]+)", text, re.MULTILINE) if "." in name}

    assert listed(parser.format_help_all()) == settings
    assert {"sft.dataset", "sft.learning_rate", "actor.model_name_or_path"} <= listed(parser.format_help()) <= settings
