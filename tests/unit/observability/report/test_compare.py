"""compare: repetitions are one band, what differs names the configurations, and the best update is found."""

from __future__ import annotations

import re

import numpy as np
import pytest

from openrlhf_tir.cli import main
from openrlhf_tir.config import Config, Logger
from openrlhf_tir.config.settings import to_toml
from openrlhf_tir.errors import ConfigError
from openrlhf_tir.observability.report.compare import (
    _values,
    arms_of,
    best_of,
    metrics_of,
    read_runs,
    table_of,
    tail_mean,
)
from openrlhf_tir.telemetry.metrics import MetricsLog


def a_run(parent, name, rewards, *, seed=1, learning_rate=1e-6, evaluated=None):
    directory = parent / name
    directory.mkdir()
    cfg = Config.model_validate(
        {
            "run_dir": str(directory),
            "train": {"seed": seed},
            "actor": {"learning_rate": learning_rate},
            "data": {"prompt_dataset": str(directory / "data.jsonl")},
        }
    )
    (directory / "config.toml").write_text(to_toml(cfg))
    with MetricsLog(directory, Logger(tensorboard_dir=None)) as log:
        for step, reward in enumerate(rewards, 1):
            log.log(step, {"reward_mean": reward})
        for step, accuracy in (evaluated or {}).items():
            log.log(step, {"eval/accuracy": accuracy})
    return directory


@pytest.fixture
def directories(tmp_path):
    """Two seeds of one learning rate, one of another."""
    first = a_run(tmp_path, "a1", [0.0, 1.0], seed=1, evaluated={0: 0.25, 1: 0.75, 2: 0.5})
    second = a_run(tmp_path, "a2", [1.0, 2.0, 4.0], seed=2, evaluated={0: 0.25})
    other = a_run(tmp_path, "b", [5.0], seed=1, learning_rate=1e-5)
    return [first, other, second]


def test_runs_that_differ_in_the_seed_and_the_directory_only_are_repetitions(directories):
    arms = arms_of(read_runs(directories))
    assert [(arm.label, [run.name for run in arm.runs]) for arm in arms] == [
        ("learning_rate 1e-06 (x2)", ["a1", "a2"]),
        ("learning_rate 1e-05", ["b"]),
    ]


def test_a_band_has_at_every_step_the_runs_that_have_it(directories):
    arm = arms_of(read_runs(directories))[0]
    steps, values = _values(arm, "reward_mean")
    assert steps.tolist() == [1, 2, 3]
    np.testing.assert_array_equal(values, [[0.0, 1.0, np.nan], [1.0, 2.0, 4.0]])
    assert _values(arm, "eval/accuracy")[0].tolist() == [0, 1, 2], "an evaluation of the base model counts"


def test_the_best_update_of_a_metric_and_its_checkpoint_where_it_is_kept(directories):
    run = read_runs(directories)[0]
    assert best_of(run, "eval/accuracy") == (0.75, 1, "", "")
    kept = directories[0] / "ckpt" / "step_000001"
    kept.mkdir(parents=True)
    assert best_of(run, "eval/accuracy") == (0.75, 1, str(kept), "")
    assert best_of(run, "reward_mean", lowest=True)[:2] == (0.0, 1)
    assert best_of(run, "entropy") is None


def test_the_table_has_the_mean_of_the_last_updates_and_of_an_evaluation_the_last(directories):
    run = read_runs(directories)[0]
    assert tail_mean(run, "reward_mean") == 1.0 and tail_mean(run, "eval/accuracy") == 0.5
    assert tail_mean(run, "entropy") is None
    head, rows = table_of(arms_of(read_runs(directories)), "eval/accuracy")
    assert all(len(row) == len(head) for row in rows) and [row[0] for row in rows] == ["a1", "a2", "b"]


def test_the_exported_model_of_the_best_update_is_found_where_the_run_exported_it(directories):
    run = read_runs(directories)[0]
    kept = directories[0] / "ckpt" / "step_000001"
    kept.mkdir(parents=True)
    for name in ("model", "model_best"):
        (directories[0] / name).mkdir()
    assert best_of(run, "eval/accuracy").model == "", "nothing says of which update model_best is"
    (kept.parent / "best.json").write_text('{"checkpoint": "step_000001", "score": 0.75}')
    assert best_of(run, "eval/accuracy").model == str(directories[0] / "model_best")
    assert best_of(run, "reward_mean").model == str(directories[0] / "model"), "the last update is the export's"


@pytest.mark.slow
def test_the_table_of_a_terminal_fits_80_columns_and_says_below_which_run_is_of_which_configuration(
    directories, monkeypatch, capsys, tmp_path
):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["compare", *map(str, directories), "--out", str(tmp_path / "page.html")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[:4])) <= 80
    assert [line.split()[0] for line in lines[:4]] == ["run", "a1", "a2", "b"]
    assert lines[4:6] == ["a1, a2: learning_rate 1e-06 (x2)", "b: learning_rate 1e-05"]


def test_runs_of_one_name_are_told_apart_by_their_parents(tmp_path):
    for parent in ("x", "y"):
        (tmp_path / parent).mkdir()
        a_run(tmp_path / parent, "run", [1.0])
    assert [run.name for run in read_runs([tmp_path / "x/run", tmp_path / "y/run"])] == ["x/run", "y/run"]
    for study in ("first", "second"):
        (tmp_path / study / "x").mkdir(parents=True)
        a_run(tmp_path / study / "x", "run", [1.0])
    two = read_runs([tmp_path / "first/x/run", tmp_path / "second/x/run"])
    assert [run.name for run in two] == ["first/x/run", "second/x/run"]


def test_every_directory_that_is_no_run_is_named_at_once(directories, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError) as error:
        read_runs([*directories, tmp_path / "empty", tmp_path / "nowhere"])
    assert str(tmp_path / "empty") in str(error.value) and str(tmp_path / "nowhere") in str(error.value)


def test_a_metric_that_no_run_has_is_refused_with_those_that_they_have(directories):
    runs = read_runs(directories)
    assert [name for name, _, _ in metrics_of(runs)] == ["reward_mean", "eval/accuracy"]
    with pytest.raises(ConfigError, match="reward_mean"):
        metrics_of(runs, ["nonsense"])


@pytest.mark.slow
def test_the_command_prints_the_table_and_the_best_run_and_writes_a_page_that_stands_alone(
    directories, tmp_path, capsys
):
    out = tmp_path / "page.html"
    assert main(["compare", *map(str, directories), "--best", "reward_mean", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert re.search(r"\bb \w+ \w+ 1\b", said) and "learning_rate 1e-06 (x2)" in said
    page = out.read_text()
    assert page.count("data:image/png;base64,") == 2
    assert not re.search(r'(src|srcset)="(?!data:)', page) and "<script" not in page
    assert main(["compare", str(tmp_path / "nowhere")]) == 2
