"""Servers of the `openenv` package as environments, and an environment of ours driven by the package's client."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from ..env_process import Http, env_server
from .listening import listening

pytest.importorskip(
    "openenv.core.env_server", reason="the package openenv-core is not installed: pip install '.[openenv]'"
)
pytestmark = pytest.mark.slow

SERVER = [sys.executable, str(Path(__file__).with_name("openenv_server.py"))]
MODULE = "env_servers.adapters.openenv"


async def test_a_server_with_one_text_field_takes_and_gives_plain_text(tmp_path):
    with (
        listening([*SERVER, "echo"]) as port,
        env_server(MODULE, tmp_path, "--url", f"http://127.0.0.1:{port}") as (url, _),
    ):
        async with Http(url) as http:
            status, body, _ = await http.send(
                "POST", "/reset", json={"task": {"reset": {"greeting": "hi"}}, "seed": (1 << 31) + 7}
            )
            assert (status, body["observation"]) == (200, "hi 7")
            one, two = body["session_id"], await http.open()
            _, reply, _ = await http.step(one, 0, "a")
            assert (reply["outcome"], reply["observation"], reply["reward"], reply["done"]) == (
                "ok",
                "1: a",
                None,
                False,
            )
            _, reply, _ = await http.step(two, 0, "bye")
            assert (reply["outcome"], reply["observation"], reply["reward"], reply["done"]) == (
                "ok",
                "1: bye",
                1.0,
                True,
            )
            status, body, _ = await http.send("POST", "/reset", json={"task": {}})  # the server has room for two
            assert status == 429, body
            await http.send("DELETE", f"/session/{two}")
            await http.open()


async def test_a_server_with_typed_fields_takes_json_and_refuses_other_text(tmp_path):
    with (
        listening([*SERVER, "add"]) as port,
        env_server(MODULE, tmp_path, "--url", f"http://127.0.0.1:{port}") as (url, _),
    ):
        async with Http(url) as http:
            _, schema, _ = await http.send("GET", "/schema")
            step = schema["tools"][0]["function"]
            assert (step["name"], step["description"], list(step["parameters"]["properties"])) == (
                "step",
                "Adds to the total.",
                ["amount"],
            )
            session = await http.open()
            for step_id, action in enumerate(("three", "[]", '{"amount": "x"}', '{"speed": 1}')):
                _, reply, _ = await http.step(session, step_id, action)
                assert (reply["outcome"], reply["signals"]["error_type"], reply["reward"]) == (
                    "model_error",
                    "bad_action",
                    None,
                ), reply
            assert "speed" in reply["observation"] and "amount" in reply["observation"]
            _, reply, _ = await http.step(session, 4, '{"amount": 1}')
            assert (json.loads(reply["observation"]), reply["reward"], reply["done"]) == (
                {"total": 1, "goal": 3},
                0.0,
                False,
            )
            _, reply, _ = await http.step(session, 5, '[{"name": "step", "arguments": {"amount": 2}}]')
            assert (reply["reward"], reply["done"], reply["signals"]["errors"]) == (1.0, True, 4)


async def test_a_server_that_fails_or_dies_is_an_environment_error(tmp_path):
    with (
        listening([*SERVER, "echo"]) as port,
        env_server(MODULE, tmp_path, "--url", f"http://127.0.0.1:{port}") as (url, _),
    ):
        async with Http(url) as http:
            session = await http.open()
            _, reply, _ = await http.step(session, 0, "fail")
            assert (
                reply["outcome"] == "env_error"
                and "OpenEnvFailed" in reply["signals"]["error"]
                and "broken inside" in reply["signals"]["error"]
            )
            for step_id, action in ((1, "die"), (2, "a")):
                _, reply, _ = await http.step(session, step_id, action)
                assert (
                    reply["outcome"] == "env_error"
                    and "OpenEnvFailed" in reply["signals"]["error"]
                    and reply["reward"] is None
                )
            status, body, _ = await http.send("POST", "/reset", json={"task": {}})
            assert status == 500 and "OpenEnvFailed" in body["detail"]


async def test_an_environment_of_ours_is_driven_by_the_packages_client(tmp_path):
    from openenv.core.generic_client import GenericEnvClient

    task = {"domains": ["files"], "gold": [[{"name": "make_directory", "arguments": {"path": "new"}}]]}
    with env_server("env_servers.functions", tmp_path) as (url, _):
        with listening([sys.executable, "-m", "env_servers.adapters.openenv.serve", "--url", url, "--port"]) as port:
            async with (
                GenericEnvClient(base_url=f"http://127.0.0.1:{port}") as one,
                GenericEnvClient(base_url=f"http://127.0.0.1:{port}") as two,
            ):
                await one.reset(task=task, seed=1)
                await two.reset(task=task, seed=1)
                made = await one.step({"action": json.dumps(task["gold"][0])})
                assert (json.loads(made.observation["text"]), made.observation["outcome"], made.reward, made.done) == (
                    {"result": None},
                    "ok",
                    None,
                    False,
                )
                wrong = await one.step({"action": "[]"})
                assert (
                    wrong.observation["outcome"] == "model_error"
                    and wrong.observation["signals"]["error_type"] == "bad_call"
                )
                for client, reward in ((one, 1.0), (two, 0.0)):
                    end = await client.step({"action": json.dumps({"message": "Done."})})
                    assert (end.reward, end.done) == (reward, True)
                assert (await one.state())["step_count"] == 3
                with pytest.raises(RuntimeError, match="422"):
                    await one.reset(task={"domains": ["nowhere"], "gold": [[]]})
            async with Http(url) as http:
                async with asyncio.timeout(300):  # a client that left leaves no session
                    while (await http.send("GET", "/health"))[1]["sessions"]:
                        await asyncio.sleep(0.02)
