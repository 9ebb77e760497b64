"""Help fits one screen, and --help-all leaves nothing out."""

from __future__ import annotations

import argparse
import re

import pytest

from openrlhf_tir.cli import main
from openrlhf_tir.cli.command_line import COMMANDS
from openrlhf_tir.cli.data import SUBCOMMANDS
from openrlhf_tir.config.flags import FIRST, SHORT, Parser
from openrlhf_tir.config.short_help import LINES, WIDTH, folded


def printed(capsys, *argv):
    with pytest.raises(SystemExit) as end:
        main([*argv])
    assert end.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", ["", *COMMANDS, *(f"data {what}" for what in SUBCOMMANDS)])
def test_the_help_of_every_command_is_one_screen_without_placeholders(capsys, command):
    lines = printed(capsys, *command.split(), "--help").splitlines()
    assert len(lines) <= LINES == 30
    assert max(map(len, lines)) <= WIDTH == 79
    assert not [line for line in lines if "%(" in line or "%%" in line]


def test_examples_go_before_explanations_and_an_argument_that_must_be_given_is_in_the_usage():
    epilog = "examples:\n  openrlhf-tir x --out a\n      why\n" + "prose\n\n" * 40
    parser = Parser(prog="openrlhf-tir x", epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, metavar="FILE", help="a file")
    text = parser.format_help()
    assert "  openrlhf-tir x --out a\n" in text and "why" not in text and "prose" not in text
    assert "--out FILE" in text.splitlines()[0]
    assert "prose" in parser.format_help_all()


def test_the_help_of_train_names_what_most_runs_set(capsys):
    text = printed(capsys, "train", "--help")
    flags = {setting: flag for flag, setting in SHORT.items()}
    assert all(f"  {flags.get(name, f'--{name}')} " in text for name in FIRST) and "--check-only" in text


def test_the_top_help_names_every_command(capsys):
    rows = [line.strip().partition("  ")[0] for line in printed(capsys, "--help").splitlines() if line.startswith("  ")]
    assert set(COMMANDS) <= {name for row in rows for name in row.split(", ")}


def test_help_is_as_wide_as_a_screen_whatever_the_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    assert max(map(len, printed(capsys, "compare", "--help-all").splitlines())) <= WIDTH


def test_a_command_of_an_epilog_that_is_too_long_is_continued_and_what_is_said_of_it_comes_before():
    line = "  openrlhf-tir x --first 1 --second 2   what it does"
    assert folded(line) == [line]
    long = f"  openrlhf-tir {'x' * 40} --first {'y' * 30}   what it does"
    assert folded(long) == [
        "  # what it does",
        f"  openrlhf-tir {'x' * 40} --first \\",
        f"      {'y' * 30}",
    ]


@pytest.mark.parametrize(
    ("command", "name"), [("recipes", "zerotir_7b"), ("rewards", "zerotir"), ("envs", "python_tir")]
)
def test_what_has_a_name_is_listed_on_one_screen_and_nothing_is_cut(capsys, command, name):
    assert main([command]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert name in {entry for line in lines for entry in re.split(r" {2,}", line.strip())}
    assert len(lines) <= LINES and max(map(len, lines)) <= WIDTH
    assert not [line for line in lines if line.endswith("...")]


@pytest.mark.parametrize(
    ("command", "word", "others"), [("recipes", "otc_ppo", 1), ("rewards", "gsm8k", 0), ("envs", "swe", 0)]
)
def test_all_that_is_said_of_one_name_is_printed_on_request(capsys, command, word, others):
    assert main([command, word]) == 0
    out = capsys.readouterr().out
    assert len([line for line in out.splitlines() if line.startswith(word)]) == 1 + others
    assert not re.search(r"\S\.\.\.$", out, re.MULTILINE), "nothing is cut"


def test_a_name_that_nothing_has_is_refused(capsys):
    assert main(["rewards", "nope"]) == 2


def test_the_version_is_told(capsys):
    assert printed(capsys, "--version").startswith("openrlhf-tir ")
