"""Commands of the pages that need no GPU, no model, no network and nobody's data are run, in the pages' order and in
one directory: what one writes the next one reads. All others are parsed as the program parses them
(test_docs_blocks.py)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .docs_blocks import REPO
from .test_docs_blocks import commands

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]
PROGRAM = f'openrlhf-tir() {{ {sys.executable} -m openrlhf_tir.cli "$@"; }}; '
"""The installed program is tried elsewhere; this is the checkout's."""
RUNS = (
    r"openrlhf-tir (data|simulate|show-config) ",
    r"openrlhf-tir simulate$",
    r"(openrlhf-tir|bash) .*(--help|--list|--list-suites)$",
    r"\.venv/bin/openrlhf-tir reproduce --list$",
    r"python -m env_servers\.(functions|swe|puzzles)\.make_tasks ",
)
NEEDS_MORE = ("swe_gym.jsonl", "gsm8k/", "runs/", "worked.jsonl")
"""Rows, a run or a model, that a reader has and this test has not."""


def runnable() -> list[tuple[str, str]]:
    plain = {line.split(" # ")[0].strip(): where for where, line in reversed(commands())}
    return [
        (where, line)
        for line, where in reversed(plain.items())
        if any(re.match(pattern, line) for pattern in RUNS) and not any(name in line for name in NEEDS_MORE)
    ]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory as a reader's after `git clone`, with a workload of their own."""
    here = tmp_path_factory.mktemp("reader")
    (here / "tests").mkdir()
    shutil.copytree(REPO / "tests/data", here / "tests/data")
    (here / "train_scripts").symlink_to(REPO / "train_scripts")
    shutil.copy(REPO / "openrlhf_tir/simulation/workload_seed.toml", here / "my.toml")
    return here


def test_there_are_commands_of_many_pages_to_run():
    assert len(runnable()) >= 20 and len({where.partition(":")[0] for where, _ in runnable()}) >= 7


@pytest.mark.parametrize(("where", "line"), runnable(), ids=lambda v: v.partition(" ")[0] if ":" in v else v[:60])
def test_a_command_of_the_pages_does_what_it_says(where: str, line: str, here: Path):
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", PROGRAM + line.replace(".venv/bin/", "")],
        cwd=here,
        env=os.environ | {"PATH": programs, "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, f"{where}: {line}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    assert done.stdout.strip() or done.stderr.strip(), f"{where}: {line} says nothing"
    for written in re.findall(r"(?:--out|--report|--plot) (\S+)", line):
        assert (here / written).is_file(), f"{where}: {line} writes no {written}"
        # both rows of the decontaminated sample are the evaluation's
        assert (here / written).stat().st_size > 0 or written == "clean.jsonl", f"{where}: {written} is empty"
