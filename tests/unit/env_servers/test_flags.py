"""Flags of servers and row generators: an impossible value is refused with the possible range before anything
starts."""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys

import pytest

from env_servers.launch import add_serving_flags
from openrlhf_tir.cluster.env_process import server_flags, server_module
from openrlhf_tir.config import Config


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "99999"], "--port: 99999 is not possible. Use 0 to 65535."),
        (["--workers", "0"], "--workers: 0 is not possible. Use 1 or more."),
        (["--processes", "0"], "--processes: 0 is not possible. Use 1 or more."),
        (["--max-sessions", "0"], "--max-sessions: 0 is not possible. Use 1 or more."),
        (["--max-queue", "-1"], "--max-queue: -1 is not possible. Use 0 or more."),
        (["--session-ttl", "-1"], "--session-ttl: -1 leaves no time. Use more than 0 seconds."),
        (["--session-ttl", "nan"], "--session-ttl: nan leaves no time."),
        (["--workers", "two"], "--workers: invalid whole number value: 'two'"),
    ],
)
def test_a_limit_that_admits_no_session_is_refused(arguments, message, capsys):
    parser = argparse.ArgumentParser()
    add_serving_flags(parser, workers=2)
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(arguments)
    assert ended.value.code == 2 and message in capsys.readouterr().err
    args = parser.parse_args([])
    assert (args.port, args.workers, args.max_queue) == (0, 2, 256)


@pytest.mark.parametrize(
    ("server", "option"),
    [("python_tir", "stateful"), ("python_tir", "echo_last"), ("puzzles", "warm"), ("swe", "docker")],
)
@pytest.mark.parametrize("is_on", [False, True])
def test_an_option_of_a_server_that_is_on_or_off_can_be_said_both_ways(server, option, is_on):
    cfg = Config(envs={"mine": {"server": server, "server_options": {option: is_on}}})
    environment = cfg.environments["mine"]
    parser = importlib.import_module(f"{server_module(environment)}.__main__").parser()
    assert getattr(parser.parse_args(server_flags(environment)), option) is is_on


FUNCTIONS, PUZZLES, SWE, BFCL = (
    f"env_servers.{name}.make_tasks" for name in ("functions", "puzzles", "swe", "adapters.bfcl")
)


@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        (FUNCTIONS, ["--calls", "3", "1"], "--calls 3 1: the first is the lower one."),
        (FUNCTIONS, ["--calls", "0", "0"], "--calls: 0 is not possible. Use 1 or more."),
        (FUNCTIONS, ["--distractors", "-1"], "--distractors: -1 is not possible. Use 0 or more."),
        (FUNCTIONS, ["--count", "-3"], "--count: -3 is not possible. Use 1 or more."),
        (
            FUNCTIONS,
            ["--out", "none/rows.jsonl"],
            "--out: none/rows.jsonl cannot be written: there is no directory none.",
        ),
        (FUNCTIONS, ["--out", "."], "--out: . cannot be written: it is a directory."),
        (PUZZLES, ["--count", "0"], "--count: 0 is not possible. Use 1 or more."),
        (PUZZLES, ["--tries", "0"], "--tries: 0 is not possible. Use 1 or more."),
        (PUZZLES, ["--out", "none/rows.jsonl"], "there is no directory none. Make it."),
        (SWE, ["--count", "-1"], "--count: -1 is not possible. Use 1 or more."),
        (SWE, ["--workers", "0"], "--workers: 0 is not possible. Use 1 or more."),
        (SWE, ["--out", "none/rows.jsonl"], "there is no directory none. Make it."),
        (BFCL, ["--out", "none/rows.jsonl"], "there is no directory none. Make it."),
    ],
)
def test_impossible_flags_are_refused_before_rows_are_made(module, arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [module, *(() if "--out" in arguments else ("--out", "rows.jsonl")), *arguments])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(module).main()
    assert ended.value.code == 2 and message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_starting_zero_servers_is_refused():
    script = ["bash", "train_scripts/start_env_servers.sh", "-n", "0"]
    ended = subprocess.run(script, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2 and "-n 0 is no number of servers. Use 1 or more." in ended.stderr
