"""Fuzz: thousands of malformed requests to each endpoint of each of our servers, over real connections. No 5xx, no
traceback, right answers after."""

from __future__ import annotations

import asyncio
import logging

import pytest

from openrlhf_tir.rollout.serving.app import build_app, serve

from ..ordinary import long_except
from .env_process import Http, env_server
from .fuzz import Endpoint, requests, send
from .rollout_fakes import FakeService
from .slow_search import write_corpus

STEP = {"session_id": "fuzzed", "step_id": 0, "action": "print(1)", "deadline_s": 20}
PROTOCOL = [
    Endpoint("POST", "/step", STEP),
    Endpoint("POST", "/step_batch", [STEP, {**STEP, "step_id": 1}]),
    Endpoint("DELETE", "/session/nobody"),
    Endpoint("DELETE", "/sessions/nobody"),
    Endpoint("GET", "/health"),
    Endpoint("GET", "/schema"),
    Endpoint("GET", "/metrics"),
]


def reset(task: dict) -> Endpoint:
    return Endpoint("POST", "/reset", {"task": task, "seed": 1, "session_id": "mine"})


RUN_CODE = {
    "code": "print(1)",
    "language": "python",
    "run_timeout": 5,
    "compile_timeout": 10,
    "memory_limit_MB": 256,
    "stdin": "x",
}
FILES = {"files": {"a/b.txt": "eA==", "c": None}, "fetch_files": ["a/b.txt"]}
SERVERS = {
    "echo": ([], {}, "hi", [reset({"greeting": "x", "delay_s": 0.0})]),
    "python_tir": (
        ["--workers", "2", "--code-timeout", "5"],
        {},
        "print(6 * 7)",
        [
            reset({"stateful": True}),
            Endpoint("POST", "/run_code", RUN_CODE | FILES),
            Endpoint(
                "POST",
                "/run_jupyter",
                {"cells": ["a = 1", "a"], "cell_timeout": 5, "total_timeout": 20, "kernel": "python3"} | FILES,
            ),
        ],
    ),
    "search": (
        ["--corpus", "{corpus}"],
        {},
        "number 7",
        [
            reset({"topk": 3}),
            Endpoint("POST", "/retrieve", {"queries": ["number 7"], "topk": 2, "return_scores": True}),
        ],
    ),
    "puzzles": (
        [],
        {"puzzle": "labyrinth"},
        "north",
        [reset({"puzzle": "countdown", "seed": 1, "level": 0, "tries": 2, "config": {"min_numbers": 3}})],
    ),
    "math": (
        ["--verify-timeout", "2"],
        {"label": "1"},
        "1",
        [
            reset({"label": "1/2"}),
            Endpoint("POST", "/verify", {"answer": "1", "gold": "2"}),
            Endpoint("POST", "/verify", [{"answer": "1", "gold": "2"}]),
        ],
    ),
}
"""Server -> (flags, a task, an action that is ok, its own endpoints)."""


async def fuzz_server(name: str, tmp_path, n: int, seed: int) -> None:
    flags, task, action, own = SERVERS[name]
    flags = [f.format(corpus=write_corpus(tmp_path)) for f in flags]
    with env_server(
        f"env_servers.{name}", tmp_path, *flags, log=tmp_path / "stderr", env={"TIR_ENV_TOKEN": "fuzz"}
    ) as (url, process):
        async with Http(url, "fuzz") as http:
            await http.send("POST", "/reset", json={"task": task, "session_id": "fuzzed"})
            seen = await send(url, requests(own + PROTOCOL, n, seed))
            assert process.poll() is None, "the server ended"
            assert (await http.unless_late(await http.open(task), 0, action))["outcome"] == "ok"
            await http.until_running(0)
    print(f"seed {seed}\n{seen}")
    assert not seen.bad, f"seed {seed}\n{seen}"
    said = (tmp_path / "stderr").read_text()
    before, found, after = said.partition("Traceback")
    assert not found, f"seed {seed}\n{before[-300:]}{found}{after[:3000]}"


ROLLOUT = [
    Endpoint(
        "POST",
        "/generate",
        {"token_ids": [1, 2], "max_tokens": 5, "stop": ["x"], "temperature": 0.5, "top_p": 0.9, "seed": 3},
    ),
    Endpoint(
        "POST",
        "/v1/groups",
        {"prompt": "p", "label": "1", "env": "math", "meta": {"row": 1}, "n": 2, "temperature": 1.0},
    ),
    Endpoint("POST", "/v1/groups?stream=true", {"prompt": "p", "n": 2}),
    Endpoint("GET", "/v1/groups/nobody"),
    Endpoint("POST", "/agent/tasks", {"wait_s": 0.0, "override_sampling": False}),
    Endpoint("POST", "/sessions", {"temperature": 1.0}),
    Endpoint("POST", "/sessions/nobody/reward", {"reward": 1.0, "correct": True, "parts": {"a": 1.0}, "failed": None}),
    Endpoint("DELETE", "/sessions/nobody"),
    Endpoint("POST", "/pause"),
    Endpoint("POST", "/resume"),
    Endpoint("GET", "/metrics"),
    Endpoint("GET", "/openapi.json"),
]


async def fuzz_rollout(n: int, seed: int, caplog) -> None:
    service = FakeService()
    take = service.agents.take
    service.agents.take = lambda wait_s, **how: take(0.0, **how)  # a missing wait_s means 20 s
    server, port = await serve(build_app(service, token="fuzz", vllm_app=service.vllm_app()))
    try:
        with caplog.at_level(logging.ERROR):
            seen = await send(f"http://127.0.0.1:{port}", requests(ROLLOUT, n, seed))
        async with Http(f"http://127.0.0.1:{port}", "fuzz") as http:
            assert (await http.send("POST", "/generate", json={"token_ids": [1], "max_tokens": 1}))[0] == 200
    finally:
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)
    print(f"seed {seed}\n{seen}")
    assert not seen.bad, f"seed {seed}\n{seen}"
    assert not [r.getMessage() for r in caplog.records if r.exc_info], f"seed {seed}"


@pytest.mark.slow
@pytest.mark.parametrize("name", long_except({"echo", "python_tir"}, SERVERS))
async def test_an_environment_server_answers_what_is_malformed_and_lives(name, tmp_path):
    await fuzz_server(name, tmp_path, 60, seed=7)


@pytest.mark.slow
async def test_a_rollout_server_answers_what_is_malformed_and_lives(caplog):
    await fuzz_rollout(60, 7, caplog)


@pytest.mark.long
@pytest.mark.parametrize("name", SERVERS)
async def test_an_environment_server_answers_twenty_thousand_malformed_requests(name, tmp_path):
    await fuzz_server(name, tmp_path, 2500, seed=1)


@pytest.mark.long
async def test_a_rollout_server_answers_twenty_thousand_malformed_requests(caplog):
    await fuzz_rollout(2000, 1, caplog)


def test_the_same_seed_gives_the_same_requests():
    first, again = (list(requests(ROLLOUT, 20, seed=3)) for _ in range(2))
    assert first == again and len(first) == 20 * len(ROLLOUT)
    assert len({(r.head, r.body) for r in first}) > 100
