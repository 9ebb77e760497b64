"""OpenRLHF's command lines -> recipes: the values that a run would have, and what is said of those it would not."""

from __future__ import annotations

import argparse
import ast
import json
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tree_sitter_bash")

from openrlhf_tir.cli import main
from openrlhf_tir.cli.exit_codes import DONE, MISTAKE, NO
from openrlhf_tir.cli.import_openrlhf import recipe_of
from openrlhf_tir.config.catalog import value_at
from openrlhf_tir.config.integrations.bash_script import read_script, read_text
from openrlhf_tir.config.integrations.openrlhf_command_flags import FROM_ONE_ON, read_flags
from openrlhf_tir.config.integrations.openrlhf_commands import calls_of
from openrlhf_tir.config.integrations.openrlhf_import import Imported, Source, import_train_ppo
from openrlhf_tir.config.integrations.openrlhf_parsers import TRAIN_PPO_RAY, TRAIN_SFT
from openrlhf_tir.config.integrations.openrlhf_sft import import_train_sft
from openrlhf_tir.config.integrations.rehearsal import rehearse
from openrlhf_tir.config.integrations.script_call import Call, gpus_of_launcher
from openrlhf_tir.config.settings import load

SCRIPTS = Path(__file__).parent / "scripts"
NEEDED = "--actor.model_name_or_path m --data.prompt_dataset d --reward.remote_url http://h:1/r "


def calls(name: str, *arguments: str, **environ: str) -> list[Call]:
    path = SCRIPTS / name
    return calls_of(read_script(path, environ=environ, cwd=SCRIPTS, arguments=arguments).commands)


def imported(name: str, number: int = 0, **environ: str) -> Imported:
    recipe, _ = recipe_of(calls(name, **environ)[number], Source(name, [SCRIPTS]))
    assert not recipe.problems, recipe.problems
    return recipe


def of_flags(flags: str, rows: int | None = None) -> Imported:
    return import_train_ppo(flags.split(), Source("x", []), lambda draft: rows)


def values(recipe: Imported, *names: str) -> dict[str, Any]:
    return {name: value_at(recipe.config, name) for name in names}


def said(recipe: Imported, *words: str) -> bool:
    """Whether one sentence about a difference has all of these."""
    return any(all(word in sentence for word in words) for sentence in recipe.draft.differences)


def upstream(program: str) -> dict[str, argparse.Action]:
    """The options of an installed OpenRLHF program, by running the statements before parse_args."""
    spec = find_spec("openrlhf")
    if spec is None:
        pytest.skip("openrlhf is not installed")
    source = Path(spec.submodule_search_locations[0], "cli", f"{program}.py").read_text()
    body = next(node for node in ast.parse(source).body if isinstance(node, ast.If)).body
    stop = next(i for i, node in enumerate(body) if "parse_args" in ast.unparse(node))
    scope: dict[str, Any] = {"argparse": argparse, "datetime": datetime}
    exec(compile(ast.Module(body[:stop], []), program, "exec"), scope)
    return {
        option.removeprefix("--"): action
        for action in scope["parser"]._actions
        for option in action.option_strings
        if option not in ("-h", "--help")
    }


@pytest.mark.parametrize(("program", "table"), [("train_ppo_ray", TRAIN_PPO_RAY), ("train_sft", TRAIN_SFT)])
def test_the_table_of_flags_is_that_of_the_installed_parser(program, table):
    there = {
        name: (action.default, action.nargs, action.type.__name__ if action.type else "str")
        for name, action in upstream(program).items()
    }
    there["logger.wandb.run_name"] = (None, None, "str")  # the time of the start
    assert {name: tuple(flag) for name, flag in table.items()} == there


def test_ppo_with_a_reward_model_stays_ppo_and_shares_the_gpus_that_the_script_had():
    recipe = imported("ppo_reward_model.sh")
    expected = {
        "algo.advantage.estimator": "gae",
        "rollout.n_samples_per_prompt": 1,
        "rollout.batch_size": 1024,
        "train.batch_size": 128,
        "updates_per_batch": 8,
        "actor.learning_rate": 5e-7,
        "critic.learning_rate": 9e-6,
        "critic.model_name_or_path": "my-org/reward-8b",
        "reward.name": "model",
        "algo.kl.init_coef": 0.01,
        "algo.kl.use_loss": False,
        "actor.eps_clip_low_high": (0.2, 0.2),
        "actor.lr_scheduler": "cosine",
        "actor.lr_warmup_ratio": 0.03,
        "pipeline.mode": "sync",
        "env.name": "echo",
        "env.max_calls": 0,
        "filter.order": [],
        "train.colocate_all": True,
        "actor.num_gpus_per_node": 4,
        "vllm.num_engines": 4,
        "vllm.tensor_parallel_size": 1,
        "reward.replicas": 4,
        "vllm.sync_backend": "auto",
        "push_backend": "file",
        "data.input_key": "context_messages",
        "train.max_steps": 160,  # 20480 prompts, 1 response each, 128 an update
        "logger.wandb.key": None,
    }
    assert values(recipe, *expected) == expected
    assert said(recipe, "--vllm.sync_backend nccl") and said(recipe, "tensor_parallel_size 2", "colocate_all")
    assert said(recipe, "ds.tensor_parallel_size") and said(recipe, "--logger.wandb.key", "WANDB_API_KEY")


def test_a_variable_of_the_environment_wins_over_the_scripts_default():
    assert imported("ppo_reward_model.sh", MODEL="mine").config.actor.model_name_or_path == "mine"


def test_arrays_with_comments_and_the_names_of_0_10_give_grpo():
    recipe = imported("grpo_arrays.sh")
    expected = {
        "algo.advantage.estimator": "group_norm",
        "rollout.n_samples_per_prompt": 8,
        "updates_per_batch": 2,
        "algo.kl.init_coef": 1e-3,
        "algo.kl.use_loss": True,
        "algo.kl.estimator": "k3",
        "algo.kl.unbiased_gradient": False,
        "filter.order": ["accuracy"],
        "filter.accuracy_range": (0.1, 0.9),
        "algo.advantage.is_correction_level": "token",
        "algo.advantage.is_correction_mode": "mask",
        "actor.model_name_or_path": "my-org/policy-4b",
        "actor.lr_scheduler": "constant",
        "actor.lr_warmup_ratio": 0.0,
        "actor.learning_rate": 2e-6,
        "reward.remote_url": f"{SCRIPTS}/reward_func.py:reward_func",
        "reward.name": "remote",
        "vllm.tensor_parallel_size": 2,
        "train.colocate_all": False,
        "train.seed": 42,
        "ckpt.output_dir": "checkpoints/grpo run",
    }
    assert values(recipe, *expected) == expected
    assert imported("grpo_arrays.sh", DEBUG="1").config.train.seed == 1


def test_fine_tuning_from_a_here_document_has_openrlhfs_defaults():
    (call,) = calls("sft_heredoc.sh")
    assert call.program == "train_sft" and gpus_of_launcher(call.launcher) == 4
    recipe, _ = recipe_of(call, Source("sft.sh", []))
    expected = {
        "sft.dataset": "my-org/instructions",
        "sft.input_key": "question",
        "sft.output_key": "response",
        "sft.input_template": "User: {}\nAssistant: ",
        "sft.max_len": 2048,
        "sft.batch_size": 256,
        "sft.max_epochs": 1,
        "sft.learning_rate": 1e-5,
        "sft.multiturn": False,
        "ds.zero_stage": 2,
        "actor.num_gpus_per_node": 4,
        "train.resume_or_start": True,
    }
    assert values(recipe, *expected) == expected and not recipe.problems
    assert calls("sft_heredoc.sh", "slurm") == []


def test_flat_flags_whose_values_are_others_today_get_these():
    words = "--bf16 --flash_attn --use_kl_estimator_k3 --enable_vllm_is_correction --vllm_is_correction_type icepop"
    flags = read_flags([*words.split(), "--vllm_is_truncated_threshold", "3"], TRAIN_PPO_RAY)
    expected = {
        "ds.param_dtype": ["bf16"],
        "ds.attn_implementation": ["flash_attention_2"],
        "algo.kl.estimator": ["k3"],
        "algo.advantage.is_correction_enable": [],
        "algo.advantage.is_correction_type": ["icepop"],
        "algo.advantage.is_correction_threshold": [0.0, 3.0],
    }
    assert {name: flags.values[name] for name in expected} == expected and flags.flat and not flags.notes


@pytest.mark.parametrize(
    ("launcher", "gpus"),
    [
        ("deepspeed --include localhost:0,1 --master_port 29501", 2),
        ("deepspeed --include=worker-0:0,1,2@worker-1:0,1,2", 3),
        ("deepspeed -i localhost:7", 1),
        ("deepspeed --include worker-0@worker-1", None),
        ("deepspeed --include worker-0:0,1@worker-1:0", None),
        ("deepspeed --num_gpus 4", 4),
        ("torchrun --nproc_per_node=gpu", None),
        ("deepspeed --module", None),
    ],
)
def test_the_launcher_says_how_many_gpus_a_node_has(launcher, gpus):
    assert gpus_of_launcher(launcher.split()) == gpus


def test_fine_tuning_on_several_nodes_stays_on_them():
    launched = "deepspeed --num_nodes 2 --num_gpus 4 --module openrlhf.cli.train_sft --model.model_name_or_path m"
    (call,) = calls_of(read_text(f"{launched} --data.dataset d").commands)
    recipe, _ = recipe_of(call, Source("x", []))
    assert values(recipe, "actor.num_nodes", "actor.num_gpus_per_node") == {
        "actor.num_nodes": 2,
        "actor.num_gpus_per_node": 4,
    }


def test_fine_tuning_on_nodes_that_only_a_run_can_count_keeps_the_gpus_of_a_node():
    launched = "torchrun --nnodes $(count) --nproc_per_node 4 -m openrlhf.cli.train_sft --model.model_name_or_path m"
    (call,) = calls_of(read_text(f"{launched} --data.dataset d").commands)
    recipe, _ = recipe_of(call, Source("x", []))
    assert values(recipe, "actor.num_gpus_per_node") == {"actor.num_gpus_per_node": 4}
    assert said(recipe, "actor.num_nodes") and not said(recipe, "takes all that it finds")


def test_fine_tuning_names_its_files_by_absolute_paths_and_a_schedule_that_is_not_here(tmp_path):
    (tmp_path / "rows.jsonl").write_text("")
    flags = "--model.model_name_or_path m --data.dataset ./rows.jsonl --eval.dataset ./rows.jsonl --lr_scheduler foo"
    recipe = import_train_sft(flags.split(), Source("x", [tmp_path]), None, None)
    expected = {
        "sft.dataset": str(tmp_path / "rows.jsonl"),
        "sft.eval_dataset": str(tmp_path / "rows.jsonl"),
        "sft.lr_scheduler": "constant",
    }
    assert {name: recipe.draft.settings[name] for name in expected} == expected
    assert said(recipe, "--lr_scheduler foo") and not recipe.problems


def test_a_slurm_wrapper_leads_to_the_script_that_it_sources():
    (call,) = calls("slurm_wrapper.sh")
    assert call.program == "train_sft" and gpus_of_launcher(call.launcher) == 8
    assert "my-org/instructions" in call.words


def test_flat_names_are_read_and_what_openrlhf_has_dropped_is_said():
    recipe = imported("flat_names.sh")
    expected = {
        "actor.model_name_or_path": "my-org/policy",
        "algo.advantage.estimator": "reinforce",
        "algo.kl.init_coef": 0.02,
        "data.max_len": 2048,
        "rollout.max_new_tokens": 1536,
        "rollout.batch_size": 64,
        "actor.learning_rate": 3e-7,
        "reward.remote_url": "http://localhost:5000/get_reward",
        "ds.param_dtype": "bf16",
        "ds.attn_implementation": "flash_attention_2",
        "ds.packing_samples": True,
        "ds.adam_offload": True,
        "logger.wandb.key": "env",
    }
    assert values(recipe, *expected) == expected
    for flag in ("actor_init_on_gpu", "ptx_coef", "prompt_max_len"):
        assert said(recipe, flag)


def test_no_secret_of_a_script_is_in_its_recipe():
    recipe, text = recipe_of(calls("flat_names.sh")[0], Source("x", []))
    assert "0123456789abcdef" not in text + str(recipe.draft.differences)


def test_asynchronous_training_keeps_its_agent_and_gives_engines_their_own_gpus():
    recipe = imported("async_agent.sh")
    expected = {
        "pipeline.mode": "pipeline_drain",
        "batches_ahead": 2,
        "train.colocate_all": False,
        "rollout.n_samples_per_prompt": 4,
    }
    assert values(recipe, *expected) == expected
    assert recipe.config.train.agent_func_path.endswith("agent_func.py:AgentExecutor")
    assert "env.name" not in recipe.draft.settings
    assert said(recipe, "colocate_all", "async") and said(recipe, "load_in_4bit") and said(recipe, "agent_func.py")


def test_every_command_of_a_sweep_is_a_recipe_of_its_own():
    rates = [imported("sweep.sh", number).config.actor.learning_rate for number in range(len(calls("sweep.sh")))]
    assert rates == [1e-6, 5e-7]


def test_what_has_no_recipe_is_named_with_the_command_that_remains(capsys):
    assert main(["import-openrlhf", str(SCRIPTS / "preferences.sh")]) == NO
    out, err = capsys.readouterr()
    assert out == ""
    assert "deepspeed --module openrlhf.cli.train_dpo" in err and "openrlhf.cli.serve_rm" in err


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("", {"algo.advantage.estimator": "gae", "rollout.n_samples_per_prompt": 1, "rollout.min_valid": 1}),
        ("--actor.eps_clip 0.3", {"actor.eps_clip_low_high": (0.3, 0.3)}),
        ("--actor.eps_clip_low_high 0.1 0.4 --actor.eps_clip 0.3", {"actor.eps_clip_low_high": (0.1, 0.4)}),
        ("--actor.lr_scheduler cosine", {"actor.lr_scheduler": "cosine", "actor.min_lr_ratio": 0.0}),
        ("--actor.lr_scheduler linear", {"actor.lr_scheduler": "linear", "actor.min_lr_ratio": 0.0}),
        ("--actor.lr_scheduler cosine_with_min_lr", {"actor.lr_scheduler": "cosine", "actor.min_lr_ratio": 0.1}),
        ("--ds.zero_stage 1", {"ds.zero_stage": 2}),
        ("--train.dynamic_batch_enable --ds.attn_implementation sdpa", {
            "ds.packing_samples": True, "ds.attn_implementation": "flash_attention_2"}),
        ("--data.max_len 1000", {"rollout.max_new_tokens": 500}),
        ("--data.max_len 32768 --train.max_tokens_per_gpu 8192", {"train.max_tokens_per_gpu": 32768}),
        ("--algo.kl.init_coef 0 --algo.kl.use_loss", {"algo.kl.use_loss": False}),
        ("--algo.kl.use_loss", {"algo.kl.unbiased_gradient": True}),
        ("--train.async_enable", {"pipeline.mode": "one_step"}),
        ("--train.async_enable --train.async_queue_size 3 --rollout.batch_size 64 --train.batch_size 32", {
            "pipeline.mode": "pipeline_drain", "updates_per_batch": 4, "pipeline.max_staleness": 15,
            "batches_ahead": 3}),
        ("--train.async_enable --train.partial_rollout_enable", {"pipeline.mode": "pipeline"}),
        ("--train.partial_rollout_enable", {"pipeline.mode": "sync"}),
        ("--actor.policy_loss_type gspo --algo.advantage.is_correction_level seq", {
            "algo.advantage.is_correction_level": "off"}),
        ("--rollout.batch_size 100 --train.batch_size 64", {"train.batch_size": 50}),
        ("--rollout.batch_size 4 --train.batch_size 128", {"train.batch_size": 8, "updates_per_batch": 1}),
        ("--algo.advantage.estimator grpo", {"algo.advantage.estimator": "group_norm"}),
        ("--algo.advantage.estimator rloo --critic.adam.lr 1", {"critic.learning_rate": 9e-6}),
        ("--train.colocate_all --vllm.num_engines 1 --vllm.tensor_parallel_size 2", {
            "vllm.num_engines": 2, "vllm.tensor_parallel_size": 1, "ds.zero_stage": 3}),
        ("--data.input_template no_place", {"data.input_template": None}),
        ("--vllm.num_engines 3 --ref.num_gpus_per_node 8", {"vllm.num_engines": 3}),
        ("--eval.steps 5 --eval.temperature 0.1", {"eval.steps": -1}),
        ("--eval.dataset e --eval.steps 5", {"eval.steps": 5, "eval.split": "train", "eval.temperature": 0.6}),
        ("--ds.lora.rank 8", {"ds.lora.target_modules": ["all-linear"]}),
        ("--actor.adam.lr 1e-7 --actor.adam.lr 2e-7", {"actor.learning_rate": 2e-7}),
        ("--actor.optim muon --actor.muon.no_nesterov", {"actor.optim": "muon", "actor.muon.nesterov": False}),
    ],
)  # fmt: skip
def test_a_flag_becomes_what_openrlhf_does_with_it(flags, expected):
    recipe = of_flags(
        f"{NEEDED} --actor.num_gpus_per_node 2 --rollout.n_samples_per_prompt 2 {flags}" if flags else NEEDED
    )
    assert not recipe.problems
    assert values(recipe, *expected) == expected


@pytest.mark.parametrize(
    "flags",
    [
        "--no.such 1",
        "--rollout.batch_size many",
        "--actor.adam.lr",
        "--algo.kl.estimator k9",
        "--ds.param_dtype fp8",
        "--algo.advantage.estimator grpo",
        "--algo.advantage.estimator no_such",
    ],
)
def test_a_flag_that_openrlhf_would_refuse_is_said(flags):
    recipe = of_flags(NEEDED + flags)
    name = flags.split()[0].removeprefix("--").replace("adam.lr", "")
    assert any(name in sentence for sentence in recipe.draft.differences + recipe.problems)


@pytest.mark.parametrize("value", ["0", "-8"])
@pytest.mark.parametrize("name", sorted(FROM_ONE_ON))
def test_a_size_below_one_is_left_out_with_its_value(name, value):
    recipe = of_flags(f"{NEEDED} --{name} {value}")
    assert said(recipe, f"--{name} {value}: left out")
    assert not recipe.problems


def test_a_flag_with_too_few_values_is_named_with_those_that_it_has():
    assert said(of_flags(f"{NEEDED} --actor.adam.betas 0.9,0.95"), "--actor.adam.betas 0.9,0.95", "2 numbers")


def test_a_filter_of_groups_of_one_is_left_out_as_openrlhf_refuses_it():
    recipe = of_flags(f"{NEEDED} --algo.dynamic_filtering_enable --algo.dynamic_filtering_range 0.2 0.8")
    assert not recipe.config.filter.names and not recipe.problems
    assert said(recipe, "dynamic_filtering_enable", "n_samples_per_prompt")
    assert not said(recipe, "accuracy_range")


@pytest.mark.parametrize(("text", "template", "is_said"), [("'{}\\nA'", r"{}\nA", True), ("$'{}\\nA'", "{}\nA", False)])
def test_line_breaks_of_a_template_are_those_that_bash_hands_on(text, template, is_said):
    (command,) = read_text(f"run {NEEDED} --data.input_template {text}").commands
    recipe = import_train_ppo(command.words[1:], Source("x", []))
    assert recipe.config.data.input_template == template
    assert said(recipe, "input_template", "backslash") == is_said


def test_icepop_of_0_9_is_todays_mask_of_tokens():
    recipe = of_flags(f"{NEEDED} --enable_vllm_is_correction --use_icepop --vllm_is_truncated_threshold 0.5 2")
    expected = {
        "algo.advantage.is_correction_level": "token",
        "algo.advantage.is_correction_mode": "mask",
        "algo.advantage.is_correction_threshold": (0.5, 2.0),
    }
    assert values(recipe, *expected) == expected
    assert said(recipe, "0.10.1") and not said(recipe, "use_icepop")


def test_an_empty_value_and_a_blank_are_no_flags():
    empty = import_train_ppo([*NEEDED.split(), "--actor.adam.lr", "", "--train.seed", "7"], Source("x", []))
    assert values(empty, "actor.learning_rate", "train.seed") == {"actor.learning_rate": 1e-6, "train.seed": 7}
    assert said(empty, "actor.adam.lr")
    blank = import_train_ppo([*NEEDED.split(), "--train.seed", "7", " "], Source("x", []))
    assert blank.config.train.seed == 7 and said(blank, "backslash")


def test_a_rehearsal_keeps_the_estimator_and_the_samples_that_a_group_needs():
    flags = "--algo.advantage.estimator rloo --rollout.n_samples_per_prompt 8 --train.colocate_all --ds.lora.rank 4"
    recipe = import_train_ppo((NEEDED + flags).split(), Source("x", []), change=rehearse)
    expected = {"algo.advantage.estimator": "rloo", "rollout.n_samples_per_prompt": 4, "ds.lora.rank": 4,
                "actor.world_size": 1, "vllm.num_engines": 1, "train.colocate_all": False, "updates_per_batch": 2,
                "train.max_steps": 4, "algo.kl.init_coef": 0.01}  # fmt: skip
    assert not recipe.problems and values(recipe, *expected) == expected


def test_a_program_around_openrlhfs_is_imported_with_a_sentence(capsys):
    flags = ["--pretrain", "m", "--prompt_data", "d", "--remote_rm_url", "http://h/get_reward"]
    assert main(["import-openrlhf", "--", "python", "-m", "mine.patches.train_ppo_ray", *flags]) == DONE
    own = capsys.readouterr()
    assert main(["import-openrlhf", "--", "python", "-m", "openrlhf.cli.train_ppo_ray", *flags]) == DONE
    plain = capsys.readouterr()
    assert "mine.patches.train_ppo_ray" in own.err and len(own.err.splitlines()) == len(plain.err.splitlines()) + 1


def test_a_file_that_the_script_writes_is_known_by_its_whole_path_as_well(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.sh").write_text(
        "cat > reward.py <<'EOF'\ndef reward_func(queries, prompts, labels):\n    return [1.0]\nEOF\n"
        "python3 -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path m --data.prompt_dataset d"
        " --reward.remote_url $PWD/reward.py\n"
    )
    assert main(["import-openrlhf", "train.sh", "--out", "r.toml"]) == DONE
    assert load("r.toml", {}).reward.remote_url.partition(":")[0] == str(tmp_path / "r_reward.py")


def test_a_reward_that_the_script_writes_itself_is_written_beside_the_recipe(tmp_path, capsys):
    script = tmp_path / "train.sh"
    script.write_text(
        "D=$(mktemp -d)\ncat > $D/reward.py <<'EOF'\n"
        "def reward_func(queries, prompts, labels):\n    return [1.0]\nEOF\n"
        "python3 -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path m --data.prompt_dataset d"
        " --reward.remote_url $D/reward.py\n"
    )
    assert main(["import-openrlhf", str(script), "--out", str(tmp_path / "run/r.toml")]) == DONE
    cfg = load(str(tmp_path / "run/r.toml"), {})
    assert cfg.reward.remote_url.partition(":")[0] == str(tmp_path / "run/r_reward.py")
    assert (tmp_path / "run/r_reward.py").read_text().startswith("def reward_func(")
    assert main(["import-openrlhf", str(script)]) == DONE
    told = capsys.readouterr()
    assert "reward.py" in told.err and "remote_url =" not in told.out


@pytest.mark.parametrize(
    ("prompt", "template", "rendered"),
    [
        ("1+1?", None, False),
        ("<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n", None, True),
        ("1+1?", "<|start_header_id|>user<|end_header_id|>{}<|eot_id|>", True),
        ("a < b | c > d", "User: {}\nAssistant: ", False),
    ],
)
def test_prompts_that_hold_special_tokens_are_known_as_rendered(tmp_path, prompt, template, rendered):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"input": prompt, "label": "2"}) + "\n")
    flags = ["--actor.model_name_or_path", "m", "--reward.remote_url", "http://h:1/r"]
    flags += ["--data.prompt_dataset", str(tmp_path / "rows.jsonl")]
    flags += ["--data.input_template", template] if template else []
    recipe, _ = recipe_of(Call("train_ppo_ray", (), tuple(flags), 0), Source("x", [tmp_path]))
    assert recipe.config.data.rendered is rendered and not recipe.problems
    recipe, _ = recipe_of(Call("train_ppo_ray", (), (*flags, "--data.apply_chat_template"), 0), Source("x", [tmp_path]))
    assert not recipe.config.data.rendered


def test_liger_is_left_out_where_sequences_are_shared():
    shares = "--ds.ring_attn_size 2 --ds.use_liger_kernel --actor.num_gpus_per_node 2"
    recipe = of_flags(NEEDED + "--algo.advantage.estimator rloo --rollout.n_samples_per_prompt 2 " + shares)
    assert not recipe.problems and not recipe.config.ds.use_liger_kernel and said(recipe, "use_liger_kernel")


def test_updates_are_counted_as_openrlhf_counts_them():
    flags = "--rollout.batch_size 16 --rollout.n_samples_per_prompt 4 --train.batch_size 32 --train.num_episodes 3"
    assert of_flags(NEEDED + flags, rows=100).config.train.max_steps == 100 * 4 // 32 * 3
    assert (
        of_flags(f"{NEEDED} {flags} --data.max_samples 40", rows=100).config.train.max_steps == 14
    )  # 15, in whole batches
    assert said(of_flags(NEEDED + flags), "train.max_steps")


def test_every_default_that_differs_is_said_once():
    recipe = of_flags(NEEDED)
    names = [line.partition(" ")[0] for line in recipe.draft.defaults]
    assert len(names) == len(set(names))
    assert {"algo.advantage.estimator", "rollout.n_samples_per_prompt", "algo.kl.init_coef", "ds.zero_stage",
            "actor.eps_clip_low_high", "rollout.batch_size", "data.max_len"} <= set(names)  # fmt: skip
    ours = load(None, {"actor.model_name_or_path": "m"})
    changed = {name for name in recipe.draft.settings if value_at(recipe.config, name) != value_at(ours, name)}
    assert changed <= {*names, *recipe.draft.why, "actor.model_name_or_path", "data.prompt_dataset",
                       "reward.remote_url", "reward.name", "env.max_calls"}  # fmt: skip


@pytest.mark.parametrize("name", [path.name for path in sorted(SCRIPTS.glob("*.sh"))])
def test_a_recipe_that_is_written_gives_the_configuration_that_was_shown(name, tmp_path):
    for call in calls(name):
        if call.program not in ("train_ppo_ray", "train_sft"):
            continue
        recipe, text = recipe_of(call, Source(name, [SCRIPTS]))
        (tmp_path / "r.toml").write_text(text)
        if call.program == "train_ppo_ray":
            again = load(str(tmp_path / "r.toml"))
            assert again.model_dump() == recipe.config.model_dump()


def test_the_command_takes_flags_and_whole_command_lines_behind_two_dashes(capsys, tmp_path):
    out = tmp_path / "r.toml"
    assert main(["import-openrlhf", "--out", str(out), "--", *NEEDED.split(), "--actor.adam.lr", "3e-6"]) == DONE
    assert load(str(out)).actor.learning_rate == 3e-6
    line = f"python3 -m openrlhf.cli.train_ppo_ray {NEEDED} --rollout.batch_size 7"
    assert main(["import-openrlhf", "--force", "--out", str(out), "--", *line.split()]) == DONE
    assert load(str(out)).rollout.batch_size == 7


def test_a_mistake_in_the_call_is_refused(tmp_path):
    assert main(["import-openrlhf"]) == MISTAKE
    assert main(["import-openrlhf", str(tmp_path / "none.sh")]) == MISTAKE
    assert main(["import-openrlhf", "--number", "9", str(SCRIPTS / "sweep.sh")]) == MISTAKE
