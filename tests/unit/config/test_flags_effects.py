"""Flags: what has no effect, what has another name, how numbers are written, and that all mistakes are told at once."""

from __future__ import annotations

import tomllib

import pytest

from openrlhf_tir.algorithms.advantages import ESTIMATORS
from openrlhf_tir.cli import COMMANDS, main
from openrlhf_tir.config.effects.rows import GROUP_ESTIMATORS, IDLE, NOT_WHITENED, ONE_ENVIRONMENT
from openrlhf_tir.config.openrlhf_flags import RULES, translate
from openrlhf_tir.config.openrlhf_renamed import NAMES
from openrlhf_tir.config.problems import Problems
from openrlhf_tir.config.rules import CRITIC_FREE
from openrlhf_tir.config.sections.early_accumulation import WHOLE_BATCH
from openrlhf_tir.config.settings import known_keys
from openrlhf_tir.errors import ConfigError


def shown(capsys, *argv: str) -> dict:
    assert main(["show-config", "--changes", *argv]) == 0, capsys.readouterr().err
    return tomllib.loads(capsys.readouterr().out)


def mistakes(capsys, *argv: str) -> list[str]:
    assert main(list(argv)) == 2
    return capsys.readouterr().err.strip().splitlines()


@pytest.mark.parametrize(
    ("argv", "fact"),
    [
        (
            "--actor.eps_clip 0.1 --actor.eps_clip_low_high 0.1 0.3",
            "--actor.eps_clip has no effect beside --actor.eps_clip_low_high",
        ),
        ("--actor.min_lr_ratio 0.5", "--actor.min_lr_ratio has no effect with --actor.lr_scheduler constant"),
        (
            "--algo.advantage.is_correction_threshold 0.1 3",
            "has no effect while --algo.advantage.is_correction_level is off",
        ),
        (
            "--algo.advantage.gamma 0.9",
            "--algo.advantage.gamma has no effect with an estimator that compares whole trajectories",
        ),
        ("--algo.advantage.no_std_norm --algo.advantage.estimator rloo", "--algo.advantage.no_std_norm has no effect"),
        (
            "--actor.eps_clip_low_high 0.1 0.2 --actor.policy_loss_type pg",
            "with --actor.policy_loss_type pg, which has no ratio to clip",
        ),
        (
            "--actor.dual_clip 3 --actor.policy_loss_type cispo",
            "--actor.dual_clip has no effect but with --actor.policy_loss_type ppo or gspo",
        ),
        ("--actor.loss_agg_constant 100", "has no effect without --actor.loss_agg_mode seq-mean-token-sum-norm"),
        ("--data.curriculum_explore 0.5", "--data.curriculum_explore has no effect while --data.curriculum is off"),
        (
            "--train.env_mask_from 9 --train.env_mask false",
            "--train.env_mask_from has no effect with --train.env_mask false",
        ),
        ("--train.env_coef 0.1", "--train.env_coef has no effect while tool output is masked"),
        (
            "--actor.pi_old learner --actor.policy_loss_type pg",
            "--actor.pi_old has no effect with --actor.policy_loss_type pg",
        ),
        ("--actor.policy_loss_options c=3", "--actor.policy_loss_options has no effect without --actor.policy_loss"),
        ("--algo.advantage.options a=1", "--algo.advantage.options has no effect with an estimator of ours"),
        ("--filter.options a=1", "--filter.options has no effect with filters of ours"),
        ("--reward.options a=1", "--reward.options has no effect with a reward that has none"),
        ("--train.resume_from step_000020", "--train.resume_from has no effect without --train.resume"),
        ("--ds.lora.alpha 32", "--ds.lora.alpha has no effect while --ds.lora.rank is 0"),
        ("--critic.learning_rate 1e-5", "--critic.learning_rate has no effect with an estimator that has no critic"),
        (
            "--algo.advantage.estimator gae --critic.min_lr_ratio 0.5",
            "--critic.min_lr_ratio has no effect with --critic.lr_scheduler constant",
        ),
        ("--algo.kl.estimator k3", "--algo.kl.estimator has no effect while --algo.kl.init_coef is 0"),
        (
            "--algo.kl.init_coef 0.1 --algo.kl.unbiased_gradient false",
            "--algo.kl.unbiased_gradient has no effect without --algo.kl.use_loss",
        ),
        ("--reward.model_replicas 2", "--reward.model_replicas has no effect without --reward.model_name_or_path"),
        (
            "--reward.overlong_penalty_factor 2",
            "--reward.overlong_penalty_factor has no effect without --reward.overlong_buffer_len",
        ),
        ("--train.ema_beta 0.9", "--train.ema_beta has no effect without --train.enable_ema"),
        ("--ds.zero_stage 2 --ds.zpg 4", "--ds.zpg has no effect with --ds.zero_stage 2"),
        (
            "--ds.zero_stage 2 --algo.kl.init_coef 0.1 --ref.offload",
            "--ref.offload has no effect with --ds.zero_stage 2",
        ),
        (
            "--pipeline.overadmit_risk 0.1 --pipeline.depth 128",
            "--pipeline.overadmit_risk has no effect unless --pipeline.depth is auto",
        ),
        ("--rollout.max_batch 4", "--rollout.max_batch has no effect while --rollout.max_wait_ms is 0"),
        ("--env.max_batch 4 --env.batch_wait_ms 0", "--env.max_batch has no effect"),
        ("--env.workers 8 --env.url http://h:1", "--env.workers has no effect with --env.url"),
        ("--reward.env_reduce max", "--reward.env_reduce has no effect without the reward 'env'"),
        ("--reward.group_options c=3", "--reward.group_options has no effect without --reward.group"),
        (
            "--filter.accuracy_range 0.1 0.9 --filter.names zero_variance",
            "while --filter.names leaves the filter 'accuracy' out",
        ),
        ("--filter.names --filter.zero_variance false", "while --filter.names leaves the filter 'zero_variance' out"),
        (
            "--filter.max_length_gap 9 --filter.names accuracy",
            "while --filter.names leaves the filter 'length_gap' out",
        ),
        (
            "--filter.max_truncated 0.5 --filter.names accuracy",
            "while --filter.names leaves the filter 'truncated' out",
        ),
        ("--filter.reward_range -1 2", "--filter.reward_range has no effect unless --filter.names has 'reward'"),
        (
            "--filter.max_verifier_failures 0.1",
            "--filter.max_verifier_failures has no effect unless --filter.names has 'verifiers'",
        ),
        (
            "--rollout.agent_idle_s 5",
            "--rollout.agent_idle_s has no effect without --rollout.agent external or --train.agent_func_path",
        ),
        ("--rollout.agent_workers 2", "--rollout.agent_workers has no effect without --train.agent_func_path"),
        ("--rollout.agent_overflow cut", "--rollout.agent_overflow has no effect without --rollout.agent external"),
        (
            f"--train.agent_func_path {__file__} --env.url http://h:1",
            "--env.url has no effect with --train.agent_func_path",
        ),
        ("--reward.remote_timeout_s 5", "--reward.remote_timeout_s has no effect without --reward.remote_url"),
        ("--rollout.straggler_s 4000", "--rollout.straggler_s has no effect at or above --rollout.group_deadline_s"),
        ("--logger.wandb.group g", "--logger.wandb.group has no effect while --logger.wandb.key is unset"),
        ("--eval.split dev", "--eval.split has no effect without --eval.dataset"),
        ("--train.new_ledger", "--train.new_ledger has no effect without --train.resume"),
        ("--actor.muon.lr 0.01", "--actor.muon.lr has no effect with --actor.optim adam"),
        (
            "--algo.advantage.estimator gae --critic.muon.ns_steps 3",
            "--critic.muon.ns_steps has no effect with --critic.optim adam",
        ),
        ("--actor.optim muon --actor.max_norm 0.5", "--actor.max_norm has no effect with --actor.optim muon"),
        (
            "--algo.advantage.estimator gae --critic.optim muon --critic.max_norm 0.5",
            "--critic.max_norm has no effect with --critic.optim muon",
        ),
        ("--actor.gradient_checkpointing_reentrant", "has no effect without --actor.gradient_checkpointing_enable"),
        ("--ckpt.max_mem 9 --ckpt.disable_ds", "--ckpt.max_mem has no effect with --ckpt.disable_ds"),
        ("--ckpt.save_hf --ckpt.save_steps -1", "--ckpt.save_hf has no effect while --ckpt.save_steps is -1"),
        (
            "--logger.tensorboard_dir tb --no-logger.tensorboard",
            "--logger.tensorboard_dir has no effect without --logger.tensorboard",
        ),
        (
            "--data.dataloader_num_workers 2",
            "--data.dataloader_num_workers has no effect without --data.apply_chat_template",
        ),
        ("--env.code_timeout_s 3 --env.url http://h:1", "--env.code_timeout_s has no effect with --env.url"),
        (
            "--env.code_timeout_s 3 --env.name echo",
            "--env.code_timeout_s has no effect but with the environment python_tir",
        ),
        (
            "--env.stateful --env.file env_servers.guess:GuessEnv",
            "--env.stateful has no effect but with the environment python_tir",
        ),
        ("--env.workers 8 --env.file env_servers.guess:GuessEnv", "--env.workers has no effect with --env.file"),
        ("--eval.max_tries 5", "--eval.max_tries has no effect without --eval.dataset"),
        (
            "--vllm.enforce_eager --rollout.engine torch",
            "--vllm.enforce_eager has no effect with --rollout.engine torch",
        ),
        (
            "--reward.format boxed --reward.name env",
            "--reward.format has no effect with rewards that do not look at the response's tags",
        ),
        (
            "--reward.name zerotir --reward.weights math=1 env=0.1",
            "--reward.name has no effect beside --reward.weights",
        ),
        (
            "--data.apply_chat_template --data.rendered",
            "--data.rendered has no effect with --data.apply_chat_template",
        ),
        (
            "--data.chat_template_options enable_thinking=false",
            "--data.chat_template_options has no effect without --data.apply_chat_template",
        ),
        (
            "--env.options base_stops=User: --rollout.agent external",
            "--env.options has no effect with --rollout.agent external",
        ),
        ("--env.name echo --envs.a.url http://h:1", "--env.name has no effect with [envs.NAME]"),
        ("--env.max_calls 7 --rollout.agent external", "--env.max_calls has no effect with --rollout.agent external"),
    ],
)
def test_a_flag_that_changes_nothing_is_refused(capsys, argv, fact):
    (line,) = mistakes(capsys, "show-config", *argv.split())
    assert fact in line
    assert line.rstrip().endswith(
        ("leave it out.", "Leave it out.", "Leave one of them out.", "have a server started.")
    )


def test_every_rule_of_effects_is_tried_above_and_names_fields():
    marks = test_a_flag_that_changes_nothing_is_refused.pytestmark
    tried = " ".join(argv for argv, _ in marks[0].args[1])
    for idle in [*IDLE, ONE_ENVIRONMENT]:
        assert set(idle.keys.split()) <= set(known_keys())
        assert any(f"--{key} " in f"{tried} " for key in idle.keys.split()), idle.keys


TWO_ENVS = "--envs.a.url http://a:1 --envs.b.url http://b:1 "


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (
            "--envs.a.filter.accuracy_range 0.2 0.7 --envs.a.filter.names zero_variance",
            "--envs.a.filter.accuracy_range has no effect while --envs.a.filter.names leaves the filter 'accuracy' out",
        ),
        (
            "--envs.a.reward.name math --envs.a.reward.env_reduce last",
            "--envs.a.reward.env_reduce has no effect without the reward 'env'. Set --envs.a.reward.name",
        ),
        ("--envs.a.code_timeout_s 3", "--envs.a.code_timeout_s has no effect with --envs.a.url"),
        ("--env.workers 8", "--env.workers has no effect with --env.url"),
        (
            "--filter.accuracy_range 0.2 0.7 --filter.names zero_variance",
            "--filter.accuracy_range has no effect while --filter.names leaves",
        ),
    ],
)
def test_what_one_environment_does_not_look_at_is_said_of_that_one(capsys, argv, said):
    (line,) = mistakes(capsys, "show-config", *f"{TWO_ENVS} {argv}".split())
    assert said in line


def test_what_one_of_several_environments_looks_at_is_let_pass(capsys):
    argv = (
        "--filter.names zero_variance --filter.accuracy_range 0.2 0.7 --envs.b.filter.names accuracy"
        " --reward.env_reduce last --envs.a.reward.name env"
    )
    assert shown(capsys, *f"{TWO_ENVS} {argv}".split())["filter"]["accuracy_range"] == [0.2, 0.7]


def test_a_reward_named_by_a_flag_is_used_in_place_of_the_recipes_weights(capsys, tmp_path):
    (tmp_path / "r.toml").write_text("[reward.weights]\nenv = 1.0\nformat = 0.1\n[reward.options.env]\n")
    (tmp_path / "child.toml").write_text('extends = "r.toml"\n[reward]\nname = "zerotir"\n')
    assert shown(capsys, "--recipe", str(tmp_path / "r.toml"), "--reward.name", "zerotir")["reward"] == {
        "name": "zerotir"
    }
    assert shown(capsys, "--recipe", str(tmp_path / "child.toml"))["reward"] == {"name": "zerotir"}
    both = shown(capsys, "--recipe", str(tmp_path / "r.toml"), "--reward.env_reduce", "last")["reward"]
    assert both["weights"] == {"env": 1.0, "format": 0.1}


def test_a_flag_that_says_what_holds_anyway_is_let_pass(capsys):
    assert "algo" not in shown(
        capsys, "--algo.advantage.is_correction_threshold", "0.5", "5.0", "--actor.min_lr_ratio", "0.1"
    )


def test_a_recipe_may_hold_what_a_flag_may_not(capsys, tmp_path):
    (tmp_path / "r.toml").write_text("[actor]\nmin_lr_ratio = 0.5\n")
    assert shown(capsys, "--recipe", str(tmp_path / "r.toml"))["actor"]["min_lr_ratio"] == 0.5


def test_the_quickstart_makes_the_problems_that_it_evaluates_on(capsys):
    """Its one other mistake is told, and --eval.max_samples is none."""
    (line,) = mistakes(capsys, "quickstart", "--eval.max_samples", "32", "--run-dir", "/dev/null/x")
    assert "/dev/null is not a directory" in line
    assert any(
        "--eval.max_samples has no effect" in line
        for line in mistakes(capsys, "train", "--recipe", "quickstart_cpu", "--eval.max_samples", "32")
    )


def test_the_estimators_named_by_effects_are_the_registrys():
    assert {n for n, e in ESTIMATORS.items() if not e.whiten} == set(NOT_WHITENED)
    assert set(ESTIMATORS) - {"reinforce", "gae"} == set(GROUP_ESTIMATORS)
    assert {n for n, e in ESTIMATORS.items() if not e.critic} == set(CRITIC_FREE)
    assert {n for n, e in ESTIMATORS.items() if e.whole_batch} == set(WHOLE_BATCH)


@pytest.mark.parametrize("value", ["-1", "-0.5", "-1e-3", "-.5", "-2.", "-1E+3", "-inf", "-nan"])
def test_a_negative_number_is_a_value_not_a_flag(capsys, value):
    (line,) = mistakes(capsys, "show-config", "--actor.learning_rate", value)
    assert f"actor.learning_rate = '{value}' is not accepted" in line


def test_negative_numbers_reach_fields_that_take_them(capsys):
    assert shown(capsys, "--actor.entropy_coef", "-1e-3")["actor"]["entropy_coef"] == -0.001


def test_unset_is_accepted_where_help_shows_it(capsys):
    assert (
        shown(capsys, "--recipe", "zerotir_7b", "--actor.model_name_or_path", "unset")["actor"].get(
            "model_name_or_path", ""
        )
        == ""
    )
    table = shown(
        capsys, "--recipe", "zerotir_7b", "--actor.eps_clip_low_high", "unset", "--vllm.max_model_len", "unset"
    )
    assert table["actor"]["eps_clip_low_high"] == "unset"
    assert "max_model_len" not in table.get("vllm", {})


@pytest.mark.parametrize("argv", [["help"], ["help", "train"], ["help", "audit"]])
def test_help_is_a_command(capsys, argv):
    with pytest.raises(SystemExit) as e:
        main(argv)
    assert e.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: openrlhf-tir {' '.join(argv[1:])}")
    assert argv[1:] or all(c in out for c in COMMANDS)


PORTED = """--use_ms --reward.remote_url /a/b.py --critic.muon.lr 1 --train.colocate_all --ds.load_in_4bit
--ds.deepcompile --vllm.sync_with_ray --algo.advantage.estimator gae --algo.kl.init_coef 0.01 --algo.kl.use_loss
--train.max_epochs 2 --rollout.temperature 0.7 --reward.normalize_enable --actor.adam.lr fast
--data.prompt_dataset OpenRLHF/prompts --ds.lora.rank 8 --eval.n_samples 3 --actor.dual_clip 0.5 --pretrain org/model"""
"""A script as they come: every line of it has something that cannot be taken over, or not so."""

REFUSED = """use_ms /a/b.py critic.muon.lr train.colocate_all ds.load_in_4bit ds.deepcompile vllm.sync_with_ray
reward.normalize_enable actor.learning_rate eval.n_samples actor.dual_clip
--actor.model_name_or_path"""


def test_a_ported_script_is_refused_once_with_everything_that_it_must_change(capsys):
    shown_lines = mistakes(capsys, "show-config", *PORTED.split())
    assert len(shown_lines) == 1 + len(REFUSED.split()), shown_lines  # the first: what to do with all of OpenRLHF's
    for name in REFUSED.split():
        assert any(name in line for line in shown_lines), name


def test_show_config_and_train_agree(capsys):
    """What show-config refuses train refuses in the same words; train looks at machine, model and data besides."""
    shown_lines = mistakes(capsys, "show-config", *PORTED.split())
    train_lines = mistakes(capsys, "train", "--check-only", *PORTED.split(), "--data.prompt_dataset", "/nowhere.jsonl")
    assert [line for line in train_lines if line in shown_lines] == shown_lines
    assert any("/nowhere.jsonl" in line for line in train_lines)


def test_flags_of_openrlhf_0_11_0_are_known():
    enable, kind = "algo.advantage.is_correction_enable", "algo.advantage.is_correction_type"
    level, mode = "algo.advantage.is_correction_level", "algo.advantage.is_correction_mode"
    problems = Problems()
    assert translate({enable: []}, {}, problems) == {level: "token", mode: "clip"}
    assert translate({enable: [], kind: ["icepop"]}, {}, problems) == {level: "token", mode: "mask"}
    assert translate({kind: ["seq-mask-tis"], enable: []}, {}, problems) == {level: "seq", mode: "mask"}
    assert not problems
    translate({kind: ["icepop"]}, {}, problems)
    with pytest.raises(ConfigError, match=r"without --algo\.advantage\.is_correction_enable"):
        problems.raise_any()
    problems = Problems()
    translate({enable: [], kind: ["x"]}, {}, problems)
    with pytest.raises(ConfigError, match=r"tis \| icepop \| seq-mask-tis"):
        problems.raise_any()


def test_flat_names_of_older_versions_lead_to_names_that_there_are():
    assert NAMES["pretrain"] == "actor.model_name_or_path"
    assert len(NAMES) > 120
    for new in NAMES.values():
        assert new in RULES


def test_flat_names_are_all_told_with_their_new_ones(capsys):
    first, *lines = mistakes(
        capsys, "show-config", "--pretrain", "x", "--micro_train_batch_size", "8", "--critic_pretrain", "y", "--bf16"
    )
    assert "import-openrlhf" in first
    assert [line.split(" is ")[0] for line in lines] == [
        "--pretrain",
        "--micro_train_batch_size",
        "--critic_pretrain",
        "--bf16",
    ]
    assert "--critic.model_name_or_path" in lines[2]


def test_flags_of_openrlhf_change_nothing_silently(capsys):
    """What was written for OpenRLHF counts on its defaults, PPO with one sample among them: all is refused."""
    first, rate, mode = mistakes(capsys, "show-config", "--actor.adam.lr", "5e-7", "--train.async_enable")
    assert "import-openrlhf" in first
    assert "--actor.learning_rate 5e-7" in rate and "--pipeline.mode one_step" in mode


def test_several_unknown_words_are_told_together(capsys):
    lines = mistakes(capsys, "show-config", "stray", "--trian.seed", "3", "--actor.l2", "1", "--vlm.x")
    assert len(lines) == 3, lines
