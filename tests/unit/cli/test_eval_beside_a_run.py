"""`openrlhf-tir eval` with the recipe of a run: its engines work beside the run's files, under a lock of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from openrlhf_tir.cli import main, preflight
from openrlhf_tir.cli.exit_codes import code_of
from openrlhf_tir.cluster.jobs import main as jobs
from openrlhf_tir.cluster.run_lock import is_held, run_lock
from openrlhf_tir.errors import ConfigError


@pytest.fixture
def run_dir(tmp_path):
    """The directory of a run with the recipe that it wrote."""
    directory = tmp_path / "run"
    directory.mkdir()
    (directory / "config.toml").write_text(f'run_dir = "{directory}"\n[eval]\ndataset = "x.jsonl"\n')
    return directory


@pytest.fixture
def evaluated(monkeypatch):
    """The run directories of the engines that the command would have started, and whether their lock was held."""
    started: list[tuple[Path, bool]] = []

    def start(cfg, out=None):
        started.append((cfg.run_dir, is_held(cfg.run_dir.parent)))

    monkeypatch.setattr(preflight, "check", lambda cfg, **more: [])
    monkeypatch.setattr(jobs, "evaluate", start)
    monkeypatch.setattr(jobs, "evaluate_suites", lambda plan, out=None: start(plan.cfg))
    return started


@pytest.mark.parametrize("form", ["rows", "sweep", "items", "suite"])
def test_the_engines_of_an_evaluation_stay_out_of_the_files_of_a_run_that_is_going_on(
    tmp_path, run_dir, evaluated, form
):
    (tmp_path / "a.jsonl").write_text(json.dumps({"problem": "P", "answer": 1}) + "\n")
    words = {
        "rows": [],
        "sweep": ["--sweep", "eval.temperature=0,1"],
        "items": ["--items", str(tmp_path / "items")],
        "suite": ["--suite", f"aime24={tmp_path / 'a.jsonl'}"],
    }[form]
    items = tmp_path / "items" if form == "items" else run_dir / "eval"
    with run_lock(run_dir):
        assert main(["eval", "--recipe", str(run_dir / "config.toml"), "--model", "m", *words]) == 0
    assert evaluated == [(items / "engines", True)]
    assert {path.name for path in run_dir.iterdir()} <= {"config.toml", "run.lock", "eval"}


def test_a_second_evaluation_into_the_same_directory_is_refused(run_dir, evaluated):
    with run_lock(run_dir / "eval"):
        code = main(["eval", "--recipe", str(run_dir / "config.toml"), "--model", "m"])
    assert code == code_of(ConfigError("")) and not evaluated
