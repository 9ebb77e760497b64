"""The wheel: built from what a checkout has, installed by pip with what it declares and nothing else, and used from
another directory. The packages come from the registry that pip is set up for.

Servers and `--help` run with the declared packages alone. A command that reads a recipe needs libraries of the extra
`cpu`, which it finds in the environment that runs this test. The server `swe` is not started, because it needs pytest,
of the extra `env`; only its files are compared.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from openrlhf_tir.config.servers import SERVERS
from tests.conftest import REPO

from ..env_process import Http, env_server

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

FILES = ("pyproject.toml", "setup.py", "README.md", "LICENSE")
PACKAGES = ("openrlhf_tir", "env_servers")
ELSEWHERE = {"PYTHONPATH": ""}
"""Environment variables of a program that must not find this checkout."""
LIBRARIES = {"PYTHONPATH": sysconfig.get_path("purelib")}
"""The same for a program that finds the libraries of the environment that runs this test. A checkout that is installed
there is not found: no .pth file is read from PYTHONPATH."""


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


def printed(cwd: Path, environ: dict[str, str], *command: str | Path) -> str:
    done = subprocess.run(command, cwd=cwd, env={**os.environ, **environ}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


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


@pytest.mark.parametrize(("environ", "has_torch"), [(ELSEWHERE, False), (LIBRARIES, True)])
def test_what_is_installed_is_the_wheel_without_a_library_of_training(programs, tmp_path, environ, has_torch):
    script = "import importlib.util as u, openrlhf_tir; print(openrlhf_tir.__file__, bool(u.find_spec('torch')))"
    file, torch = printed(tmp_path, environ, programs / "python", "-c", script).split()
    assert Path(file).is_relative_to(programs.parent) and torch == str(has_torch)


@pytest.mark.parametrize(
    ("environ", "words"),
    [(ELSEWHERE, ["--help"]), (ELSEWHERE, ["recipes"]), (LIBRARIES, ["show-config", "--recipe", "quickstart_cpu"])],
)
def test_a_command_prints_from_the_wheel_what_it_prints_from_the_checkout(programs, tmp_path, environ, words):
    checkout = printed(tmp_path, {"PYTHONPATH": str(REPO)}, sys.executable, "-m", "openrlhf_tir.cli", *words)
    assert printed(tmp_path, environ, programs / "openrlhf-tir", *words) == checkout != ""


@pytest.mark.parametrize("name", ["python_tir", "functions", "echo"])
async def test_a_server_from_the_wheel_plays_a_session(programs, tmp_path, name):
    server = SERVERS[name]
    with env_server(server.module, tmp_path, env=ELSEWHERE, python=programs / "python", cwd=tmp_path) as (url, _):
        async with Http(url) as http:
            session = await http.open(server.actions.task)
            reply = await http.unless_late(session, 0, server.actions.valid)
            assert reply["outcome"] == "ok" and reply["observation"]
            assert (await http.send("DELETE", f"/session/{session}"))[1] == {"closed": True}
