"""Every module of benchmarks/ can be imported, every program there says what it takes, and the pages give it nothing
else. In one process: most of what it costs is to import torch once."""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import runpy
import sys
from functools import cache

import pytest

from tests.conftest import REPO

PAGES = [*sorted((REPO / "docs").glob("*.md")), REPO / "README.md", REPO / "CONTRIBUTING.md"]
ELSEWHERE = {"benchmarks.peers.trl_grpo": "trl, which is in a virtual environment that benchmarks.peers makes"}
"""Module -> what it imports that is not installed here."""
SOURCES = {
    ".".join(path.relative_to(REPO).with_suffix("").parts).removesuffix(".__init__"): path.read_text()
    for path in (REPO / "benchmarks").rglob("*.py")
}
STARTED = [name for name, text in SOURCES.items() if '\nif __name__ == "__main__":' in text and name not in ELSEWHERE]
READERS = [name for name in STARTED if re.search(r"ArgumentParser|command_parser", SOURCES[name])]
PROGRAMS = sorted(name.removesuffix(".__main__") for name in READERS)
WORKERS = sorted({*STARTED} - {*READERS})
"""Started by a program, which gives them words that nobody types."""
FLAG = r"--[a-z][\w-]*"


@cache
def help_of(program: str) -> str:
    out = io.StringIO()
    before, sys.argv = sys.argv, [program, "--help"]
    try:
        with contextlib.redirect_stdout(out):
            runpy.run_module(program, run_name="__main__")
    except SystemExit as end:
        return out.getvalue() if not end.code else f"exit code {end.code}"
    finally:
        sys.argv = before
    raise RuntimeError("it ran, instead of saying what it takes")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
def test_every_module_imports_and_every_program_says_what_it_takes():
    wrong = {}
    for name in sorted(SOURCES.keys() - ELSEWHERE.keys()):
        try:
            importlib.import_module(name)
        except Exception as fault:
            wrong[name] = f"{type(fault).__name__}: {fault}"
    for program in PROGRAMS:
        try:
            said = help_of(program)
        except Exception as fault:
            wrong[f"{program} --help"] = f"{type(fault).__name__}: {fault}"
        else:
            if "usage:" not in said:
                wrong[f"{program} --help"] = said
    assert wrong == {}
    assert len(PROGRAMS) > 25
    assert all("sys.argv" in SOURCES[name] for name in WORKERS), f"which of {WORKERS} takes nothing? It needs --help."


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
def test_the_pages_give_a_benchmark_only_what_it_takes():
    # What follows " -- " goes to the program that the benchmark starts: settings, which tests/contract/docs checks.
    command = re.compile(r"python -m (benchmarks[\w.]*)(.*?)(?: -- |[`\n])")
    written = {(page.name, *found) for page in PAGES for found in command.findall(page.read_text())}
    assert len(written) > 30
    wrong = [
        f"{page}: python -m {program}{words}"
        for page, program, words in sorted(written)
        if program not in PROGRAMS or not set(re.findall(FLAG, words)) <= set(re.findall(FLAG, help_of(program)))
    ]
    assert wrong == []
