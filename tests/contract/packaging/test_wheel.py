"""The wheel: built from what a checkout has, installed by pip with what it declares and nothing else, and used from
another directory. The packages come from the registry that pip is set up for.

No extra is installed: servers, and the commands that plan a run, need the declared packages alone. The server `swe` is
not started, because it needs pytest, of the extra `env`; only its files are compared.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from openrlhf_tir.cli.command_line import COMMANDS
from openrlhf_tir.config.servers import SERVERS
from tests.conftest import REPO

from ..env_process import Http, env_server

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

FILES = ("pyproject.toml", "setup.py", "README.md", "LICENSE")
PACKAGES = ("openrlhf_tir", "env_servers", "miniatures")
ELSEWHERE = {"PYTHONPATH": "", "HF_HUB_OFFLINE": "1"}
"""Environment variables of a program that must not find this checkout."""
CHECKOUT = {"PYTHONPATH": str(REPO), "HF_HUB_OFFLINE": "1"}
MODEL = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 9}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Build the wheel in a copy, so that nothing is left in this checkout, and nothing that lies in it is taken."""
    source = tmp_path_factory.mktemp("source")
    for name in FILES:
        shutil.copy(REPO / name, source)
    for name in PACKAGES:
        shutil.copytree(REPO / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    directory = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", directory, source], check=True)
    [built] = directory.glob("openrlhf_tir-*.whl")
    return built


@pytest.fixture(scope="module")
def programs(wheel, tmp_path_factory) -> Path:
    """Return the directory of the programs of a new virtual environment with the wheel."""
    venv = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    subprocess.run([venv / "bin/pip", "install", "-q", wheel], check=True, env={**os.environ, **ELSEWHERE})
    return venv / "bin"


def outcome(cwd: Path, environ: dict[str, str], *command: str | Path) -> tuple[int, str, str]:
    """Run a command and return its exit code and what it printed."""
    done = subprocess.run(command, cwd=cwd, env={**os.environ, **environ}, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def test_every_file_of_the_packages_is_in_the_wheel(wheel):
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    files = {
        str(path.relative_to(REPO))
        for package in PACKAGES
        for path in (REPO / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {Path(file).suffix for file in files} >= {".py", ".toml", ".html", ".md"}
    assert files - packed == set()


def test_what_is_installed_is_the_wheel_without_a_library_of_training(programs, tmp_path):
    script = "import importlib.util as u, openrlhf_tir; print(openrlhf_tir.__file__, u.find_spec('torch'))"
    code, out, err = outcome(tmp_path, ELSEWHERE, programs / "python", "-c", script)
    assert code == 0, err
    file, torch = out.split()
    assert Path(file).is_relative_to(programs.parent) and torch == "None"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_the_wheel_has_help(programs, tmp_path, command):
    code, out, err = outcome(tmp_path, ELSEWHERE, programs / "openrlhf-tir", command, "--help")
    assert (code, err) == (0, "") and out


@pytest.mark.parametrize(
    ("expected", "words"),
    [
        (0, "--help"),
        (0, "recipes"),
        (0, "rewards"),
        (0, "envs"),
        (0, "show-config --recipe quickstart_cpu"),
        (0, "show-config --recipe zerotir_7b --changes"),
        (0, "size --recipe zerotir_7b --actor.model_name_or_path model"),
        (0, "size --cards 1"),
        (0, f"import-openrlhf {REPO}/examples/openrlhf/grpo.sh"),
        (2, "size --recipe zerotir_7b"),
        (2, "train --recipe zerotir_7b --logger.tensorboard_dir unset --check-only"),
    ],
)
def test_a_command_prints_from_the_wheel_what_it_prints_from_the_checkout(programs, tmp_path, expected, words):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(MODEL))
    checkout = outcome(tmp_path, CHECKOUT, sys.executable, "-m", "openrlhf_tir.cli", *words.split())
    assert checkout[0] == expected and "Traceback" not in checkout[2]
    assert outcome(tmp_path, ELSEWHERE, programs / "openrlhf-tir", *words.split()) == checkout


def test_the_simulator_of_the_wheel_predicts_a_recipe(programs, tmp_path):
    words = ["simulate", "--recipe", "quickstart_cpu", "--json"]
    code, out, err = outcome(tmp_path, ELSEWHERE, programs / "openrlhf-tir", *words)
    assert code == 0, err
    assert json.loads(out)["quickstart_cpu"]["step_s"] > 0


@pytest.mark.parametrize("name", ["python_tir", "functions", "echo"])
async def test_a_server_from_the_wheel_plays_a_session(programs, tmp_path, name):
    server = SERVERS[name]
    with env_server(server.module, tmp_path, env=ELSEWHERE, python=programs / "python", cwd=tmp_path) as (url, _):
        async with Http(url) as http:
            session = await http.open(server.actions.task)
            reply = await http.unless_late(session, 0, server.actions.valid)
            assert reply["outcome"] == "ok" and reply["observation"]
            assert (await http.send("DELETE", f"/session/{session}"))[1] == {"closed": True}
