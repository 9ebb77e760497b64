"""A user's file that takes the place of one of Python's modules is named before anything starts."""

from __future__ import annotations

import subprocess
import sys

import pytest

from openrlhf_tir.cli.checks.shadowed import check_shadowed
from openrlhf_tir.config.problems import Problems


def paths_named(directory):
    problems = Problems()
    check_shadowed(problems, directory)
    return [line.split()[0] for line in problems.lines]


@pytest.fixture(autouse=True)
def searched(monkeypatch):
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)


@pytest.mark.parametrize("file", ["random.py", "json/__init__.py", "tempfile.py", "queue.py"])
def test_a_file_with_the_name_of_a_module_that_a_run_needs_is_named(tmp_path, file):
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text("raise SystemExit(3)\n")
    assert paths_named(tmp_path) == [str(path)]
    module = file.partition("/")[0].removesuffix(".py")
    child = subprocess.run([sys.executable, "-c", f"import {module}"], cwd=tmp_path)
    assert child.returncode == 3, "it would be loaded"


@pytest.mark.parametrize("file", ["reward.py", "turtle.py", "sys.py", "os.py", "random.txt", "json/notes.txt"])
def test_other_files_are_not(tmp_path, file):
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text("")
    assert not paths_named(tmp_path)


def test_nothing_is_where_python_does_not_search_the_directory(tmp_path, monkeypatch):
    (tmp_path / "random.py").write_text("")
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    assert not paths_named(tmp_path)
