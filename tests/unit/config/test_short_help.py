"""Help fits one screen, and --help-all leaves nothing out."""

from __future__ import annotations

import argparse

import pytest

from openrlhf_tir.cli import COMMANDS, main
from openrlhf_tir.commands.data import SUBCOMMANDS
from openrlhf_tir.config.flags import Parser
from openrlhf_tir.config.settings import all_settings
from openrlhf_tir.config.short_help import CONFIG, LINES


def printed(capsys, *argv):
    with pytest.raises(SystemExit) as end:
        main([*argv])
    assert end.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", ["", *COMMANDS, *(f"data {what}" for what in SUBCOMMANDS)])
def test_the_help_of_every_command_is_one_screen_without_placeholders(capsys, command):
    text = printed(capsys, *command.split(), "--help")
    assert len(text.splitlines()) <= LINES == 40
    assert "%(" not in text and "%%" not in text


def test_examples_go_before_explanations_and_an_argument_that_must_be_given_is_in_the_usage():
    epilog = "examples:\n  openrlhf-tir x --out a\n      why\n" + "prose\n" * 40
    parser = Parser(prog="openrlhf-tir x", epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, metavar="FILE", help="a file")
    text = parser.format_help()
    assert "  openrlhf-tir x --out a\n" in text and "why" not in text and "prose" not in text
    assert "--out FILE" in text.splitlines()[0]
    assert "prose" in parser.format_help_all()


def test_the_help_of_train_names_what_most_runs_set(capsys):
    text = printed(capsys, "train", "--help")
    assert all(name in text for name in CONFIG) and "--check-only" in text


def test_the_settings_of_the_short_help_exist():
    assert {name.removeprefix("--") for name in CONFIG} <= {s.name for s in all_settings()}


def test_the_top_help_names_every_command(capsys):
    assert all(f"  {name} " in printed(capsys, "--help") for name in COMMANDS)


@pytest.mark.parametrize(
    ("command", "name"), [("recipes", "zerotir_7b"), ("rewards", "zerotir"), ("envs", "python_tir")]
)
def test_what_has_a_name_is_listed(capsys, command, name):
    assert main([command]) == 0
    assert any(line.startswith(f"{name} ") for line in capsys.readouterr().out.splitlines())


def test_the_version_is_told(capsys):
    assert printed(capsys, "--version").startswith("openrlhf-tir ")
