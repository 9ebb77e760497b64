"""A run's result is deleted only when the command line says so: a recipe cannot ask for it, and a repeated quickstart
goes elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from openrlhf_tir.cli import toy_model
from openrlhf_tir.cli.command_line import build_parser
from openrlhf_tir.cli.configuration import config_of
from openrlhf_tir.cli.quickstart import in_unused_directory
from openrlhf_tir.config.settings import RECIPES, load
from openrlhf_tir.errors import ConfigError
from openrlhf_tir.pipeline.checkpoints.lineage import check_unused


def finished(run_dir: Path, *, checkpoint: bool = False) -> Path:
    """Leave what a finished run leaves: a model, and a checkpoint if it kept one."""
    (run_dir / "model").mkdir(parents=True)
    (run_dir / "model/config.json").write_text("{}")
    (run_dir / "metrics.jsonl").write_text("{}\n")
    if checkpoint:
        (run_dir / "ckpt/step_000024").mkdir(parents=True)
    return run_dir


@pytest.fixture
def deleting(tmp_path) -> str:
    """A recipe that inherits `overwrite` from another."""
    (tmp_path / "parent.toml").write_text("[train]\noverwrite = true\nmax_steps = 7\n")
    (tmp_path / "child.toml").write_text('extends = "parent.toml"\n')
    return str(tmp_path / "child.toml")


@pytest.mark.parametrize("recipe", sorted(path.stem for path in RECIPES.glob("*.toml")))
def test_no_recipe_of_the_package_deletes(recipe):
    assert "overwrite" not in (RECIPES / f"{recipe}.toml").read_text()


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_recipe_that_inherits_overwrite_does_not_delete_a_finished_run(deleting, tmp_path, checkpoint):
    overrides = {"run_dir": str(finished(tmp_path / "run", checkpoint=checkpoint))}
    cfg = load(deleting, overrides)
    assert cfg.train.max_steps == 7 and not cfg.train.overwrite
    with pytest.raises(ConfigError, match=r"--train\.overwrite"):
        check_unused(cfg)
    check_unused(load(deleting, {**overrides, "train.overwrite": "true"}))


def test_a_run_that_left_no_result_is_begun_again_without_a_flag(tmp_path):
    (tmp_path / "ledger.jsonl").write_text("{}\n")
    check_unused(load(None, {"run_dir": str(tmp_path)}))


def test_a_model_that_someone_has_put_there_to_start_from_is_no_result(tmp_path):
    finished(tmp_path)
    (tmp_path / "metrics.jsonl").unlink()
    check_unused(load(None, {"run_dir": str(tmp_path)}))


def test_what_would_start_anew_over_a_finished_model_is_refused_though_it_may_resume(tmp_path):
    overrides = {"run_dir": str(finished(tmp_path / "run")), "train.resume_or_start": True}
    with pytest.raises(ConfigError) as refused:
        check_unused(load(None, overrides))
    assert refused.value.code == "run_dir_used"
    (tmp_path / "run/ckpt/step_000024").mkdir(parents=True)
    check_unused(load(None, overrides))  # it goes on from there


def arguments(*words: str):
    args = build_parser(words[0]).parse_args(words)
    args.unknown = ()
    return args


def quickstart(*words: str):
    return config_of(arguments("quickstart", *words), makes_data=True)


def test_the_base_model_of_a_finished_run_is_not_made_anew(tmp_path):
    run_dir = finished(tmp_path / "run")
    with pytest.raises(ConfigError) as refused:
        toy_model.run(arguments("toy-model", "--run-dir", str(run_dir)))
    assert refused.value.code == "run_dir_used"
    assert not (run_dir / "init").exists(), "nothing was written"


def test_a_repeated_quickstart_leaves_the_first_alone_and_takes_its_base_model_along(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cfg = quickstart()
    first = cfg.run_dir
    assert in_unused_directory(cfg) == cfg, "nothing is there yet"
    finished(first, checkpoint=True)
    (first / "base").mkdir()
    (first / "base/figures.json").write_text("{}")
    second = in_unused_directory(cfg)
    assert second.run_dir.name == f"{first.name}-2" and (first / "model/config.json").exists()
    assert [path.name for path in second.run_dir.iterdir()] == ["base"]
    check_unused(second)
    finished(second.run_dir)
    assert in_unused_directory(cfg).run_dir.name == f"{first.name}-3"


@pytest.mark.parametrize("flag", ["--resume", "--train.overwrite"])
def test_a_quickstart_that_says_what_becomes_of_the_first_keeps_its_directory(tmp_path, monkeypatch, flag):
    monkeypatch.chdir(tmp_path)
    cfg = quickstart(flag)
    finished(cfg.run_dir, checkpoint=True)
    assert in_unused_directory(cfg).run_dir == cfg.run_dir
    check_unused(cfg)
