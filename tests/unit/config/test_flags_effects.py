"""Flags: what has no effect, what has another name, how numbers are written, and that all mistakes are told at once."""

from __future__ import annotations

import re
import tomllib

import pytest

from openrlhf_tir.algorithms.advantages import ESTIMATORS
from openrlhf_tir.cli import main
from openrlhf_tir.cli.command_line import COMMANDS, build_parser
from openrlhf_tir.cli.configuration import config_of
from openrlhf_tir.config import Config
from openrlhf_tir.config.catalog import all_settings
from openrlhf_tir.config.openrlhf_flags import RULES, translate
from openrlhf_tir.config.openrlhf_renamed import NAMES
from openrlhf_tir.config.problems import Problems
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
        ("--actor.min_lr_ratio 0.5", r"--actor\.min_lr_ratio.*actor\.lr_scheduler = 'constant'"),
        (
            "--algo.advantage.is_correction_threshold 0.1 3",
            r"algo\.advantage\.is_correction_level = 'off'",
        ),
        (
            "--algo.advantage.gamma 0.9",
            r"--algo\.advantage\.gamma",
        ),
        ("--algo.advantage.no_std_norm --algo.advantage.estimator rloo", r"--algo\.advantage\.no_std_norm"),
        (
            "--actor.eps_clip_low_high 0.1 0.2 --actor.policy_loss_type pg",
            r"--actor\.eps_clip_low_high.*actor\.policy_loss_type = 'pg'",
        ),
        (
            "--actor.dual_clip 3 --actor.policy_loss_type cispo",
            r"--actor\.dual_clip.*actor\.policy_loss_type = 'cispo'.*ppo.*gspo",
        ),
        *(
            (
                f"--actor.policy_loss_type gspo --actor.loss_agg_mode {mode}",
                r"--actor\.loss_agg_mode.*actor\.policy_loss_type = 'gspo'",
            )
            for mode in ("token-mean", "seq-mean-token-mean")
        ),
        ("--actor.loss_agg_constant 100", r"actor\.loss_agg_mode = 'token-mean'.*seq-mean-token-sum-norm"),
        (
            "--actor.pi_old learner --actor.policy_loss_type pg",
            r"--actor\.pi_old.*actor\.policy_loss_type = 'pg'",
        ),
        ("--actor.policy_loss_options c=3", r"--actor\.policy_loss_options.*actor\.policy_loss_type"),
        ("--algo.advantage.options a=1", r"--algo\.advantage\.options"),
        ("--reward.options a=1", r"--reward\.options"),
        ("--train.resume_from step_000020", r"--train\.resume_from.*train\.resume"),
        ("--ds.lora.alpha 32", r"--ds\.lora\.alpha.*ds\.lora\.rank.*0"),
        ("--critic.learning_rate 1e-5", r"--critic\.learning_rate"),
        (
            "--algo.advantage.estimator gae --critic.min_lr_ratio 0.5",
            r"--critic\.min_lr_ratio.*critic\.lr_scheduler = 'constant'",
        ),
        ("--algo.kl.estimator k3", r"--algo\.kl\.estimator.*algo\.kl\.init_coef.*0"),
        (
            "--algo.kl.init_coef 0.1 --algo.kl.unbiased_gradient false",
            r"--algo\.kl\.unbiased_gradient.*algo\.kl\.use_loss",
        ),
        ("--reward.model_replicas 2", r"--reward\.model_replicas.*reward\.model_name_or_path"),
        (
            "--reward.overlong_penalty_factor 2",
            r"--reward\.overlong_penalty_factor.*reward\.overlong_buffer_len",
        ),
        ("--ds.zero_stage 2 --ds.zpg 4", r"--ds\.zpg.*ds\.zero_stage = 2"),
        (
            "--ds.zero_stage 2 --algo.kl.init_coef 0.1 --ref.offload",
            r"--ref\.offload.*ds\.zero_stage = 2",
        ),
        ("--env.workers 8 --env.url http://h:1", r"--env\.workers.*env\.url"),
        ("--reward.group_options c=3", r"--reward\.group_options.*reward\.group"),
        (
            "--filter.accuracy_range 0.1 0.9 --filter.names zero_variance",
            r"filter\.names.*'accuracy'",
        ),
        ("--filter.options max_truncated=0.5 --filter.names accuracy", r"filter\.options.*filter\.names"),
        ("--filter.reward_range -1 2", r"--filter\.reward_range.*filter\.names.*'reward'"),
        (
            f"--train.agent_func_path {__file__} --env.url http://h:1",
            r"--env\.url.*train\.agent_func_path",
        ),
        ("--reward.remote_batch 5", r"--reward\.remote_batch.*reward\.remote_url"),
        ("--logger.wandb.group g", r"--logger\.wandb\.group.*logger\.wandb\.key"),
        ("--eval.max_samples 9", r"--eval\.max_samples.*eval\.dataset"),
        ("--eval.split dev", r"--eval\.split.*eval\.dataset"),
        ("--train.new_ledger", r"--train\.new_ledger.*train\.resume"),
        ("--actor.muon.lr 0.01", r"--actor\.muon\.lr.*actor\.optim = 'adam'"),
        (
            "--algo.advantage.estimator gae --critic.muon.ns_steps 3",
            r"--critic\.muon\.ns_steps.*critic\.optim = 'adam'",
        ),
        ("--actor.optim muon --actor.max_norm 0.5", r"--actor\.max_norm.*actor\.optim = 'muon'"),
        (
            "--algo.advantage.estimator gae --critic.optim muon --critic.max_norm 0.5",
            r"--critic\.max_norm.*critic\.optim = 'muon'",
        ),
        ("--actor.gradient_checkpointing_layers 3", r"actor\.gradient_checkpointing_enable = False"),
        ("--ds.share_prompts false", r"--ds\.share_prompts.*ds\.packing_samples = False"),
        ("--ckpt.save_hf --ckpt.save_steps -1", r"--ckpt\.save_hf.*ckpt\.save_steps.*-1"),
        (
            "--env.code_timeout_s 3 --env.name echo",
            r"--env\.code_timeout_s.*python_tir",
        ),
        ("--env.workers 8 --env.file env_servers.guess:GuessEnv", r"--env\.workers.*env\.file"),
        (
            "--vllm.enforce_eager --rollout.engine torch",
            r"--vllm\.enforce_eager.*rollout\.engine = 'torch'",
        ),
        (
            "--reward.format boxed --reward.name env",
            r"--reward\.format\b",
        ),
        (
            "--reward.name zerotir --reward.weights math=1 env=0.1",
            r"--reward\.name.*reward\.weights",
        ),
        (
            "--data.apply_chat_template --data.rendered",
            r"--data\.rendered.*data\.apply_chat_template",
        ),
        (
            "--data.chat_template_options enable_thinking=false",
            r"--data\.chat_template_options.*data\.apply_chat_template",
        ),
        (
            "--env.options base_stops=User: --rollout.agent external",
            r"--env\.options.*rollout\.agent = 'external'",
        ),
        ("--env.name echo --envs.a.url http://h:1", r"--env\.name.*\[envs\.NAME\]"),
        ("--env.max_calls 7 --rollout.agent external", r"--env\.max_calls.*rollout\.agent = 'external'"),
    ],
)
def test_a_flag_that_changes_nothing_is_refused(argv, fact):
    args, args.unknown = build_parser("show-config").parse_known_args(["show-config", *argv.split()])
    with pytest.raises(ConfigError, match=fact) as caught:
        config_of(args)
    assert [problem.code for problem in caught.value.problems] == ["no_effect"]


def test_every_condition_is_tried_above():
    marks = test_a_flag_that_changes_nothing_is_refused.pytestmark
    tried = " ".join(argv for argv, _ in marks[0].args[1])
    settings_of_condition: dict[str, list[str]] = {}
    for setting in all_settings():
        for condition in setting.active_when:
            settings_of_condition.setdefault(condition.text, []).append(setting.name)
    for text, settings in settings_of_condition.items():
        assert any(f"--{name} " in f"{tried} " for name in settings), text


TWO_ENVS = "--envs.a.url http://a:1 --envs.b.url http://b:1 "


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (
            "--envs.a.filter.accuracy_range 0.2 0.7 --envs.a.filter.names zero_variance",
            r"--envs\.a\.filter\.accuracy_range.*envs\.a\.filter\.names.*'accuracy'",
        ),
        (
            "--envs.a.reward.name math --envs.a.reward.options reduce=last",
            r"--envs\.a\.reward\.options.*envs\.a\.reward\.name",
        ),
        ("--envs.a.workers 8", r"--envs\.a\.workers.*envs\.a\.url"),
        ("--env.workers 8", r"--env\.workers.*\(envs\.a\.url = 'http://a:1'\).*env\.url unset"),
        (
            "--filter.accuracy_range 0.2 0.7 --filter.names zero_variance",
            r"--filter\.accuracy_range.*\(envs\.a\.filter\.names = .*zero_variance",
        ),
    ],
)
def test_what_one_environment_does_not_look_at_is_said_of_that_one(capsys, argv, said):
    (line,) = mistakes(capsys, "show-config", *f"{TWO_ENVS} {argv}".split())
    assert re.search(said, line)


def test_what_one_of_several_environments_looks_at_is_let_pass(capsys):
    argv = (
        "--filter.names zero_variance --filter.accuracy_range 0.2 0.7 --envs.b.filter.names accuracy"
        " --reward.options reduce=last --envs.a.reward.name env"
    )
    assert shown(capsys, *f"{TWO_ENVS} {argv}".split())["filter"]["accuracy_range"] == [0.2, 0.7]


def test_a_setting_that_the_learner_applies_to_whole_batches_is_none_of_one_environment(capsys):
    (line,) = mistakes(capsys, "show-config", *f"{TWO_ENVS} --envs.a.filter.max_base_ppl 5".split())
    assert "envs.a.filter.max_base_ppl" in line and "filter.max_base_ppl" in line
    assert shown(capsys, *f"{TWO_ENVS} --filter.max_base_ppl 5".split())["filter"]["max_base_ppl"] == 5.0


def test_an_offline_run_of_wandb_has_a_name_without_a_key(capsys):
    wandb = shown(capsys, "--logger.wandb.key", "offline", "--logger.wandb.run_name", "first")["logger"]["wandb"]
    assert wandb == {"key": "offline", "run_name": "first"}


def test_a_reward_named_by_a_flag_is_used_in_place_of_the_recipes_weights(capsys, tmp_path):
    (tmp_path / "r.toml").write_text("[reward.weights]\nenv = 1.0\nformat = 0.1\n[reward.options.env]\n")
    (tmp_path / "child.toml").write_text('extends = "r.toml"\n[reward]\nname = "zerotir"\n')
    assert shown(capsys, "--recipe", str(tmp_path / "r.toml"), "--reward.name", "zerotir")["reward"] == {
        "name": "zerotir"
    }
    assert shown(capsys, "--recipe", str(tmp_path / "child.toml"))["reward"] == {"name": "zerotir"}
    both = shown(capsys, "--recipe", str(tmp_path / "r.toml"), "--reward.format", "boxed")["reward"]
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
    assert "/dev/null" in line
    assert any(
        "--eval.max_samples " in line
        for line in mistakes(capsys, "train", "--recipe", "quickstart_cpu", "--eval.max_samples", "32")
    )


@pytest.mark.parametrize(
    ("setting", "having_an_effect"),
    [
        ("algo.advantage.no_std_norm", {"reinforce", "reinforce_baseline", "gae"}),
        ("algo.advantage.gamma", {"reinforce", "gae"}),
        ("critic.learning_rate", {"gae"}),
    ],
)
def test_the_estimators_say_which_settings_have_an_effect(setting, having_an_effect):
    (conditions,) = [s.active_when for s in all_settings() if s.name == setting]
    for name in ESTIMATORS:
        cfg = Config(algo={"advantage": {"estimator": name}})
        assert all(condition.holds(cfg) for condition in conditions) == (name in having_an_effect), name


@pytest.mark.parametrize("value", ["-1", "-0.5", "-1e-3", "-.5", "-2.", "-1E+3", "-inf", "-nan"])
def test_a_negative_number_is_a_value_not_a_flag(capsys, value):
    (line,) = mistakes(capsys, "show-config", "--actor.learning_rate", value)
    assert f"actor.learning_rate = '{value}'" in line


def test_negative_numbers_reach_fields_that_take_them(capsys):
    assert shown(capsys, "--actor.entropy_coef", "-1e-3")["actor"]["entropy_coef"] == -0.001


def test_unset_is_accepted_where_help_shows_it(capsys):
    assert (
        shown(capsys, "--recipe", "zerotir_7b", "--actor.model_name_or_path", "unset")["actor"].get(
            "model_name_or_path", ""
        )
        == ""
    )
    table = shown(capsys, "--recipe", "zerotir_7b", "--logger.tensorboard_dir", "unset", "--actor.dual_clip", "unset")
    assert table["logger"]["tensorboard_dir"] == "unset"
    assert "dual_clip" not in table["actor"]


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
    """What show-config refuses train refuses too; train looks at machine, model and data besides."""
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
    with pytest.raises(ConfigError, match=r"--algo\.advantage\.is_correction_enable"):
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
    assert [line.split()[0] for line in lines] == [
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
