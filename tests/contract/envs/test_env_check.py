"""check-env finds what is broken, and nothing where nothing is: on our servers, and on one by hand with faults."""

from __future__ import annotations

import asyncio
import itertools
import re
from dataclasses import replace
from functools import partial

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from openrlhf_tir.cli import main
from openrlhf_tir.config.servers import SERVERS
from openrlhf_tir.rollout.environment_client import check as check_package
from openrlhf_tir.rollout.environment_client.check import Options, check_server, load
from openrlhf_tir.rollout.environment_client.check.run import CHECKS

from ..env_process import env_server
from ..faulty_env import FAULTS, LATE_S, TOKEN, FaultyEnv

ECHO = replace(SERVERS["echo"].actions, slow_task={"delay_s": 1.0})
SMALL = Options(steps=1000, concurrency=12, flood=40, oversize_bytes=8 << 20, timeout_s=60.0)


async def findings_on(*faults: str, token: str | None = TOKEN) -> dict[str, tuple[str, str]]:
    async with TestServer(FaultyEnv(*faults).app()) as server:
        findings = await check_server(str(server.make_url("")), ECHO, SMALL, token=token)
    return {f.check: (f.verdict, f.fact) for f in findings}


@pytest.mark.slow
async def test_a_correct_server_passes_every_check():
    findings = await findings_on()
    assert {check: verdict for check, (verdict, _) in findings.items()} == dict.fromkeys(CHECKS, "pass"), findings


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A machine that stalls may answer a step late by any time; that it ran on shows otherwise."""
    monkeypatch.setattr(load, "LATE_S", 600.0)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
async def test_each_fault_fails_its_own_check(fault, monkeypatch):
    check = FAULTS[fault]
    if fault == "timeout is late":
        monkeypatch.setattr(load, "LATE_S", LATE_S / 2)
    needed = ["schema and health", "a valid action is ok", check]  # the others have their own cases
    monkeypatch.setattr(
        "openrlhf_tir.rollout.environment_client.check.run.CHECKS",
        {name: CHECKS[name] for name in CHECKS if name in needed},
    )
    findings = await findings_on(fault)
    assert findings[check][0] == "fail", findings
    assert len(findings[check][1]) > 10


@pytest.mark.parametrize("code", [200, 404, 500])
async def test_a_server_that_answers_nonsense_fails_without_an_exception(code):
    app = web.Application()
    bodies = itertools.cycle([b"[" * 30000, b"\xff\xfe", b"null", b"[5]", b'{"closed": {}}', b"tir_sessions \xd9 x"])

    async def nonsense(request):
        return web.Response(status=code, body=next(bodies))

    app.add_routes([web.route("*", "/{path:.*}", nonsense)])
    async with TestServer(app) as server:
        findings = await check_server(str(server.make_url("")), replace(ECHO, slow=None), replace(SMALL, steps=20))
    assert not [f for f in findings if f.verdict == "pass" and not f.check[0].isdigit()]


async def test_a_stopped_server_fails_every_check_without_an_exception():
    findings = await check_server("http://127.0.0.1:9", ECHO, SMALL)
    assert {f.verdict for f in findings} <= {"fail", "skip"}
    assert "ClientConnectorError" in findings[0].fact


async def test_without_a_slow_action_its_checks_are_skipped_and_name_the_flag():
    async with TestServer(FaultyEnv("token not asked").app()) as server:
        findings = {
            f.check: f
            for f in await check_server(str(server.make_url("")), replace(ECHO, slow=None), replace(SMALL, steps=20))
        }
    for check in ("deadline", "capacity", "401 without the token"):
        assert findings[check].verdict == "skip"
    assert "--slow-action" in findings["deadline"].fact


def tally(text: str) -> list[int]:
    """How many promises are kept, broken and not checked, by the command's last line."""
    return [int(number) for number in re.findall(r"\d+", text.splitlines()[-1])]


@pytest.mark.slow
async def test_the_command_exits_1_on_a_broken_server_and_names_the_promise(monkeypatch, capsys):
    monkeypatch.setenv("TIR_ENV_TOKEN", TOKEN)
    monkeypatch.setenv("COLUMNS", "160")
    async with TestServer(FaultyEnv("used ids answered").app()) as server:
        url = str(server.make_url("")).rstrip("/")
        code = await asyncio.to_thread(main, ["check-env", url, "--steps", "50", "--flood", "40"])
    text = capsys.readouterr().out
    assert code == 1, text
    assert tally(text) == [18, 1, 0]
    assert re.search(r"step_id\b.*\b200\b.*\b409\b", text)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "flags", "counts"),
    [
        (
            "env_servers.python_tir",
            ["--stateful", "--code-timeout", "60", "--no-languages"],
            [19, 0, 0],
        ),
        pytest.param(
            "env_servers.echo",
            ["--processes", "2"],
            [19, 0, 0],
            marks=pytest.mark.extended,
        ),
        # no action of it is slow
        pytest.param("env_servers.functions", [], [17, 0, 2], marks=pytest.mark.extended),
        pytest.param("env_servers.swe", [], [19, 0, 0], marks=pytest.mark.long),
        # nor a move of a game, which leaves nothing anywhere either
        pytest.param("env_servers.puzzles", [], [15, 0, 4], marks=pytest.mark.long),
    ],
)
def test_our_servers_pass_every_check(module, flags, counts, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TIR_ENV_TOKEN", TOKEN)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(check_package, "Options", partial(Options, timeout_s=600.0))
    monkeypatch.setattr(load, "IDLE_S", 600.0)
    with env_server(module, tmp_path, "--max-queue", "16", *flags) as (url, _):
        code = main(["check-env", url, "--timeout", "300", "--steps", "60", "--flood", "40"])
    text = capsys.readouterr().out
    assert code == 0, text
    assert tally(text) == counts
    assert len(set(re.findall(r"http://[\d.]+:\d+", text))) == (2 if "--processes" in flags else 1)
