"""The package outside its checkout: what a user has after `pip install`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.extended


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """What pip would install, in an empty directory: setuptools builds it from a copy of the repository. pip and a
    wheel take four more CPU seconds."""
    repo = Path(__file__).resolve().parents[3]
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("target")
    for name in ("openrlhf_tir", "env_servers", "miniatures"):
        shutil.copytree(repo / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml"):
        shutil.copy(repo / name, source / name)
    build = [sys.executable, "setup.py", "--quiet", "build", "--build-lib", str(target)]
    done = subprocess.run(build, cwd=source, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return target


@pytest.mark.slow
def test_recipes_are_found_by_name_outside_the_checkout_and_checked(installed, tmp_path):
    """In one process: starting one costs more than what is asked of it."""
    recipes = ["zerotir_7b", "zerotir_32b", "zerotir_ppo_7b", "quickstart_cpu", "two_envs_cpu", "puzzles_cpu"]
    code = (
        "import sys, openrlhf_tir; from openrlhf_tir.cli import main\n"
        "print(openrlhf_tir.__file__)\n"
        "assert not max(main(['show-config', '--recipe', name]) for name in sys.argv[1:])\n"
        "sys.exit(main(['train', '--recipe', 'zerotir_7b', '--check-only']))"
    )
    env = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(
        [sys.executable, "-c", code, *recipes], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2, done.stderr
    assert done.stdout.startswith(str(installed))
    assert done.stdout.count(f'run_dir = "{tmp_path}/runs/') == len(recipes)
    assert "data.prompt_dataset " in done.stderr
    assert "Traceback" not in done.stderr
