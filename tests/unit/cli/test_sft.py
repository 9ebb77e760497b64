"""openrlhf-tir sft, up to where Ray would start: what is read, printed and refused, with nothing heavy loaded."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from dataclasses import replace

import pytest

from miniatures.toy.tokenizer import save_tokenizer
from openrlhf_tir.cli import main
from openrlhf_tir.cli.checks.host import Machine
from openrlhf_tir.cli.checks.sft import check_sft
from openrlhf_tir.config.problems import Problems
from openrlhf_tir.config.settings import RECIPES
from openrlhf_tir.errors import ConfigError
from tests.data.make_samples import rows as samples
from tests.model_files import weights
from tests.unit.cli.test_distill import run  # noqa: F401  a run that kept trajectories
from tests.unit.config.test_fine_tuning import config
from tests.unit.data.test_data_prompts import jsonl

PLACE = {"role": "user", "content": "2+2?"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tokenizer and a config; of the weights only the header is read before Ray."""
    directory = tmp_path_factory.mktemp("model")
    save_tokenizer(directory)
    (directory / "config.json").write_text(json.dumps({"model_type": "qwen2", "max_position_embeddings": 1024}))
    (directory / "model.safetensors").write_bytes(weights())
    return directory


@pytest.fixture
def sft(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def of(rows, *argv: str) -> int:
        path = rows if isinstance(rows, str) else jsonl(tmp_path / "rows.jsonl", rows)
        head = [
            "sft", "--recipe", "sft_cpu", "--sft.dataset", path, "--actor.model_name_or_path", str(model),
            "--run-dir", str(tmp_path / "run"),
        ]  # fmt: skip
        return main([*head, *argv])

    return of


def test_retools_rows_are_read_and_what_the_interpreter_wrote_is_not_learned(sft, capsys):
    assert sft(samples()["retool_sft.jsonl"] * 8, "--check-only") == 0
    out = capsys.readouterr().out
    assert re.search(r"rows\.jsonl: 16 .* 16 .*%", out) and re.search(r"\b2 .* 16 .*, 2 ", out)


def test_what_distill_writes_is_what_sft_reads(sft, run, tmp_path, capsys):  # noqa: F811
    assert main(["distill", str(run), "--out", str(tmp_path / "d.jsonl")]) == 0
    assert sft(str(tmp_path / "d.jsonl"), "--check-only") == 0
    assert re.search(r"d\.jsonl: 2 .* 2 ", capsys.readouterr().out)


def test_held_out_rows_are_read_too(sft, tmp_path, capsys):
    held_out = jsonl(tmp_path / "held.jsonl", [{"text": "two"}])
    assert sft([{"text": "one"}] * 2, "--sft.eval_dataset", held_out, "--check-only") == 0
    assert re.search(f"{held_out}: 1 ", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("rows", "argv", "message"),
    [
        ([{"messages": [PLACE]}], "", r"rows\.jsonl line 1: .* 1 "),
        ([{"q": "?"}], "", r"sft\.input_key"),
        ([], "", r"rows\.jsonl: .*\(.*\)"),
        ("nowhere.jsonl", "", r"nowhere\.jsonl.*sft\.dataset"),
        ([{"text": "a" * 300}], "", r" 1\)\. .*sft\.max_len = 256"),
        ([{"text": "a" * 1100}], "--sft.max_len 2000", "--sft.max_len 1024"),
        ([{"text": "a"}], "--actor.model_name_or_path ./no", "'./no'"),
        ([{"text": "a"}], "--ds.attn_implementation flash_attention_2", "ds.attn_implementation = 'flash_attention_2'"),
        ([{"text": "a"}], "--ds.packing_samples", r"ds\.packing_samples .*ds\.attn_implementation"),
        ([{"text": "ab"}], "--resume", "/run.*--resume"),
        ([{"text": "a"}], "--sft.batch_size 1", r"sft\.batch_size = 1 .* 2 "),
    ],
)
def test_bad_input_is_refused_before_a_model_is_loaded_with_fact_value_and_remedy(
    sft, capsys, monkeypatch, rows, argv, message
):
    monkeypatch.setattr("openrlhf_tir.machine.gpus.gpu_count", lambda: 0)
    assert sft(rows, *argv.split()) == 2
    err = capsys.readouterr().err
    assert re.search(message, err) and "Traceback" not in err


def test_a_run_directory_with_checkpoints_is_refused(sft, tmp_path, capsys):
    (tmp_path / "run" / "ckpt" / "step_000001").mkdir(parents=True)
    assert sft([{"text": "a"}]) == 2
    assert re.search(rf"{tmp_path}/run .*\(step_000001\)\. .*--resume", capsys.readouterr().err)


def test_a_resume_with_other_rows_is_refused_before_a_model_is_loaded(sft, tmp_path, capsys, model):
    from openrlhf_tir.cluster.jobs.sft_inputs import checkpoints_of, load_sft_inputs, resumable
    from tests.unit.pipeline.test_fine_tuning import Counting

    path = jsonl(tmp_path / "first.jsonl", [{"text": "one"}, {"text": "two"}])
    cfg = config(
        "--recipe", "sft_cpu", "--sft.dataset", path, "--actor.model_name_or_path", str(model),
        "--run-dir", str(tmp_path / "run"),
    )  # fmt: skip
    inputs = load_sft_inputs(cfg)
    checkpoints = checkpoints_of(cfg, inputs.made_of)

    async def save():
        await checkpoints.take(1, Counting())
        await checkpoints.commit(1, {"step": 1, "world_size": 2, "rows_taken": 4}, [], Counting())

    with pytest.raises(ConfigError) as refused:
        resumable(cfg, {}, None)
    assert refused.value.code == "no_checkpoint"
    asyncio.run(save())
    with pytest.raises(ConfigError) as refused:
        resumable(cfg, {"train.seed": 7}, None)
    assert refused.value.code == "resume"
    with pytest.raises(ConfigError) as refused:
        resumable(cfg, inputs.made_of, replace(inputs.schedule, epochs=3))
    assert refused.value.code == "resume"
    assert sft(path, "--resume", "--check-only") == 0
    assert " step_000001" in capsys.readouterr().out
    # its one update took 2 passes of 2 rows, and would take 3 now
    assert sft(path, "--resume", "--check-only", "--sft.max_epochs", "3") == 2
    assert re.search(r" 4 .*sft\.max_epochs = 3 .* 6\b", capsys.readouterr().err)
    assert sft(path, "--resume", "--check-only", "--actor.num_gpus_per_node", "1") == 0, (
        "on another number of ranks too"
    )
    changed = ["--sft.batch_size", "8", "--actor.num_gpus_per_node", "1", "--ds.zero_stage", "2"]
    assert sft(path, "--resume", "--check-only", *changed) == 2
    err = capsys.readouterr().err
    assert re.search(r"sft\.batch_size = 16, .* 8\b", err)
    assert re.search(r"\(actor\.num_nodes \* actor\.num_gpus_per_node\) = 2, .* 1\b", err)
    assert sft([{"text": "one"}], "--resume", "--check-only", "--seed", "7") == 2
    err = capsys.readouterr().err
    assert re.search(r" step_000001 .*\(sft\.dataset", err) and re.search(r"train\.seed = 42, .* 7\b", err)


def test_a_resume_from_a_checkpoint_of_rl_is_refused(tmp_path):
    from openrlhf_tir.cluster.jobs.sft_inputs import checkpoints_of, resumable
    from tests.unit.pipeline.test_fine_tuning import Counting

    cfg = config("--recipe", "sft_cpu", "--sft.dataset", "rows.jsonl", "--run-dir", str(tmp_path))
    of_rl = checkpoints_of(cfg)

    async def save():
        await of_rl.take(1, Counting())
        await of_rl.commit(1, {"step": 1, "world_size": 2}, [], Counting())

    asyncio.run(save())
    with pytest.raises(ConfigError, match=r"/step_000001 .*`openrlhf-tir train`") as refused:
        resumable(cfg, {}, None)
    assert refused.value.code == "resume"


def test_the_recipe_on_gpus_says_on_a_cpu_where_to_start_instead():
    assert (RECIPES / "retool_sft_32b.toml").is_file()
    cfg = config("--recipe", "retool_sft_32b", "--actor.num_nodes", "1")
    with pytest.raises(ConfigError, match=r"ds\.attn_implementation = .*--recipe sft_cpu\b"):
        check_sft(cfg, Problems(), Machine(gpus=0, cpus=2, has_module=lambda name: True))


def test_too_many_ranks_are_counted_without_what_a_recipe_of_rl_has_beside_them(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (tmp_path / "rl.toml").write_text(
        '[reward]\nname = "model"\nmodel_name_or_path = "org/rm"\nmodel_replicas = 3\n[vllm]\nnum_engines = 4\n'
    )
    flags = ("--sft.dataset", "rows.jsonl", "--actor.num_gpus_per_node", "4", "--sft.batch_size", "4")
    cfg = config("--recipe", str(tmp_path / "rl.toml"), *flags)
    with pytest.raises(ConfigError) as refused:
        check_sft(cfg, Problems(), Machine(gpus=2, cpus=2, has_module=lambda name: True))
    (line,) = (line for line in str(refused.value).splitlines() if "GPUs" in line)
    assert re.match(r"4 .* 4 GPUs, .* 2\. ", line) and "vllm" not in line and "reward" not in line


@pytest.mark.parametrize("flag", ["--help", "--help-all"])
def test_help_teaches_by_rows_and_commands(flag, capsys):
    with pytest.raises(SystemExit):
        main(["sft", flag])
    out = capsys.readouterr().out
    assert all(column in out for column in ("messages", "prompt", "segments", "response", "text"))
    assert (
        "openrlhf-tir sft --recipe sft_cpu" in out and "--sft.mask_blocks" in out and "--rollout.batch_size" not in out
    )


@pytest.mark.parametrize("broken", ["{}", "no JSON"])
def test_a_tokenizer_that_cannot_be_read_is_a_mistake_of_the_configuration(sft, model, tmp_path, capsys, broken):
    """transformers raises KeyError for the one, ValueError for the other."""
    copied = shutil.copytree(model, tmp_path / "broken")
    (copied / "tokenizer.json").write_text(broken)
    assert sft([{"text": "one"}], "--actor.model_name_or_path", str(copied), "--check-only") == 2
    err = capsys.readouterr().err
    assert any(line.startswith("ConfigError: ") and str(copied) in line for line in err.splitlines())


def test_a_run_of_rl_refuses_settings_of_fine_tuning(capsys):
    assert main(["train", "--recipe", "quickstart_cpu", "--sft.max_len", "64", "--check-only"]) == 2
    assert re.search(r"--sft\.max_len .*`openrlhf-tir sft`", capsys.readouterr().err)
