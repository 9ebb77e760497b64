"""Names of functions of one's own: relative to the recipe or the current directory, options by recipe and flag, copies
in the run's directory."""

from __future__ import annotations

import argparse

import pytest

from openrlhf_tir.config.flags import Parser, add_config_flags, overrides_of
from openrlhf_tir.config.own_files import files_of, freeze
from openrlhf_tir.config.settings import load, to_toml
from openrlhf_tir.errors import ConfigError


@pytest.fixture
def parser() -> argparse.ArgumentParser:
    parser = Parser(allow_abbrev=False)
    add_config_flags(parser)
    return parser


def test_a_file_is_relative_to_the_recipe_that_names_it(tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    (tmp_path / "there/r.toml").write_text(
        '[reward]\nname = "mine.py:score"\n[filter]\nnames = ["accuracy", "mine.py:keep"]\n'
    )
    monkeypatch.chdir(tmp_path)
    cfg = load("there/r.toml")
    assert cfg.reward.name == f"{tmp_path}/there/mine.py:score"
    assert cfg.filter.names == ["accuracy", f"{tmp_path}/there/mine.py:keep"]


def test_on_the_command_line_a_file_or_module_is_that_of_the_current_directory(tmp_path, monkeypatch):
    (tmp_path / "mine_here.py").write_text("")
    monkeypatch.chdir(tmp_path)
    for name in ("mine_here.py:score", "./mine_here.py:score", "mine_here:score"):
        assert load(None, {"reward.name": name}).reward.name == f"{tmp_path}/mine_here.py:score"
    assert load(None, {"reward.name": "json:dumps"}).reward.name == "json:dumps", "an installed module stays one"


def test_options_are_joined_from_recipe_and_flags(tmp_path, parser):
    (tmp_path / "r.toml").write_text('[reward]\nname = "otc"\n[reward.options]\nc = 3\nalpha = 1.0\n')
    args = parser.parse_args(
        ["--recipe", str(tmp_path / "r.toml"), "--reward.options", "c=5", "why=a b", "on=true", "--filter.names"]
    )
    cfg = load(args.recipe, overrides_of(args))
    assert cfg.reward.options == {"c": 5, "alpha": 1.0, "why": "a b", "on": True}
    assert cfg.filter.names == []
    assert load(None, overrides_of(parser.parse_args(["--filter.names", "[]"]))).filter.names == []
    args = parser.parse_args(["--reward.weights", "env=1", "format=0.1"])
    assert load(None, overrides_of(args)).reward.weights == {"env": 1.0, "format": 0.1}


def test_a_table_may_be_given_by_a_flag_for_each_entry_and_the_last_value_counts(parser):
    args = parser.parse_args(["--reward.options", "c=5", "d=6", "--reward.options", "c=7", "--train.seed", "1"])
    assert overrides_of(args)["reward.options"] == {"c": 7, "d": 6}


@pytest.mark.parametrize(
    ("argv", "value"), [("unset --envs.calc.options a=1", {"a": 1}), ("a=1 --envs.calc.options unset", None)]
)
def test_unset_among_the_flags_of_a_table_takes_back_those_before_it(parser, argv, value):
    args = parser.parse_args(["--envs.calc.options", *argv.split()])
    assert overrides_of(args) == {"envs.calc.options": value}


@pytest.mark.parametrize(
    ("setting", "word", "value"),
    [
        ("filter.names", "none", []),
        ("filter.names", "unset", None),
        ("envs.calc.filter.names", "none", []),
        ("sft.mask_blocks", "none", []),
        ("data.prompt_probs", "none", None),
    ],
)
def test_none_is_the_empty_list_where_names_are_listed_and_unset_elsewhere(parser, setting, word, value):
    assert overrides_of(parser.parse_args([f"--{setting}", word])) == {setting: value}


def test_an_option_without_a_value_is_refused(parser):
    with pytest.raises(ConfigError) as e:
        overrides_of(parser.parse_args(["--reward.options", "c", "--filter.options", "=3"]))
    said = str(e.value).splitlines()
    assert "--reward.options 'c'" in said[0] and "--filter.options '=3'" in said[1]


def test_a_run_works_with_copies_and_its_written_config_names_them(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text("def score(t, task, c):\n    return 1.0\n")
    name = f"{mine}:score"
    given = {"reward.weights": {name: 1.0, "format": 0.5}, "reward.options": {name: {"a": [1, 2]}}}
    cfg = load(None, {"run_dir": str(tmp_path / "run"), **given})
    frozen = freeze(cfg)
    (copy,) = files_of(frozen)
    assert copy.parent == tmp_path / "run/own" and copy.read_text() == mine.read_text()
    assert list(frozen.reward.weights) == [f"{copy}:score", "format"] and frozen.reward.options == {
        f"{copy}:score": {"a": [1, 2]}
    }
    assert freeze(frozen) == frozen, "a run that goes on keeps its copies"
    mine.write_text("changed = True\n")
    assert freeze(cfg) != frozen, "another text is another copy"
    (tmp_path / "shown.toml").write_text(to_toml(frozen, only_changes=True))
    assert load(str(tmp_path / "shown.toml")) == frozen
