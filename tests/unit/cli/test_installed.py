"""The package outside its checkout: what a user has after `pip install`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The tree of the repository, built and installed into an empty directory without the network."""
    repo = Path(__file__).resolve().parents[3]
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("target")
    for name in ("openrlhf_tir", "env_servers", "miniatures"):
        shutil.copytree(repo / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml"):
        shutil.copy(repo / name, source / name)
    pip = [
        sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index",
        "--target", str(target), str(source),
    ]  # fmt: skip
    done = subprocess.run(pip, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    where = [sys.executable, "-c", "import openrlhf_tir; print(openrlhf_tir.__file__)"]
    imported = subprocess.run(
        where, cwd=target, env={**os.environ, "PYTHONPATH": str(target)}, capture_output=True, text=True, check=True
    ).stdout
    assert imported.startswith(str(target)), imported
    return target


def run(installed, cwd, *argv: str) -> subprocess.CompletedProcess:
    env = {**os.environ, "PYTHONPATH": str(installed)}
    return subprocess.run(
        [sys.executable, "-m", "openrlhf_tir.cli", *argv], cwd=cwd, env=env, capture_output=True, text=True, timeout=120
    )


@pytest.mark.slow
def test_recipes_are_found_by_name_outside_the_checkout(installed, tmp_path):
    """In one process: starting one costs more than what is asked of it."""
    recipes = ["zerotir_7b", "zerotir_32b", "zerotir_ppo_7b", "quickstart_cpu", "two_envs_cpu", "puzzles_cpu"]
    code = (
        "import sys; from openrlhf_tir.cli import main\n"
        "sys.exit(max(main(['show-config', '--recipe', name]) for name in sys.argv[1:]))"
    )
    env = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(
        [sys.executable, "-c", code, *recipes], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f'run_dir = "{tmp_path}/runs/') == len(recipes)


@pytest.mark.slow
def test_check_only_works_outside_the_checkout(installed, tmp_path):
    done = run(installed, tmp_path, "train", "--recipe", "zerotir_7b", "--check-only")
    assert done.returncode == 2
    assert "data.prompt_dataset " in done.stderr
    assert "Traceback" not in done.stderr
