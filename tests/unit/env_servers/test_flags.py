"""Flags of servers and row generators: an impossible value is refused with the possible range before anything
starts."""

from __future__ import annotations

import argparse
import importlib
import re
import subprocess
import sys

import pytest

from env_servers.launch import add_serving_flags
from openrlhf_tir.cluster.env_process import server_flags, server_module
from openrlhf_tir.config import Config
from openrlhf_tir.config.servers import SERVERS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "99999"], "--port: 99999 .* 0 .* 65535"),
        (["--workers", "0"], "--workers: 0 .* 1 "),
        (["--processes", "0"], "--processes: 0 .* 1 "),
        (["--max-sessions", "0"], "--max-sessions: 0 .* 1 "),
        (["--max-queue", "-1"], "--max-queue: -1 .* 0 "),
        (["--session-ttl", "-1"], "--session-ttl: -1 .* 0 "),
        (["--session-ttl", "nan"], "--session-ttl: nan .* 0 "),
        (["--workers", "two"], "--workers: .*'two'"),
    ],
)
def test_a_limit_that_admits_no_session_is_refused(arguments, message, capsys):
    parser = argparse.ArgumentParser()
    add_serving_flags(parser, workers=2)
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(arguments)
    assert ended.value.code == 2 and re.search(message, capsys.readouterr().err)
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


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_is_said_to_need_options_if_its_parser_refuses_none(name):
    """Only then is a run without them refused at the check, and not when its server starts."""
    parser = importlib.import_module(f"{SERVERS[name].module}.__main__").parser()
    try:
        parser.parse_args([])
        refuses_none = False
    except SystemExit:
        refuses_none = True
    assert SERVERS[name].needs_options is refuses_none


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("env_servers.python_tir.__main__", ["--code-timeout"]),
        ("env_servers.adapters.openenv.serve", ["--url", "http://x", "--step-timeout"]),
    ],
)
@pytest.mark.parametrize("limit_s", ["3601", "inf", "0"])
def test_a_time_limit_that_a_request_cannot_carry_is_refused(module, arguments, limit_s, capsys):
    parser = importlib.import_module(module).parser()
    with pytest.raises(SystemExit):
        parser.parse_args([*arguments, limit_s])
    assert re.search(f"{arguments[-1]}: {limit_s} ", capsys.readouterr().err)


FUNCTIONS, PUZZLES, SWE, BFCL = (
    f"env_servers.{name}.make_tasks" for name in ("functions", "puzzles", "swe", "adapters.bfcl")
)


@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        (FUNCTIONS, ["--calls", "3", "1"], "--calls 3 1: "),
        (FUNCTIONS, ["--calls", "0", "0"], "--calls: 0 .* 1 "),
        (FUNCTIONS, ["--distractors", "-1"], "--distractors: -1 .* 0 "),
        (FUNCTIONS, ["--count", "-3"], "--count: -3 .* 1 "),
        (
            FUNCTIONS,
            ["--out", "none/rows.jsonl"],
            "--out: none/rows.jsonl .*: .* none\\.",
        ),
        (FUNCTIONS, ["--out", "."], "--out: \\. "),
        (PUZZLES, ["--count", "0"], "--count: 0 .* 1 "),
        (PUZZLES, ["--tries", "0"], "--tries: 0 .* 1 "),
        (PUZZLES, ["--out", "none/rows.jsonl"], "--out: none/rows.jsonl "),
        (SWE, ["--count", "-1"], "--count: -1 .* 1 "),
        (SWE, ["--workers", "0"], "--workers: 0 .* 1 "),
        (SWE, ["--out", "none/rows.jsonl"], "--out: none/rows.jsonl "),
        (BFCL, ["--out", "none/rows.jsonl"], "--out: none/rows.jsonl "),
    ],
)
def test_impossible_flags_are_refused_before_rows_are_made(module, arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [module, *(() if "--out" in arguments else ("--out", "rows.jsonl")), *arguments])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(module).main()
    assert ended.value.code == 2 and re.search(message, capsys.readouterr().err)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", [("-n", "0"), ("-n", "08"), ("-p", "08"), ("-p", "65536"), ("-p", "0x50")])
def test_the_start_script_refuses_what_is_no_count_or_port(option):
    """In an arithmetic of bash 08 is no number, and 010 is eight."""
    script = ["bash", "train_scripts/start_env_servers.sh", *option]
    ended = subprocess.run(script, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2 and f"{' '.join(option)} " in ended.stderr and len(ended.stderr.splitlines()) == 1
