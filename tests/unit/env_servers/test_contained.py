"""Whatever an environment's code raises is a failure of its own step, which the reply tells."""

from __future__ import annotations

import asyncio
import json
import os
import sys

import httpx
import pytest
from pydantic import ValidationError

from env_servers.defects import Defects
from env_servers.env import Env, Step
from env_servers.serving import ServingConfig, create_env_app
from openrlhf_tir.protocol import CODE_DEFECT, MAX_REPLY_BYTES


class Panic(BaseException):
    """No Exception, as what a library in Rust raises when it panics."""


class Careless(Env):
    """Raises what its action, or its task, says."""

    async def reset(self, task, seed):
        await self._raise(task.get("raise"))
        return ""

    async def step(self, action, deadline_s):
        await self._raise(action)
        return Step("went well")

    async def _raise(self, failure):
        if failure == "inner cancellation":
            inner = asyncio.create_task(asyncio.sleep(60))
            inner.cancel()
            await inner
        if failure == "a name that is not UTF-8":
            raise RuntimeError(os.fsdecode(b"no file \xff"))
        if failure == "a panic":
            raise Panic("a library's")
        if failure == "a long message":
            raise RuntimeError("\0" * (3 << 20))


@pytest.fixture
async def http():
    app = create_env_app(Careless, ServingConfig(env="careless", action="text"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://env") as client:
        yield client


def step(step_id, action):
    return {"session_id": "s", "step_id": step_id, "action": action, "deadline_s": 30.0}


async def test_a_cancellation_inside_the_environment_is_not_the_end_of_its_session(http):
    await http.post("/reset", json={"session_id": "s"})
    reply = await http.post("/step", json=step(0, "inner cancellation"))
    assert reply.status_code == 200 and reply.json()["outcome"] == "env_error"
    assert (await http.post("/step", json=step(1, "go on"))).json()["observation"] == "went well"


async def test_a_cancellation_inside_a_reset_is_answered(http):
    reply = await http.post("/reset", json={"session_id": "s", "task": {"raise": "inner cancellation"}})
    assert reply.status_code == 500 and (await http.get("/health")).json()["sessions"] == 0


async def test_what_is_no_exception_is_the_classes_own_failure_as_well(http):
    await http.post("/reset", json={"session_id": "s"})
    signals = (await http.post("/step", json=step(0, "a panic"))).json()["signals"]
    assert signals[CODE_DEFECT].startswith(__file__) and "Panic: a library's" in signals["error"]
    reply = await http.post("/reset", json={"session_id": "t", "task": {"raise": "a panic"}})
    assert reply.json()["signals"][CODE_DEFECT] == signals[CODE_DEFECT]


class Outage(Env):
    """Its service does not answer."""

    async def reset(self, task, seed):
        return await self.ask() if task else ""

    async def step(self, action, deadline_s):
        await self.ask()

    async def ask(self):
        raise ConnectionRefusedError("nobody listens")


async def test_an_outage_names_the_line_that_waited_for_the_service():
    app = create_env_app(Outage, ServingConfig(env="outage", action="text"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://env") as http:
        await http.post("/reset", json={"session_id": "s"})
        signals = (await http.post("/step", json=step(0, ""))).json()["signals"]
        place = f"(at {__file__}:{Outage.ask.__code__.co_firstlineno + 1})"
        assert CODE_DEFECT not in signals and place in signals["error"]
        reply = await http.post("/reset", json={"session_id": "t", "task": {"x": 1}})
        assert reply.status_code == 500 and place in reply.json()["detail"]


class Unprintable:
    """Fails where it is shown."""

    def __repr__(self) -> str:
        raise RecursionError("too deep")


class Odd(Env):
    """Returns what nobody can send."""

    async def reset(self, task, seed):
        return task.get("text", Unprintable())

    async def step(self, action, deadline_s):
        results = {
            "nothing to print": Unprintable(),
            "a number": Step("", signals={"fine": 1, "loss": object()}),
            "half of a pair": Step("a\ud800b", reward=1.0),
        }
        return results[action]


async def test_a_result_that_nobody_can_print_or_send_is_a_defect_that_names_it():
    app = create_env_app(Odd, ServingConfig(env="odd", action="text"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://env") as http:
        reply = await http.post("/reset", json={"session_id": "t"})
        assert reply.status_code == 500 and "Unprintable" in reply.json()["signals"]["error"]
        await http.post("/reset", json={"session_id": "s", "task": {"text": ""}})
        signals = (await http.post("/step", json=step(0, "nothing to print"))).json()["signals"]
        assert "(Unprintable)" in signals["error"] and CODE_DEFECT in signals
        signals = (await http.post("/step", json=step(1, "a number"))).json()["signals"]
        assert "signals['loss'] = <object object> (object)" in signals["error"] and CODE_DEFECT in signals


async def test_half_of_a_surrogate_pair_is_shown_as_an_escape():
    app = create_env_app(Odd, ServingConfig(env="odd", action="text"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://env") as http:
        await http.post("/reset", json={"session_id": "s", "task": {"text": ""}})
        reply = (await http.post("/step", json=step(0, "half of a pair"))).json()
        assert (reply["outcome"], reply["observation"], reply["reward"]) == ("ok", "a\\ud800b", 1.0)


class Leaving(Env):
    """Exits where it is made."""

    def __init__(self) -> None:
        sys.exit("set the key first")


async def test_a_class_that_exits_where_it_is_made_does_not_end_the_server():
    app = create_env_app(Leaving, ServingConfig(env="leaving", action="text"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://env") as http:
        reply = await http.post("/reset", json={"session_id": "s"})
        assert reply.status_code == 500 and "set the key first" in reply.json()["detail"]
        assert reply.json()["signals"][CODE_DEFECT].startswith(__file__)
        assert (await http.get("/health")).json()["sessions"] == 0


@pytest.mark.parametrize("package", ["env_servers.", "tests."])
@pytest.mark.parametrize("message", ["a name that is not UTF-8", "a long message"])
async def test_any_message_of_an_exception_reaches_the_trainer(message, package, monkeypatch):
    monkeypatch.setattr("env_servers.defects.OURS", package)  # whether the class is the user's or ours
    app = create_env_app(Careless, ServingConfig(env="careless", action="text"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://env") as http:
        await http.post("/reset", json={"session_id": "s"})
        reply = await http.post("/step", json=step(0, message))
        assert reply.status_code == 200 and len(reply.content) <= MAX_REPLY_BYTES
        signals = reply.json()["signals"]
        assert "RuntimeError: " in signals["error"] and (CODE_DEFECT in signals) == (package == "env_servers.")
        reply = await http.post("/reset", json={"session_id": "t", "task": {"raise": message}})
        assert reply.status_code == 500 and len(reply.content) <= MAX_REPLY_BYTES
        assert "RuntimeError: " in reply.json()["detail"]


def test_a_field_with_a_long_name_is_told_as_far_as_a_reply_can_hold_it():
    missing = ValidationError.from_exception_data(
        "Reply", [{"type": "missing", "loc": ("\0" * (3 << 20),), "input": {}}]
    )
    signals = Defects(Careless).signals(missing, "step")
    assert signals is not None and len(json.dumps(signals)) <= MAX_REPLY_BYTES
