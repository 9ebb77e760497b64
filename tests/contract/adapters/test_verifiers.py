"""Environments of the `verifiers` package, rolled out against a rollout actor's routes (a scripted model behind them)
and judged by their rubrics."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

pytest.importorskip(
    "verifiers.envs.multiturn_env", reason="the package verifiers (0.1) is not installed: pip install '.[verifiers]'"
)
pytestmark = pytest.mark.long
HERE = Path(__file__).parent
KEY = "secret"


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", *args]


def environ() -> dict[str, str]:
    """With the test's environment as an installed module."""
    return {
        **os.environ,
        "PYTHONPATH": f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', os.getcwd())}",
        "TIR_ROLLOUT_TOKEN": KEY,
    }


def made(tmp_path: Path, **args: str) -> list[dict]:
    out = tmp_path / "rows.jsonl"
    flags = ["verifiers_arith", "--args", json.dumps(args), "--out", str(out)]
    subprocess.run(command("env_servers.adapters.verifiers.make_tasks", *flags), env=environ(), check=True, timeout=600)
    return [json.loads(line) for line in out.read_text().splitlines()]


def text(content: str) -> dict:
    return {"role": "assistant", "content": content}


def tool_call(**arguments: int) -> dict:
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "add", "arguments": json.dumps(arguments)}}
        ],
    }


@asynccontextmanager
async def actor(tmp_path, rows, answers):
    """A rollout actor's routes: (rewards by task, requests by task). `answers[task]`: what the model says, in turn."""
    offers = iter(range(len(rows)))
    rewards, requests, over = {}, {i: [] for i in range(len(rows))}, asyncio.Event()

    async def tasks(request):
        assert request.headers["Authorization"] == f"Bearer {KEY}"
        i = next(offers, None)
        if i is None:
            await over.wait()
            return web.Response(status=204)
        row = rows[i]
        base = f"http://{request.host}/sessions/{i}/v1"
        return web.json_response(
            {
                "session_id": str(i),
                "base_url": base,
                "prompt": row["prompt"],
                "label": row["label"],
                "env": "",
                "meta": row["meta"],
            }
        )

    async def chat(request):
        i, body = int(request.match_info["id"]), await request.json()
        requests[i].append(body)
        message = answers[i][len(requests[i]) - 1]
        if isinstance(message, int):
            return web.json_response({"error": {"message": "refused", "type": "x", "code": message}}, status=message)
        reason = "tool_calls" if "tool_calls" in message else "stop"
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        choice = {"index": 0, "message": message, "finish_reason": reason}
        return web.json_response(
            {
                "id": "x",
                "object": "chat.completion",
                "created": 0,
                "model": "policy",
                "choices": [choice],
                "usage": usage,
            }
        )

    async def reward(request):
        rewards[int(request.match_info["id"])] = await request.json()
        if len(rewards) == len(rows):
            (tmp_path / "endpoints" / "rollout-0").unlink()
            over.set()
        return web.json_response({})

    app = web.Application()
    app.router.add_post("/agent/tasks", tasks)
    app.router.add_post("/sessions/{id}/v1/chat/completions", chat)
    app.router.add_post("/sessions/{id}/reward", reward)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    (tmp_path / "endpoints").mkdir()
    (tmp_path / "endpoints" / "rollout-0").write_text(f"http://127.0.0.1:{runner.addresses[0][1]}")
    yield rewards, requests
    await runner.cleanup()


async def rolled_out(tmp_path, answers, rows=None, **args) -> tuple[dict, dict]:
    """(rewards, requests) of the agent's program, which has ended by itself with the run."""
    rows = (made(tmp_path, **args) if rows is None else rows)[: len(answers)]
    async with actor(tmp_path, rows, answers) as (rewards, requests):
        flags = [
            "verifiers_arith", str(tmp_path), "--args", json.dumps(args), "--workers", "4", "--gone", "1",
            "--max-tokens", "99",
        ]  # fmt: skip
        process = await asyncio.create_subprocess_exec(
            *command("env_servers.adapters.verifiers", *flags), env=environ(), stderr=subprocess.PIPE
        )
        async with asyncio.timeout(120):
            _, output = await process.communicate()
    assert process.returncode == 0 and len(rewards) == len(rows), output.decode()[-2000:]
    return rewards, requests


def test_rows_have_every_field_that_the_environment_needs(tmp_path):
    first = made(tmp_path, kind="single")[0]
    assert first["label"] == "2" and "1+1?" in first["prompt"]
    assert first["meta"]["verifiers"]["answer"] == "2" and first["meta"]["verifiers"]["prompt"][-1] == {
        "role": "user",
        "content": "1+1?",
    }


async def test_a_single_turn_environment_is_rolled_out_and_its_rubric_is_the_reward(tmp_path):
    rewards, requests = await rolled_out(tmp_path, [[text("2")], [text("5")]], kind="single")
    assert [rewards[i]["reward"] for i in (0, 1)] == [1.0, 0.0]
    assert rewards[0]["parts"]["correct"] == 1.0 and rewards[0]["parts"]["length"] == 1.0
    (request,) = requests[0]
    assert (
        [m["role"] for m in request["messages"]] == ["system", "user"]
        and request["model"] == "policy"
        and request["max_completion_tokens"] == 99
    )


async def test_a_tool_environment_offers_its_tools_and_runs_them(tmp_path):
    rewards, requests = await rolled_out(tmp_path, [[tool_call(a=1, b=1), text("2")]], kind="tool")
    assert rewards[0]["reward"] == 1.0 and len(requests[0]) == 2
    assert requests[0][0]["tools"][0]["function"]["name"] == "add"
    assert requests[0][1]["messages"][-1]["role"] == "tool" and requests[0][1]["messages"][-1]["content"] == "2"


async def test_a_multi_turn_environment_continues_until_it_stops(tmp_path):
    rewards, requests = await rolled_out(tmp_path, [[text("1"), text("3"), text("2")], [text("9")] * 4], kind="turns")
    assert [rewards[i]["reward"] for i in (0, 1)] == [1.0, 0.0] and [len(requests[i]) for i in (0, 1)] == [3, 4]
    assert [m["content"] for m in requests[0][2]["messages"] if m["role"] == "user"][1:] == ["higher", "lower"]


async def test_an_exception_is_a_failure_and_never_a_reward(tmp_path):
    """The environment's machinery, the endpoint, and a row that is of another data set."""
    rows = made(tmp_path, kind="turns")
    rows[2]["meta"] = {}
    rewards, _ = await rolled_out(tmp_path, [[text("break")], [401], []], rows=rows, kind="turns")
    assert all(set(rewards[i]) == {"failed"} for i in range(3)), rewards
    assert "no room" in rewards[0]["failed"] and "meta.verifiers" in rewards[2]["failed"]


@pytest.mark.parametrize("kind", ["single", "group"])
@pytest.mark.parametrize(
    ("judge", "reason"), [("broken", "RuntimeError: the judge is down"), ("forgets", "TypeError: float()")]
)
async def test_a_reward_function_that_raises_or_returns_no_number_is_a_failure(kind, judge, reason, tmp_path):
    rewards, _ = await rolled_out(tmp_path, [[text("2")]], kind=kind, judge=judge)
    assert set(rewards[0]) == {"failed"} and f" {judge}: {reason}" in rewards[0]["failed"], rewards


async def test_a_group_of_environments_is_judged_by_the_rubric_of_the_rows(tmp_path):
    rewards, _ = await rolled_out(tmp_path, [[text("2")], [text("5")]], kind="group")
    assert [rewards[i]["reward"] for i in (0, 1)] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("verifiers_arith", {"judge": "relative"}, "requires_group_rollouts"),
        ("no_such_environment", {}, "'no_such_environment'"),
        ("verifiers_arith", {"kinds": 1}, "'kinds'"),
    ],
)
def test_an_unsupported_environment_is_refused_at_start_in_one_sentence(name, args, message, tmp_path):
    flags = [name, str(tmp_path), "--args", json.dumps(args)]
    done = subprocess.run(
        command("env_servers.adapters.verifiers", *flags), env=environ(), capture_output=True, text=True, timeout=600
    )
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and last.startswith("verifiers ") and message in last
