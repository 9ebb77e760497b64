"""How the puzzles server begins: without reasoning-gym there are the games, said with the remedy; flags that let
nothing be scored are refused."""

from __future__ import annotations

import argparse
import sys

import pytest

from env_servers.puzzles import __main__ as main
from env_servers.puzzles import gym, start
from env_servers.puzzles.games import GAMES
from openrlhf_tir.cluster.env_process import server_flags, server_module
from openrlhf_tir.config import Config


def flags(*arguments: str) -> argparse.Namespace:
    return main.parser().parse_args(list(arguments))


def test_without_the_package_the_list_has_the_games_and_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    monkeypatch.setattr("sys.argv", ["puzzles", "--list"])
    main.main()
    printed = capsys.readouterr()
    assert printed.out.split() == list(GAMES)
    assert printed.err.strip() == gym.MISSING and "pip install reasoning_gym==" in printed.err


def test_rows_of_a_data_set_without_the_package_are_refused_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(SystemExit, match=r"reasoning-gym .* reasoning_gym=="):
        start.start_room(flags(), 1)


@pytest.mark.parametrize("arguments", [("--score-timeout", "0"), ("--score-timeout", "9", "--score-deadline", "8")])
def test_flags_with_which_no_answer_could_be_scored_are_refused(arguments):
    with pytest.raises(SystemExit, match=r"--score-timeout .*--score-deadline "):
        start.check_room_flags(flags(*arguments))


def test_a_run_starts_the_server_with_its_workers_and_options():
    cfg = Config(
        envs={"riddles": {"server": "puzzles", "workers": 3, "server_options": {"score_timeout": 2.0, "warm": False}}}
    )
    e = cfg.environments["riddles"]
    assert server_module(e) == "env_servers.puzzles"
    assert server_flags(e) == ["--workers", "3", "--score-timeout", "2.0", "--no-warm"]
    assert flags(*server_flags(e)).score_timeout == 2.0
