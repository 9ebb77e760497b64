"""Actions of several calls: they share the caller's time, are carried out once however often there is no room, and
what they say can be sent."""

from __future__ import annotations

import asyncio
import json

import pytest

from env_servers.actions import STEP_CHARS
from env_servers.admission import CapacityFull
from env_servers.serving import EnvService, ServingConfig
from env_servers.swe import env as swe_env
from env_servers.swe.env import Shared, SweEnv
from env_servers.swe.grade import Report
from env_servers.swe.session import ToolResult
from env_servers.swe.stages import Stages
from openrlhf_tir.protocol import ResetRequest, StepReply, StepRequest
from openrlhf_tir.simulation import virtual_loop


def action(*calls):
    return json.dumps([{"name": name, "arguments": arguments} for name, arguments in calls])


def bash(command):
    return "execute_bash", {"command": command}


FINISH = ("finish", {})


class ScriptedWork:
    """Commands say what they are; `full` are those that there is no room for the first time. A sleep takes its time."""

    def __init__(self, full=()):
        self.full, self.ran, self.seconds = list(full), [], []

    def _room(self, what):
        if what in self.full:
            self.full.remove(what)
            raise CapacityFull("sessions hold all there is", 1)

    async def bash(self, command, is_input, seconds):
        self._room(command)
        self.ran.append(command)
        self.seconds.append(seconds)
        if command.startswith("sleep "):
            await asyncio.sleep(min(seconds, float(command.removeprefix("sleep "))))
        return ToolResult("x" * int(command.removeprefix("print ")) if command.startswith("print ") else command)

    async def patch(self):
        self._room("patch")
        self.ran.append("patch")
        return b"patch"

    async def judge(self, patch):
        return Report(True, "resolved", 1, 1)

    async def close(self):
        pass


class Backend:
    def __init__(self, work):
        self.work, self.gauges = work, {}

    async def begin(self, task):
        return self.work


async def server(work, *, command_s=25.0, max_turns=50):
    shared = Shared(
        Backend(work), Stages(start=1, evaluate=1, max_waiting_starts=1), command_s=command_s, max_turns=max_turns
    )
    service = EnvService(lambda: SweEnv(shared), ServingConfig(env="swe", action="calls"), {})
    await service.sessions.open(ResetRequest(task={"repo": "roman"}, session_id="s"))
    return service


async def step(service, action_text, step_id=0, deadline_s=60.0) -> StepReply:
    return await service.step(StepRequest(session_id="s", step_id=step_id, action=action_text, deadline_s=deadline_s))


async def test_a_judgement_refused_for_lack_of_capacity_succeeds_on_retry():
    service = await server(work := ScriptedWork(full=["patch"]))
    with pytest.raises(CapacityFull):
        await step(service, action(bash("ls"), FINISH))
    reply = await step(service, action(bash("ls"), FINISH))
    assert (reply.reward, reply.done, reply.outcome, reply.signals["turn"]) == (1.0, True, "ok", 1)
    assert work.ran == ["ls", "patch"] and reply.observation == "ls\nThe task is finished."
    retried = await step(service, action(FINISH), 1)
    assert (retried.reward, retried.done, retried.observation) == (None, True, "The task is over.")


async def test_calls_executed_before_a_refusal_are_not_executed_again():
    service = await server(work := ScriptedWork(full=["b"]), max_turns=2)
    with pytest.raises(CapacityFull):
        await step(service, action(bash("a"), bash("b"), bash("c")))
    reply = await step(service, action(bash("a"), bash("b"), bash("c")))
    assert work.ran == ["a", "b", "c"] and reply.observation == "a\nb\nc"
    assert (reply.signals["turn"], reply.truncated) == (1, False)


def test_the_commands_of_an_action_share_its_deadline(monkeypatch):
    monkeypatch.setattr(swe_env, "MARGIN_S", 1.0)
    monkeypatch.setattr(swe_env, "MIN_S", 0.01)
    work = ScriptedWork()

    async def scenario():
        return await step(await server(work), action(*[bash("sleep 20")] * 3), deadline_s=2.5)

    reply = virtual_loop.run(scenario())
    assert work.seconds == pytest.approx([1.5, 0.01, 0.01])
    assert reply.outcome == "ok", "two commands of 1.5 s would have made the caller late"


async def test_the_observation_of_an_action_fits_a_reply():
    service = await server(ScriptedWork())
    reply = await step(service, action(*[bash("print 30000")] * 16))
    assert reply.outcome == "ok" and len(reply.observation) < STEP_CHARS + 100
    assert reply.observation.endswith(f"[{16 * 30000 + 15 - STEP_CHARS} characters left out]")


async def test_a_name_that_cannot_be_sent_is_a_model_error():
    service = await server(work := ScriptedWork())
    reply = await step(service, '[{"name": "execute_bash", "arguments": {"command": "ls", "\\ud83d": 1}}]')
    assert (reply.outcome, reply.signals["error_type"]) == ("model_error", "bad_call")
    assert "surrogate" in reply.observation and not work.ran
