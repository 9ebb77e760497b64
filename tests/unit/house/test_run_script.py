"""`tests/run.sh` ends with what its parts ended with, and prints what each of them said."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]

# Stands for the environment's Python. A part is known by what it was given; it says its name and fails if it is to.
PYTHON = """#!/usr/bin/env bash
case "$*" in
    *"-c "*) exit 0 ;;
    *--collect-only*) echo "a_file.py::a_test"; exit 0 ;;
    *"--ignore tests/e2e/test_soak.py"*) part=long ;;
    *tests/e2e/test_soak.py*) part=soaks ;;
    *"--ignore tests/e2e"*) part=unit ;;
    *tests/unit/learner*) part=torch ;;
    *tests/contract*) part=contract ;;
    *tests/e2e*) part=e2e ;;
    *tests.golden*) part=golden ;;
    *) echo "unexpected: $*"; exit 9 ;;
esac
echo "$part ran"
touch "$MARKS/$part"
[[ $part != "${HANGS:-}" ]] || exec sleep 600
[[ $part != "${FAILS:-}" ]]
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout with the real `tests/run.sh`, whose set-up does nothing and whose Python is the script above."""
    tree = tmp_path / "checkout"
    for name in ("tests/golden", "train_scripts", ".venv/bin", "marks"):
        (tree / name).mkdir(parents=True)
    shutil.copy(REPOSITORY / "tests/run.sh", tree / "tests/run.sh")
    (tree / "train_scripts/setup_env.sh").write_text("exit 0\n")
    (tree / "tests/golden/__main__.py").touch()
    (tree / "tests/golden/loss.py").touch()
    (tmp_path / "shared/golden").mkdir(parents=True)
    (tmp_path / "shared/golden/loss.jsonl").touch()
    python = tree / ".venv/bin/python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    return tree


def start(tree: Path, *words: str, **variables: str) -> subprocess.Popen[str]:
    (tree / "tmp").mkdir()
    environment = dict(os.environ, MARKS=str(tree / "marks"), TIR_VENV=".venv", TMPDIR=str(tree / "tmp"), **variables)
    command = ["bash", tree / "tests/run.sh", *words]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_five_parts_that_pass_are_a_success(tree: Path) -> None:
    run = start(tree)
    said, _ = run.communicate()
    assert run.returncode == 0, said
    assert not list((tree / "tmp").iterdir())
    assert sorted(said.split("\n")) == ["", "contract ran", "e2e ran", "golden ran", "torch ran", "unit ran"]


@pytest.mark.parametrize("part", ["unit", "torch", "contract", "e2e", "golden"])
def test_one_part_that_fails_is_a_failure_of_the_whole(tree: Path, part: str) -> None:
    run = start(tree, FAILS=part)
    said, _ = run.communicate()
    assert run.returncode == 1
    assert sorted(said.split("\n")) == ["", "contract ran", "e2e ran", "golden ran", "torch ran", "unit ran"]


def test_a_run_that_is_ended_prints_what_its_parts_have_said(tree: Path) -> None:
    run = start(tree, HANGS="e2e")
    while len(list((tree / "marks").iterdir())) < 5:
        assert run.poll() is None
        time.sleep(0.02)
    run.send_signal(signal.SIGTERM)
    said, _ = run.communicate()
    assert run.returncode != 0
    assert not list((tree / "tmp").iterdir())
    assert {"contract ran", "e2e ran", "golden ran", "torch ran", "unit ran"} <= set(said.split("\n"))


@pytest.mark.parametrize("fails", ["long", "soaks"])
def test_the_soaks_are_the_last_of_the_long_tests_and_run_whatever_failed_before(tree: Path, fails: str) -> None:
    run = start(tree, "long", FAILS=fails)
    said, _ = run.communicate()
    assert run.returncode == 1, said
    assert [line for line in said.split("\n") if line.endswith(" ran")] == ["long ran", "soaks ran"]


def test_long_tests_that_are_named_run_alone(tree: Path) -> None:
    run = start(tree, "long", "tests/e2e/test_soak.py")
    said, _ = run.communicate()
    assert run.returncode == 0, said
    assert [line for line in said.split("\n") if line.endswith(" ran")] == ["soaks ran"]
