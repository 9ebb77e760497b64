"""A script or command line of verl becomes a recipe, with a sentence for every difference."""

from __future__ import annotations

import tomllib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from openrlhf_tir.cli import main
from openrlhf_tir.config.integrations.separate_gpus import engines_apart
from openrlhf_tir.config.integrations.verl_import import import_verl
from openrlhf_tir.config.integrations.verl_left_out import NEEDS_NOTHING
from openrlhf_tir.config.integrations.verl_overrides import read_overrides, value_of
from openrlhf_tir.config.integrations.verl_settings import DEFAULTS, FROM_ONE_ON, NUMBERS, ROLLOUT
from openrlhf_tir.config.method_summary import method_summary
from openrlhf_tir.config.problems import Problems
from openrlhf_tir.config.settings import attempt, load


def recipe(*words, program="verl.trainer.main_ppo", **more):
    return import_verl(read_overrides(words), program=program, **more)


def settings(*words, **more):
    return recipe(*words, **more).draft.settings


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-3", -3),
        ("1e-6", 1e-6),
        ("0.28", 0.28),
        ("True", True),
        ("false", False),
        ("null", None),
        ("grpo", "grpo"),
        ("'error'", "error"),
        ('["console","wandb"]', ["console", "wandb"]),
        ("['console','tensorboard']", ["console", "tensorboard"]),
        ("[a, 'b,c', [1,2]]", ["a", "b,c", [1, 2]]),
        ("'[\"console\"]'", ["console"]),
        ("{a: 1, b: [x, y]}", {"a": 1, "b": ["x", "y"]}),
        ("", ""),
        ("Qwen/Qwen2-7B", "Qwen/Qwen2-7B"),
        ("10_000", 10000),
    ],
)
def test_values_are_typed_as_hydra_types_them(text, value):
    assert value_of(text) == value and type(value_of(text)) is type(value)


def test_signs_and_hydras_own_flags_are_read():
    found = read_overrides(
        ["+a.b=1", "++a.c=2", "~trainer.logger", "--config-path=conf", "--config-name", "x", "a.b=3", "d={e: {f: 1}}"]
    )
    assert found.values == {"a.b": 3, "a.c": 2, "d.e.f": 1} and found.removed == ["trainer.logger"]
    assert found.config == {"config-path": "conf", "config-name": "x"} and found.strange == []


GRPO = (
    *("algorithm.adv_estimator=grpo", "data.train_files=train.parquet", "data.train_batch_size=64"),
    *("data.max_prompt_length=100", "data.max_response_length=50", "actor_rollout_ref.model.path=m"),
    *("actor_rollout_ref.actor.ppo_mini_batch_size=16", "actor_rollout_ref.rollout.n=5"),
    *("actor_rollout_ref.actor.use_kl_loss=True", "actor_rollout_ref.actor.kl_loss_coef=0.01"),
)


@pytest.mark.parametrize(
    ("words", "apart"),
    [
        (("trainer.n_gpus_per_node=8",), (4, 4, 1)),
        (("trainer.n_gpus_per_node=8", "trainer.nnodes=2"), (4, 8, 1)),
        (("trainer.n_gpus_per_node=8", f"{ROLLOUT}.tensor_model_parallel_size=4"), (4, 1, 4)),
        (("trainer.n_gpus_per_node=4", f"{ROLLOUT}.tensor_model_parallel_size=4"), (2, 1, 2)),
        (("trainer.n_gpus_per_node=6", f"{ROLLOUT}.tensor_model_parallel_size=2"), (2, 2, 2)),
        (("trainer.n_gpus_per_node=1",), None),
    ],
)
def test_gpus_for_learner_and_engines_apart_keep_the_rules(words, apart):
    """80 samples an update: 3 ranks do not share them."""
    made = recipe(*GRPO, *words)
    size = next((int(word.partition("=")[2]) for word in words if "parallel" in word), 1)
    settings = engines_apart(made.draft, size)
    if apart is None:
        assert settings == {}
        return
    cfg = attempt(None, made.draft.settings | settings, problems := Problems())
    assert (cfg.actor.num_gpus_per_node, cfg.vllm.num_engines, cfg.vllm.tensor_parallel_size) == apart
    assert problems.lines == [] and not cfg.train.colocate_all


def test_what_is_deleted_is_not_set():
    assert "algo.kl.init_coef" not in settings(*GRPO, "~actor_rollout_ref.actor.use_kl_loss")


def test_grpo_is_said_in_our_settings():
    s = settings(*GRPO)
    assert s["algo.advantage.estimator"] == "group_norm" and s["pipeline.mode"] == "sync" and s["filter.names"] == []
    assert (s["rollout.batch_size"], s["rollout.n_samples_per_prompt"], s["train.batch_size"]) == (64, 5, 80)
    assert (s["rollout.max_new_tokens"], s["data.max_len"]) == (50, 150)
    assert (s["algo.kl.init_coef"], s["algo.kl.estimator"], s["algo.kl.use_loss"]) == (0.01, "k3", True)
    assert s["algo.kl.unbiased_gradient"] is False and s["actor.dual_clip"] == 3.0
    assert (s["env.protocol"], s["env.max_calls"], s["reward.name"]) == ("plain", 0, "verl")
    assert s["train.max_steps"] % 4 == 0, "a batch makes four updates"


@pytest.mark.parametrize(
    ("words", "setting", "value"),
    [
        ("algorithm.adv_estimator=gae", "algo.advantage.estimator", "gae"),
        ("algorithm.adv_estimator=gae critic.optim.lr=2e-5", "critic.learning_rate", 2e-5),
        ("algorithm.adv_estimator=rloo", "algo.advantage.estimator", "rloo"),
        ("algorithm.adv_estimator=reinforce_plus_plus", "algo.advantage.estimator", "reinforce"),
        ("algorithm.norm_adv_by_std_in_grpo=False", "algo.advantage.no_std_norm", True),
        ("actor_rollout_ref.actor.clip_ratio_high=0.28", "actor.eps_clip_low_high", [0.2, 0.28]),
        ("actor_rollout_ref.actor.clip_ratio=0.1", "actor.eps_clip_low_high", [0.1, 0.1]),
        ("actor_rollout_ref.actor.policy_loss.loss_mode=gspo", "actor.policy_loss_type", "gspo"),
        ("actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum", "actor.loss_agg_constant", 1.0),
        ("actor_rollout_ref.actor.kl_loss_type=low_var_kl+", "algo.kl.unbiased_gradient", True),
        ("algorithm.filter_groups.enable=True algorithm.filter_groups.metric=acc", "filter.names", ["accuracy"]),
        ("reward_model.reward_kwargs.overlong_buffer_cfg.enable=True"
         " reward_model.reward_kwargs.overlong_buffer_cfg.len=20", "reward.overlong_buffer_len", 20.0),
        ("reward_model.overlong_buffer.enable=True reward_model.overlong_buffer.len=20",
         "reward.overlong_buffer_len", 20.0),
        ("trainer.total_training_steps=10", "train.max_steps", 40),
        ("trainer.total_epochs=3", "train.num_episodes", 3),
        ("trainer.save_freq=5", "ckpt.save_steps", 20),
        ("trainer.test_freq=5 data.val_files=test.parquet", "eval.steps", 20),
        ("custom_reward_function.path=r.py custom_reward_function.name=f", "reward.name", "r.py:f"),
        ("custom_reward_function.path=r.py +custom_reward_function.reward_kwargs.x=2", "reward.options", {"x": 2}),
        ("reward.custom_reward_function.path=r.py reward.custom_reward_function.name=f", "reward.name", "r.py:f"),
        ("reward_model.enable=True reward_model.model.path=rm", "reward.name", "model"),
        ("actor_rollout_ref.model.lora_rank=8", "ds.lora.rank", 8),
        ("actor_rollout_ref.rollout.multi_turn.tool_config_path=t.yaml", "env.file", "t.yaml"),
        ("actor_rollout_ref.rollout.multi_turn.tool_config_path=t.yaml"
         " actor_rollout_ref.rollout.multi_turn.max_assistant_turns=5", "env.max_calls", 4),
        ("actor_rollout_ref.rollout.engine_kwargs.vllm.stream_interval=1", "vllm.engine_args", {"stream_interval": 1}),
        ("data.apply_chat_template_kwargs.enable_thinking=False", "data.chat_template_options",
         {"enable_thinking": False}),
        ("data.prompt_key=messages", "data.input_key", "messages"),
        ("algorithm.rollout_correction.rollout_is=token", "algo.advantage.is_correction_threshold", [2.0]),
        ("algorithm.rollout_correction.bypass_mode=True", "actor.pi_old", "engine"),
        ("algorithm.rollout_correction.bypass_old_logprob_for_rollout=True", "actor.pi_old", "engine"),
        ("actor_rollout_ref.actor.tis_imp_ratio_cap=3.0", "algo.advantage.is_correction_threshold", [3.0]),
        ("algorithm.rollout_is=True algorithm.rollout_is_threshold=4.0", "algo.advantage.is_correction_mode", "clip"),
        ("algorithm.rollout_is=True algorithm.rollout_is_threshold=4.0 algorithm.rollout_is_mode=clip",
         "algo.advantage.is_correction_threshold", [0.25, 4.0]),
        ("algorithm.rollout_is=True algorithm.rollout_is_threshold=4.0 algorithm.rollout_is_mode=mask",
         "algo.advantage.is_correction_mode", "mask"),
        ("actor_rollout_ref.actor.optim.lr_scheduler_type=cosine", "actor.min_lr_ratio", 0.0),
        ("actor_rollout_ref.actor.optim.warmup_style=cosine actor_rollout_ref.actor.optim.min_lr_ratio=0.2",
         "actor.min_lr_ratio", 0.2),
        ("actor_rollout_ref.actor.optim.lr_decay_style=linear actor_rollout_ref.actor.optim.lr=2e-6"
         " actor_rollout_ref.actor.optim.min_lr=1e-6", "actor.min_lr_ratio", 0.5),
        ("algorithm.adv_estimator=gae critic.optim.lr_scheduler_type=cosine", "critic.lr_scheduler", "cosine"),
        ("algorithm.adv_estimator=gae critic.optim.lr_scheduler_type=cosine", "critic.min_lr_ratio", 0.0),
        ("algorithm.adv_estimator=gae critic.optim.betas=[0.8,0.9]", "critic.adam_betas", [0.8, 0.9]),
        ("algorithm.adv_estimator=gae critic.optim.clip_grad=0.5", "critic.max_norm", 0.5),
        ("algorithm.adv_estimator=gae critic.optim.lr_warmup_steps=5 trainer.total_training_steps=10",
         "critic.lr_warmup_ratio", 0.5),
        ("actor_rollout_ref.actor.fsdp_config.dtype=float16", "ds.param_dtype", "fp16"),
        ("actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=fp16", "ds.param_dtype", "fp16"),
        ("actor_rollout_ref.rollout.dtype=float16", "vllm.dtype", "float16"),
        ("actor_rollout_ref.actor.fsdp_config.dtype=float16", "vllm.dtype", "bfloat16"),
        ("actor_rollout_ref.rollout.response_length=40", "rollout.max_new_tokens", 40),
        ("actor_rollout_ref.rollout.multi_turn.tool_config_path=t.yaml", "env.output_max_tokens", 256 // 3),
        ("actor_rollout_ref.rollout.val_kwargs.do_sample=True actor_rollout_ref.rollout.val_kwargs.temperature=0.6",
         "eval.temperature", 0.6),
    ],
)  # fmt: skip
def test_an_override_becomes_a_setting(words, setting, value):
    assert settings(*GRPO, *words.split())[setting] == value


@pytest.mark.parametrize(
    ("program", "is_own"),
    [
        ("verl.trainer.main_ppo", True),
        ("workspace.verl.trainer.main_ppo", True),
        ("recipe.dapo.main_dapo", True),
        ("verl.experimental.one_step_off_policy.main_ppo", True),
        ("recipe.spo.spo_main_ppo", False),
        ("custom_main_ppo", False),
        ("recipe.prime.main_prime", False),
    ],
)
def test_another_trainer_than_verls_own_has_a_sentence(program, is_own):
    named = [sentence for sentence in recipe(*GRPO, program=program).draft.differences if program in sentence]
    assert bool(named) is not is_own


@pytest.mark.parametrize("program", ["-m recipe.spo.spo_main_ppo", "custom_main_ppo.py"])
def test_a_program_around_verls_is_imported(tmp_path, program, capsys):
    (tmp_path / "s.sh").write_text(f"python3 {program} {' '.join(GRPO)}\n")
    assert main(["import-verl", str(tmp_path / "s.sh")]) == 0
    assert tomllib.loads(capsys.readouterr().out)["algo"]["advantage"]["estimator"] == "group_norm"


@pytest.mark.parametrize(("program", "mode"), [("main_ppo", "sync"), ("one_step_off_policy.main_ppo", "one_step")])
def test_the_program_says_whether_rollout_and_training_overlap(program, mode):
    assert settings(*GRPO, program=f"verl.x.{program}")["pipeline.mode"] == mode


@pytest.mark.parametrize(
    "word",
    [
        "actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=2",
        "data.image_key=images",
        "algorithm.adv_estimator=remax",
        "actor_rollout_ref.actor.policy_loss.loss_mode=clip_cov",
        "actor_rollout_ref.rollout.multi_turn.interaction_config_path=i.yaml",
        "+nobody.knows.this=1",
        "trainer.logger=mlflow",
        "data.train_batch_size=many",
        "~trainer.logger",
        "a word",
        "actor_rollout_ref.rollout.val_kwargs.top_k=3",
        "data.custom_cls.path=mine.py",
        "reward_model.sandbox_fusion.url=http://h",
        "reward_model.nobody_knows=1",
        "actor_rollout_ref.actor.optim.lr_decay_steps=10",
        "rollout.total_rollout_steps=100",
        "async_training.use_rollout_log_probs=True",
        "trainer.resume_from_path=old",
        "trainer.save_freq=5",
        "actor_rollout_ref.rollout.ignore_eos=True",
        "actor_rollout_ref.rollout.do_sample=False",
        "actor_rollout_ref.rollout.logprobs_mode=raw_logprobs",
        "actor_rollout_ref.rollout.agent.default_agent_loop=mine",
        "actor_rollout_ref.rollout.dtype=fp8",
        "actor_rollout_ref.actor.fsdp_config.dtype=float32",
        "actor_rollout_ref.ref.fsdp_config.dtype=float32",
        "data.reward_fn_key=source",
        "data.tokenizer=other",
        "algorithm.rollout_correction.rollout_token_veto_threshold=1e-4",
        "algorithm.rollout_is=True algorithm.rollout_is_threshold=2.0 algorithm.rollout_is_level=geometric",
        "algorithm.rollout_correction.bypass_mode=True algorithm.rollout_correction.loss_type=reinforce",
        "reward_model.reward_kwargs.overlong_buffer_cfg.enable=True reward_model.reward_kwargs.max_resp_len=40"
        " reward_model.reward_kwargs.overlong_buffer_cfg.len=10",
        "algorithm.adv_estimator=gae critic.optim.lr_scheduler_type=inverse",
        "algorithm.adv_estimator=gae critic.model.fsdp_config.dtype=float32",
        "reward_model.enable=True reward_model.model.path=rm reward_model.max_length=9",
    ],
)
def test_what_is_not_so_here_has_a_sentence(word):
    plain, odd = recipe(*GRPO), recipe(*GRPO, *([word] if word == "a word" else word.split()))
    assert set(odd.draft.differences) - set(plain.draft.differences) and not odd.problems


@pytest.mark.parametrize(
    "word",
    [
        "data.trust_remote_code=False",
        "actor_rollout_ref.rollout.data_parallel_size=1",
        "algorithm.kl_ctrl.type=fixed",
        "async_training.require_batches=4",
        "actor_rollout_ref.rollout.do_sample=True",
        "actor_rollout_ref.rollout.logprobs_mode=processed_logprobs",
        "actor_rollout_ref.rollout.agent.default_agent_loop=tool_agent",
        "data.reward_fn_key=data_source",
        "algorithm.rollout_is_level=token",
        "algorithm.rollout_correction.loss_type=reinforce",
        "actor_rollout_ref.actor.optim.min_lr_ratio=0.1",
        "critic.optim.betas=[0.8,0.9]",
        "reward_model.max_length=9",
    ],
)
def test_an_override_that_asks_for_what_is_so_is_listed_and_has_no_sentence(word):
    plain, same = recipe(*GRPO), recipe(*GRPO, word)
    assert word.partition("=")[0] in same.nothing and same.draft.differences == plain.draft.differences


@pytest.mark.parametrize(
    ("words", "pi_old"),
    [
        ("", "engine"),
        ("async_training.compute_prox_log_prob=True", "learner"),
        ("async_training.use_rollout_log_probs=False", "learner"),
    ],
)
def test_the_asynchronous_trainer_says_what_its_ratio_divides_by(words, pi_old):
    found = recipe(*GRPO, *words.split(), program="verl.experimental.fully_async_policy.fully_async_main")
    assert found.draft.settings["actor.pi_old"] == pi_old and not found.problems


def test_weights_of_the_engine_are_one_where_its_log_probs_are_the_old_ones():
    words = ("algorithm.rollout_correction.bypass_mode=True", "algorithm.rollout_correction.rollout_is=token")
    found = recipe(*GRPO, *words)
    assert "algo.advantage.is_correction_level" not in found.draft.settings and not found.problems
    found = recipe(*GRPO, *words, "algorithm.rollout_correction.loss_type=reinforce").draft.settings
    assert (found["actor.policy_loss_type"], found["algo.advantage.is_correction_level"]) == ("pg", "token")


def test_a_correction_of_old_that_has_no_threshold_is_off():
    assert "algo.advantage.is_correction_level" not in settings(*GRPO, "algorithm.rollout_is=True")


@pytest.mark.parametrize(("most", "steps"), [(500, 28), (5000, 184), (-1, 184)])
def test_rows_are_counted_up_to_train_max_samples(most, steps):
    """500 rows make 7 batches of 64, 3000 make 46; a batch makes two updates of 32 prompts, and there are 2 passes."""
    words = (
        "actor_rollout_ref.actor.ppo_mini_batch_size=32",
        "trainer.total_epochs=2",
        f"data.train_max_samples={most}",
    )
    assert settings(*GRPO, *words, rows_of=lambda files: 3000)["train.max_steps"] == steps


def test_rows_are_so_many_of_each_file_here():
    told = "\n".join(recipe(*GRPO, "data.train_files=[a,b]", "data.train_max_samples=9").draft.differences)
    assert "data.train_max_samples" in told
    assert "data.train_max_samples" not in "\n".join(recipe(*GRPO, "data.train_max_samples=9").draft.differences)


def test_a_reward_model_beside_a_function_has_a_sentence():
    words = ("custom_reward_function.path=r.py", "reward_model.model.path=rm")
    plain, both = recipe(*GRPO, *words), recipe(*GRPO, *words, "reward_model.enable=True")
    (sentence,) = set(both.draft.differences) - set(plain.draft.differences)
    assert "reward_model.enable" in sentence and "reward_model.enable" not in both.nothing


@pytest.mark.parametrize(
    "name", ["custom_reward_function.path", "actor_rollout_ref.rollout.multi_turn.tool_config_path", "data.val_files"]
)
def test_a_file_that_is_not_here_is_said(name, tmp_path):
    (tmp_path / "there").touch()
    told = "\n".join(recipe(*GRPO, f"{name}=nowhere").draft.differences)
    assert f"{name}=nowhere: " in told
    assert f"{name}=" not in "\n".join(recipe(*GRPO, f"{name}=there", directories=[tmp_path]).draft.differences)


def test_what_verl_cuts_of_a_tools_reply_by_default_is_said():
    told = "\n".join(recipe(*GRPO, "actor_rollout_ref.rollout.multi_turn.tool_config_path=t.yaml").draft.differences)
    assert all(f"{name}=" in told for name in ("max_tool_response_length", "truncate_side", "max_parallel_calls"))


def test_the_correction_of_ppos_loss_is_left_out_of_other_losses():
    word = "algorithm.rollout_correction.rollout_is=token"
    odd = recipe(*GRPO, word, "actor_rollout_ref.actor.policy_loss.loss_mode=gspo")
    assert not odd.problems and "algo.advantage.is_correction_level" not in odd.draft.settings
    assert not {"actor.loss_agg_mode", "actor.loss_agg_constant"} & odd.draft.settings.keys()
    assert any("actor.eps_clip_low_high" in sentence for sentence in odd.draft.differences)
    assert any("rollout_is" in sentence for sentence in odd.draft.differences)


@pytest.mark.slow
def test_every_override_sets_something_needs_nothing_or_has_a_sentence():
    names = [*DEFAULTS, *(name.replace("*", "x") for name in NEEDS_NOTHING)]
    for name in names:
        value = DEFAULTS.get(name)
        word = f"++{name}={'null' if value is None else value}"
        found = recipe(*GRPO, word)
        assert not any(name in sentence and "no such setting" in sentence for sentence in found.draft.differences)


SCRIPT = """#!/bin/bash
set -x
export VLLM_USE_V1=1
MODEL=${MODEL:-toy}
train_files="['$PWD/train.parquet']"
ALGORITHM=(algorithm.adv_estimator=grpo algorithm.use_kl_in_reward=False)
lengths="data.max_prompt_length=64 data.max_response_length=32"
if [ "$1" = "short" ]; then
    shift
fi

python3 -m verl.trainer.main_ppo \\
    "${ALGORITHM[@]}" \\
    data.train_files="$train_files" \\
    data.train_batch_size=4 $lengths \\
    actor_rollout_ref.model.path=$MODEL \\
    actor_rollout_ref.actor.ppo_mini_batch_size=4 \\
    actor_rollout_ref.rollout.n=2 \\
    actor_rollout_ref.rollout.tensor_model_parallel_size=1 \\
    trainer.n_gpus_per_node=1 \\
    trainer.experiment_name='my run' \\
    trainer.total_epochs=2 $@
"""


def test_a_script_is_read_and_written_as_a_recipe_that_loads(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [
        {"data_source": "openai/gsm8k", "prompt": [{"role": "user", "content": f"{i}+1?"}], "ability": "math",
         "reward_model": {"style": "rule", "ground_truth": str(i + 1)}, "extra_info": {"index": i}}
        for i in range(8)
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")
    (tmp_path / "run.sh").write_text(SCRIPT)
    assert main(["import-verl", "run.sh", "short", "trainer.save_freq=7", "--out", "r.toml"]) == 0
    cfg = load(str(tmp_path / "r.toml"), {})
    assert (
        cfg.data.datasets == [str(tmp_path / "train.parquet")] and cfg.train.max_steps == 4 and cfg.ckpt.save_steps == 7
    )
    assert cfg.algo.advantage.estimator == "group_norm" and str(cfg.run_dir).endswith("runs/my_run")


def test_flags_behind_the_script_are_its_own_but_for_those_of_the_command(tmp_path, capsys):
    (tmp_path / "s.sh").write_text(
        "while [[ $# -gt 0 ]]; do case $1 in --lr) LR=$2; shift 2;; *) exit 1;; esac; done\n"
        f"python3 -m verl.trainer.main_ppo {' '.join(GRPO)} actor_rollout_ref.actor.optim.lr=$LR\n"
    )
    out = tmp_path / "r.toml"
    assert main(["import-verl", str(tmp_path / "s.sh"), "--lr", "7e-6", "--number=1", "--out", str(out)]) == 0
    assert tomllib.loads(out.read_text())["actor"]["learning_rate"] == 7e-6
    assert main(["import-verl", str(tmp_path / "s.sh"), "--lr", "7e-6", "--number", "2"]) == 2
    capsys.readouterr()
    assert main(["import-verl", str(tmp_path / "s.sh"), "--out"]) == 2
    assert capsys.readouterr().err.startswith("ConfigError: --out")


def test_overrides_alone_are_printed_as_a_recipe(capsys):
    assert main(["import-verl", "--", *GRPO]) == 0
    assert tomllib.loads(capsys.readouterr().out)["algo"]["advantage"]["estimator"] == "group_norm"


@pytest.mark.parametrize(
    "command",
    [
        "torchrun --nproc_per_node=2 -m verl.trainer.fsdp_sft_trainer data.train_files=x",
        "python3 -m verl.trainer.main_generation model.path=x",
        "echo hello",
    ],
)
def test_a_script_that_trains_nothing_by_rl_has_a_sentence_and_no_recipe(tmp_path, command, capsys):
    (tmp_path / "s.sh").write_text(command + "\n")
    assert main(["import-verl", str(tmp_path / "s.sh")]) == 1
    told = capsys.readouterr()
    assert not told.out and told.err.count("\n") == 1


def test_numbers_of_a_hydra_file_are_numbers_as_omegaconf_reads_them(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "actor_rollout_ref: {actor: {optim: {lr: 3e-6}}}\ndata: {train_files: a.parquet}\n"
    )
    recipe = import_verl(read_overrides(["--config-path", str(tmp_path), "--config-name=mine", "hydra.run.dir=out"]))
    assert recipe.draft.settings["actor.learning_rate"] == 3e-6
    assert "hydra.run.dir" in recipe.nothing


def test_values_of_a_hydra_file_are_under_those_of_the_command_line(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        'defaults: [ppo_trainer]\ndata: {max_response_length: 77, max_prompt_length: 11}\ntrainer: {x: "${a.b}"}\n'
    )
    s = settings(*GRPO[:3], "data.max_prompt_length=20", "--config-name=mine", directories=[tmp_path])
    assert s["rollout.max_new_tokens"] == 77 and s["data.max_len"] == 97


def test_references_of_a_hydra_file_are_followed(tmp_path, monkeypatch):
    (tmp_path / "mine.yaml").write_text(
        "data:\n  train_files: ${oc.env:ROWS_OF_NOBODY,/rows}/train.parquet\n  val_files: ['${data.train_files}']\n"
        "  max_prompt_length: ${data.max_response_length}\n  max_response_length: ${oc.decode:${oc.env:LONGEST}}\n"
        "  seed: ${oc.env:SEED_OF_NOBODY}\n  shuffle: ${data.shuffle}\n  prompt_key: ${no.such.key}\n"
        "trainer: {experiment_name: '${now:%Y}'}\n"
    )
    monkeypatch.setenv("LONGEST", "70")
    monkeypatch.delenv("ROWS_OF_NOBODY", raising=False)
    recipe = import_verl(read_overrides([*GRPO[:1], f"--config-path={tmp_path}", "--config-name=mine"]))
    s = recipe.draft.settings
    assert (s["data.prompt_dataset"], s["eval.dataset"]) == ("/rows/train.parquet", "/rows/train.parquet")
    assert (s["rollout.max_new_tokens"], s["data.max_len"]) == (70, 140)
    assert "train.seed" not in s and s["data.row_schema"] == "verl"
    told = "\n".join(recipe.draft.differences)
    assert all(name in told for name in ("ROWS_OF_NOBODY", "SEED_OF_NOBODY", "${now:%Y}")) and "LONGEST" not in told


def test_a_reference_of_the_command_line_that_leads_nowhere_is_said():
    draft = recipe(*GRPO, "actor_rollout_ref.rollout.n=${.nn}", "data.seed=${data.seed}").draft
    told = "\n".join(draft.differences)
    assert "actor_rollout_ref.rollout.n=${.nn}" in told and "data.seed=${data.seed}" in told
    assert draft.settings["rollout.n_samples_per_prompt"] == 1 and "train.seed" not in draft.settings


def test_a_reference_to_what_only_verls_own_configuration_has_is_followed():
    draft = recipe(
        "algorithm.adv_estimator=grpo",
        "actor_rollout_ref.rollout.n=4",
        "actor_rollout_ref.actor.ppo_mini_batch_size=${data.train_batch_size}",
        "data.val_files=${data.train_files}",
    ).draft
    assert draft.settings["rollout.batch_size"] == 1024 and "train.batch_size" not in draft.settings
    assert "data.val_files=${data.train_files}" in "\n".join(draft.differences)


@pytest.mark.parametrize("held_out", ["${data.train_files}", "['${data.train_files}']"])
def test_a_reference_to_a_list_has_the_lists_own_references_followed(held_out, monkeypatch):
    monkeypatch.setenv("PLACE_OF_ROWS", "/rows")
    words = ["data.train_files=['${oc.env:PLACE_OF_ROWS}/a.parquet','/b.parquet']", f"data.val_files={held_out}"]
    assert settings(*words)["eval.dataset"] == "/rows/a.parquet,/b.parquet"


def test_a_list_inside_a_text_and_a_reference_without_an_end_are_said(monkeypatch):
    monkeypatch.setenv("ITSELF", "${oc.env:ITSELF}")
    words = ("data.train_files=[a,b]", "trainer.project_name=x-${data.train_files}", "data.seed=${oc.env:ITSELF}")
    draft = recipe(*words).draft
    told = "\n".join(draft.differences)
    assert "trainer.project_name=" in told and "data.seed=" in told and "train.seed" not in draft.settings


def test_lists_that_refer_to_what_is_not_known_are_said(monkeypatch):
    monkeypatch.delenv("PLACE_OF_ROWS", raising=False)
    rows = "data.train_files=['${oc.env:PLACE_OF_ROWS}/a']"
    words = (rows, "data.val_files=['${data.train_files}','${data.val_files}']")
    told = "\n".join(recipe(*words, "trainer.project_name=x-${data.train_files}").draft.differences)
    assert all(f"{name}=" in told for name in ("data.train_files", "data.val_files", "trainer.project_name"))


def test_train_with_overrides_of_verl_points_to_the_import(capsys):
    assert main(["train", "algorithm.adv_estimator=grpo", "data.train_files=x"]) == 2
    assert "import-verl" in capsys.readouterr().err


OPTIM = "actor_rollout_ref.actor.optim"


@pytest.mark.parametrize(
    ("mini_batch", "warmup_steps", "ratio"),
    [(64, 10, 0.05), (32, 10, 0.05), (16, 50, 0.25)],
)
def test_the_warm_up_is_counted_in_batches_as_verls_schedule_is(mini_batch, warmup_steps, ratio):
    """200 batches of 64 prompts make 200, 400 or 800 updates; the rate rises over the same share of them."""
    words = [*GRPO, "trainer.total_training_steps=200", f"actor_rollout_ref.actor.ppo_mini_batch_size={mini_batch}"]
    found = settings(*words, f"{OPTIM}.lr_warmup_steps={warmup_steps}")
    assert found["train.max_steps"] == 200 * 64 // mini_batch
    assert found["actor.lr_warmup_ratio"] == pytest.approx(ratio)


@pytest.mark.parametrize(
    ("critic_warmup", "mini_batch", "frozen"), [(0, 64, None), (1, 64, None), (5, 64, 4), (5, 32, 8)]
)
def test_the_policy_is_trained_from_the_batch_that_critic_warmup_names(critic_warmup, mini_batch, frozen):
    """verl counts batches from 1 and trains the policy in batch `critic_warmup`; freezing_steps counts updates."""
    words = [*GRPO, "algorithm.adv_estimator=gae", f"trainer.critic_warmup={critic_warmup}"]
    found = settings(*words, f"actor_rollout_ref.actor.ppo_mini_batch_size={mini_batch}")
    assert found.get("critic.freezing_steps") == frozen


def test_what_is_trained_is_said_in_the_words_of_a_run(tmp_path, capsys):
    out = tmp_path / "r.toml"
    assert main(["import-verl", "--out", str(out), "--", *GRPO]) == 0
    summary = method_summary(load(str(out), {}))
    assert f"import: {summary}." in capsys.readouterr().err.splitlines()


BOOLEANS = [name for name, value in DEFAULTS.items() if isinstance(value, bool)]


@pytest.mark.parametrize(
    ("names", "value"),
    [(NUMBERS, "abc"), (NUMBERS, "1e999"), (FROM_ONE_ON, "0"), (FROM_ONE_ON, "1.5"), (BOOLEANS, "maybe")],
)
def test_values_that_verl_could_not_use_are_said_and_left_at_its_defaults(names, value):
    made = recipe(*GRPO, *(f"{name}={value}" for name in sorted(names)))
    for name in names:
        assert any(sentence.startswith(f"{name}={value_of(value)} ") for sentence in made.draft.differences), name
    given = [word for word in GRPO if word.partition("=")[0] not in names]
    assert made.draft.settings == settings(*given)


def test_lists_with_what_is_no_number_and_a_penalty_without_a_length_are_said():
    buffer = "reward_model.reward_kwargs.overlong_buffer_cfg"
    made = recipe(*GRPO, f"+{buffer}.enable=True", "actor_rollout_ref.actor.optim.betas=[0.9,b]")
    assert made.draft.settings == settings(*GRPO)
    for name in (f"{buffer}.len", "optim.betas"):
        assert any(name in sentence for sentence in made.draft.differences)


def test_null_where_verl_has_a_value_is_said_and_is_no_text():
    names = ("trainer.project_name", "trainer.experiment_name", "custom_reward_function.name", "data.prompt_key")
    made = recipe(*GRPO, "custom_reward_function.path=f.py", *(f"{name}=null" for name in names))
    assert "None" not in str([*made.draft.settings.values()]).replace("None]", "").replace(", None,", ",")
    assert all(any(name in sentence for sentence in made.draft.differences) for name in names)


def test_options_of_vllm_that_a_recipe_may_not_give_are_settings_or_have_a_sentence():
    options = "{max_num_seqs: 64, load_format: dummy, swap_space: null, max_seq_len_to_capture: 1024, seed: 3}"
    made = recipe(*GRPO, f"+{ROLLOUT}.engine_kwargs.vllm={options}")
    assert made.draft.settings["vllm.max_num_seqs"] == 64 and not made.problems
    assert made.draft.settings["vllm.engine_args"] == {"max_seq_len_to_capture": 1024}
    for name in ("load_format=dummy", "seed=3"):
        assert any(f"engine_kwargs.vllm.{name}: left out" in sentence for sentence in made.draft.differences)
    assert not any("swap_space" in sentence for sentence in made.draft.differences)
