"""`openrlhf-tir quickstart --model smollm2`: what cannot work is told before a model or Ray is loaded."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest

from miniatures import function_calls
from miniatures import prepare as prepare_module
from miniatures.packaged_models import MODELS
from miniatures.tasks import TASKS
from openrlhf_tir.cli import main
from openrlhf_tir.cli.checks.host import Machine
from openrlhf_tir.cli.exit_codes import MISTAKE
from openrlhf_tir.cli.quickstart import check_cold_start, in_fast_precision
from openrlhf_tir.config.settings import load
from tests.model_files import weights
from tests.unit.cli.test_model import GGUF, package  # noqa: F401 - a fixture

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536,
    "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "vocab_size": 49152,
    "max_position_embeddings": 8192, "tie_word_embeddings": True,
}  # fmt: skip
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"


@pytest.fixture
def model(tmp_path):
    """Write a directory that passes for a model as far as a check without torch can see, and return its path."""
    directory = tmp_path / "a_model"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(CONFIG))
    (directory / "tokenizer.json").write_text("{}")
    (directory / "tokenizer_config.json").write_text("{}")
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    (directory / "model.safetensors").write_bytes(weights())
    return directory


@pytest.fixture(autouse=True)
def nothing_is_loaded(monkeypatch):
    """Fail a test whose command gets as far as converting a model or taking the run's lock."""

    def refuse(*args, **kwargs):
        pytest.fail("the command went on")

    monkeypatch.setattr(prepare_module, "_convert", refuse)
    monkeypatch.setattr("openrlhf_tir.cluster.run_lock.run_lock", refuse)


@pytest.mark.parametrize(
    ("bf16", "gpus", "address", "asked", "taken"),
    [
        pytest.param(True, 0, None, {}, "bf16", id="a CPU with bf16"),
        pytest.param(False, 0, None, {}, "fp32", id="a CPU without"),
        pytest.param(False, 1, None, {}, "bf16", id="a GPU"),
        pytest.param(False, 0, "head:6379", {}, "bf16", id="a cluster, which may have GPUs"),
        pytest.param(False, 0, None, {"ds.param_dtype": "bf16"}, "bf16", id="a person asked for it"),
    ],
)
def test_a_cpu_that_is_slow_in_bf16_takes_fp32_unless_a_person_asks_for_it(
    monkeypatch, bf16, gpus, address, asked, taken
):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if address:
        monkeypatch.setenv("RAY_ADDRESS", address)
    cfg = in_fast_precision(load("smollm2_cpu", asked), asked, Machine(gpus=gpus, bf16=bf16))
    assert cfg.ds.param_dtype == taken


def one_sentence(capsys, tmp_path, *flags: str) -> str:
    """Run the command, which must refuse, and return its only line of error."""
    assert main(["quickstart", "--model", *flags, "--run-dir", str(tmp_path / "run")]) == MISTAKE
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def test_an_unknown_model_is_refused_with_those_that_are_known(capsys, tmp_path):
    line = one_sentence(capsys, tmp_path, "gpt2")
    assert all(word in line for word in ("gpt2", "smollm2", "toy"))


def test_without_the_package_the_remedy_is_how_to_install_it(package, capsys, tmp_path):  # noqa: F811
    shutil.rmtree(package)
    line = one_sentence(capsys, tmp_path, "smollm2")
    assert all(requirement in line for requirement in MODELS["smollm2"].requirements)
    assert not (tmp_path / "run").exists()


def test_another_quantisation_is_refused(package, capsys, tmp_path):  # noqa: F811
    (package / GGUF).write_bytes(b"GGUF of something else")
    assert GGUF in one_sentence(capsys, tmp_path, "smollm2")


def test_a_template_that_cannot_show_a_reply_is_refused(model, capsys, tmp_path):
    (model / "chat_template.jinja").write_text(
        "{% for m in messages %}{% if m['role'] == 'user' and loop.index > 2 %}{{ raise_exception('no') }}{% endif %}"
        f"{TEMPLATE[len('{% for m in messages %}') :]}"
    )
    line = one_sentence(capsys, tmp_path, "smollm2", "--actor.model_name_or_path", str(model))
    assert "TemplateError: no" in line and "env.options.role" not in line, "the reply has the role of the user already"


def test_a_tool_role_that_the_template_does_not_know_is_refused(model, capsys, tmp_path):
    (model / "chat_template.jinja").write_text(
        "{% for m in messages %}{% if m['role'] == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
        f"{TEMPLATE[len('{% for m in messages %}') :]}"
    )
    line = one_sentence(
        capsys, tmp_path, "smollm2", "--actor.model_name_or_path", str(model), "--env.options",
        "calls=fence", "argument=code", 'stops=["x"]', "role=tool",
    )  # fmt: skip
    assert "env.options.role" in line


def test_a_model_larger_than_the_memory_plan_is_refused(model, capsys, tmp_path):
    (model / "config.json").write_text(json.dumps(CONFIG | {"hidden_size": 8192, "num_hidden_layers": 200}))
    line = one_sentence(capsys, tmp_path, "smollm2", "--actor.model_name_or_path", str(model))
    assert "train.max_tokens_per_gpu" in line


def test_an_unknown_task_is_refused_with_those_that_are_known(capsys, tmp_path):
    line = one_sentence(capsys, tmp_path, "smollm2", "--task", "chess")
    assert all(word in line for word in ("chess", *TASKS))


def test_the_toy_has_no_task_to_choose(capsys, tmp_path):
    assert "--task" in one_sentence(capsys, tmp_path, "toy", "--task", "search")


def test_without_the_package_of_bfcls_rows_the_remedy_is_how_to_install_it(monkeypatch, model, capsys, tmp_path):
    monkeypatch.setattr(function_calls, "find_spec", lambda name: None)
    line = one_sentence(capsys, tmp_path, "smollm2", "--task", "functions", "--actor.model_name_or_path", str(model))
    assert function_calls.REQUIREMENT in line
    assert not (tmp_path / "run").exists()


def test_a_packaged_model_larger_than_the_memory_plan_is_refused_before_it_is_made(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(prepare_module, "check_package", lambda name: None)
    model = MODELS["smollm2"]
    larger = replace(model, shape=model.shape | {"hidden_size": 8192, "num_hidden_layers": 200})
    monkeypatch.setitem(MODELS, "smollm2", larger)
    assert "train.max_tokens_per_gpu" in one_sentence(capsys, tmp_path, "smollm2")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("machine", ["cpu", "one_gpu"])
def test_a_cold_start_fits_the_recipes_of_every_task(task, machine, tmp_path):
    rows = tmp_path / "demonstrations.jsonl"
    rows.write_text("{}\n")
    check_cold_start(load(TASKS[task].recipe.replace("_cpu", f"_{machine}")), rows, 1)
