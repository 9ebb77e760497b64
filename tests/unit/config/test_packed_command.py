"""What a submitted job takes along of the user's own: the recipe, what it extends, and every file that is named."""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ray.dashboard.modules.job import cli as job_cli
from ray.dashboard.modules.job import job_supervisor

from openrlhf_tir.cluster.signals import CLOSE_S
from openrlhf_tir.config.packed_command import pack
from openrlhf_tir.config.schema import Train
from openrlhf_tir.config.settings import load

ROOT = Path(__file__).parents[3]


@pytest.fixture
def home(tmp_path):
    """A directory with two recipes and a file, which the cluster does not see."""
    (tmp_path / "mine.py").write_text("def score(t, task, c):\n    return 1.0\n")
    (tmp_path / "base.toml").write_text('[reward]\nname = "mine.py:score"\n[reward.options]\n"odd key" = [1, 2.5]\n')
    (tmp_path / "mine.toml").write_text('extends = "base.toml"\n[actor]\nl2 = 0.5\n')
    return tmp_path


def test_a_recipe_and_its_files_become_copies_that_find_each_other(home, tmp_path):
    sent = tmp_path / "repo/.job-1"
    args = pack(
        ["--recipe", "mine.toml", "--run-dir", "/shared/run", "--reward.weights", "mine.py:score=0.5", "format=1"],
        sent,
        home,
    )
    assert args[:4] == ["--recipe", ".job-1/recipe.toml", "--run-dir", "/shared/run"]
    key, weight = args[5].split("=")
    assert (key.startswith(".job-1/mine-"), weight, args[6]) == (True, "0.5", "format=1")
    cfg = load(str(sent / "recipe.toml"))
    assert (cfg.actor.l2, cfg.reward.options) == (0.5, {"odd key": [1, 2.5]})
    where, _, name = cfg.reward.name.rpartition(":")
    assert (Path(where).parent, name, Path(where).read_text()) == (sent, "score", (home / "mine.py").read_text())


def test_a_file_that_is_named_without_its_only_class_is_copied_too(home, tmp_path):
    (home / "maze.py").write_text("class Maze: ...\n")
    (home / "mine.toml").write_text('[env]\nfile = "maze.py"\n')
    sent = tmp_path / "repo/.job-1"
    args = pack(["--recipe=mine.toml", "--envs.a.file", "maze.py", "--envs.b.file=maze.py"], sent, home)
    (copy,) = sent.glob("maze-*.py")
    name = f".job-1/{copy.name}"
    assert args == ["--recipe=.job-1/recipe.toml", "--envs.a.file", name, f"--envs.b.file={name}"]
    assert load(str(sent / "recipe.toml")).env.file == str(copy)


def test_a_flag_and_its_file_may_be_one_word(home, tmp_path):
    flags = ["--reward.name=mine.py:score", "--reward.weights=mine.py:score=0.5", "--reward.remote_url=mine.py"]
    name, weights, remote = pack(flags, tmp_path / "repo/.job-1", home)
    (copy,) = (tmp_path / "repo/.job-1").iterdir()
    assert name == f"--reward.name=.job-1/{copy.name}:score"
    assert weights == f"--reward.weights=.job-1/{copy.name}:score=0.5"
    assert remote == f"--reward.remote_url=.job-1/{copy.name}:reward_func"


def test_a_recipe_of_the_package_and_plain_values_stay(tmp_path):
    args = [
        "--recipe=zerotir_7b",
        "--env.url",
        "http://host:8000",
        "--reward.name",
        "openrlhf_tir.rewards.otc:otc",
        "--train.seed=3",
    ]
    assert pack(args, tmp_path / ".job-1", tmp_path) == args
    assert not (tmp_path / ".job-1").exists()


PRINTS_ENV = 'while [ $# -gt 0 ]; do [ "$1" = --runtime-env ] && cat "$2"; shift; done; exit 0\n'


def submitted(home: Path, venv: Path, ray: str, *words: str, script: Path | None = None) -> str:
    """What `ray`, a script here that looks at what it was given, while it is there, prints of a submitted job."""
    bin_dir = venv / "bin"
    bin_dir.mkdir(parents=True)
    (bin_dir / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (bin_dir / "ray").write_text(ray)
    for program in bin_dir.iterdir():
        program.chmod(0o755)
    env = os.environ | {
        "TIR_VENV": str(venv),
        "PYTHONPATH": str(ROOT),
        "NCCL_SOCKET_IFNAME": "eth1",
        "VLLM_HOST_IP": "10.0.0.1",
    }
    command = ["bash", script or ROOT / "train_scripts/submit_ray_job.sh", *words]
    done = subprocess.run(command, cwd=home, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_script_submits_the_copies_and_takes_them_away_again(home, tmp_path):
    ray = (
        '#!/bin/sh\nprintf "%s\\n" "$@"\nown=$(printf "%s\\n" "$@" | grep -m1 -o "^[.]job-[^/]*")\n'
        'cat "$own"/recipe.toml "$own"/mine-*.py\n' + PRINTS_ENV
    )
    printed = submitted(home, tmp_path / "venv", ray, "--run-dir", "/shared/a b", "--recipe", "mine.toml")
    assert "\n--run-dir\n/shared/a b\n--recipe\n.job-" in printed
    assert "l2 = 0.5" in printed and "def score" in printed
    assert '"NCCL_SOCKET_IFNAME": "eth1"' in printed and "VLLM_HOST_IP" not in printed
    own = re.search(r"^--recipe\n(\.job-\w+)/", printed, re.MULTILINE)
    assert own and not (ROOT / own[1]).exists()  # of other jobs that are submitted at this moment there may be some


@pytest.mark.slow
def test_a_submitted_job_gets_every_word_as_it_was_written_though_ray_hands_them_to_a_shell(home, tmp_path):
    """Ray joins the words by list2cmdline, which quotes for Windows, and has the line run by a shell."""
    assert "entrypoint=list2cmdline(entrypoint)" in inspect.getsource(job_cli)
    words = ["--run-dir", "/shared/a", "--data.input_template", "Solve $x$ by `y`;\n{a,b} \\\" 'é' *"]
    ray = (
        f"#!{sys.executable}\nimport os, subprocess, sys\n"
        "line = subprocess.list2cmdline(sys.argv[sys.argv.index('--') + 1:])\n"
        "os.environ['PATH'] = os.getcwd() + '/node:' + os.environ['PATH']\n"
        "sys.exit(subprocess.run(line, shell=True, executable='/bin/bash').returncode)\n"
    )
    scripts = tmp_path / "clone/train_scripts"
    scripts.mkdir(parents=True)
    script = Path(shutil.copy(ROOT / "train_scripts/submit_ray_job.sh", scripts))
    node = tmp_path / "clone/node"
    node.mkdir()
    (node / "python").write_text(f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    (node / "python").chmod(0o755)
    printed = submitted(home, tmp_path / "venv", ray, *words, script=script)
    assert json.loads(printed) == ["-m", "openrlhf_tir.cli", "train", *words]


@pytest.mark.slow
def test_a_submitted_job_has_time_to_stop_and_leaves_its_environment_at_home(home, tmp_path):
    """By itself Ray kills what `ray job stop` stops after three seconds, and an environment has gigabytes."""
    assert '"RAY_JOB_STOP_WAIT_TIME_S"' in inspect.getsource(job_supervisor)
    scripts = tmp_path / "clone/train_scripts"
    scripts.mkdir(parents=True)
    script = Path(shutil.copy(ROOT / "train_scripts/submit_ray_job.sh", scripts))
    printed = submitted(
        home, tmp_path / "clone/gpu", f"#!/bin/sh\n{PRINTS_ENV}", "--run-dir", "/shared/a", script=script
    )
    sent = json.loads(printed)
    assert int(sent["env_vars"]["RAY_JOB_STOP_WAIT_TIME_S"]) > Train().stop_grace_s + CLOSE_S
    assert "/gpu" in sent["excludes"]
