"""The import commands: what is on the disk stays as it is unless the user says otherwise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from openrlhf_tir.cli import imports, main
from openrlhf_tir.cli.exit_codes import DONE, MISTAKE

from .preflight.runs import CPU

BASH = """cat > reward.py <<'EOF'
def reward_func(queries, prompts, labels):
    return [0.0]
EOF
python3 -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path MODEL --reward.remote_url reward.py \\
    --data.prompt_dataset rows.jsonl --rollout.n_samples_per_prompt 4
"""
VERL = """python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=rows.jsonl \\
    actor_rollout_ref.model.path=MODEL actor_rollout_ref.rollout.n=4
"""
TRL = """from trl import GRPOConfig, GRPOTrainer


def short(completions, **kwargs):
    return [-len(c) for c in completions]


GRPOTrainer(model="MODEL", reward_funcs=short, args=GRPOConfig(), train_dataset="rows").train()
"""
SCRIPTS = {"openrlhf": ("s.sh", BASH), "verl": ("s.sh", VERL), "trl": ("s.py", TRL)}


@pytest.mark.parametrize("project", SCRIPTS)
def test_a_file_that_says_something_else_is_replaced_only_on_demand(project, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    name, text = SCRIPTS[project]
    Path(name).write_text(text)
    command = [f"import-{project}", "--out", "r.toml"]
    assert main([*command, name]) == DONE
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert main([*command, name]) == DONE, "what is there says the same"
    for changed in sorted(set(written) - {name}):
        Path(changed).write_text("mine")
        capsys.readouterr()
        assert main([*command, name]) == MISTAKE
        assert changed in capsys.readouterr().err
        assert Path(changed).read_text() == "mine"
        assert main([*command, "--force", name]) == DONE
        assert {path.name: path.read_text() for path in tmp_path.iterdir()} == written


@pytest.mark.parametrize("project", ["openrlhf", "verl"])
def test_a_program_that_starts_the_training_is_refused_and_not_read_as_bash(project, tmp_path, capsys):
    (tmp_path / "launch.py").write_text("import subprocess\nsubprocess.run(['python', '-m', 'x'])\n")
    assert main([f"import-{project}", str(tmp_path / "launch.py")]) == MISTAKE
    assert "launch.py" in capsys.readouterr().err


@pytest.mark.parametrize("project", ["openrlhf", "verl"])
@pytest.mark.parametrize(("flags", "has_no_gpu", "is_said"), [([], True, 1), (["--rehearse"], True, 0), ([], False, 0)])
def test_how_to_rehearse_is_said_where_there_is_no_gpu(
    project, flags, has_no_gpu, is_said, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(imports, "has_no_gpu", lambda: has_no_gpu)
    name, text = SCRIPTS[project]
    Path(name).write_text(text)
    assert main([f"import-{project}", "--out", "r.toml", *flags, name]) == DONE
    assert capsys.readouterr().err.count("--rehearse") == is_said


@pytest.mark.parametrize(
    ("gpus", "address", "expected"), [(0, None, True), (0, "", True), (0, "10.0.0.1:6379", False), (1, None, False)]
)
def test_there_is_no_gpu_without_one_here_and_without_the_address_of_a_cluster(gpus, address, expected, monkeypatch):
    monkeypatch.setattr(imports, "Machine", lambda: replace(CPU, gpus=gpus))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if address is not None:
        monkeypatch.setenv("RAY_ADDRESS", address)
    assert imports.has_no_gpu() is expected
