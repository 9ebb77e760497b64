"""A RolloutService that answers at once, for tests of the HTTP facade."""

from __future__ import annotations

import asyncio

import numpy as np
from fastapi import FastAPI
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from openrlhf_tir.engines.sessions import CURRENT, Sessions
from openrlhf_tir.errors import EngineError
from openrlhf_tir.rollout.agent_broker import AgentBroker
from openrlhf_tir.rollout.request_queue import RequestQueue
from openrlhf_tir.types import Completion, EngineBounds, Segment, ToolCall, Trajectory

CALLING = ("/v1/chat/completions", "/v1/responses", "/v1/messages")
"""Paths of the OpenAI app whose answers have calls of tools."""


def trajectory(index: int) -> Trajectory:
    model = Segment(
        "model", np.array([4, 5], np.int32), np.array([-0.5, -1.0], np.float32), np.array([2, 3], np.int32), "hi"
    )
    t = Trajectory(
        index,
        np.array([1, 2], np.int32),
        [model, Segment.of_env([9], "42")],
        [ToolCall("print(42)", "42", "ok", {"executed": True}, 0.25)],
        "stop",
    )
    t.reward, t.parts = 1.0, {"correct": 1.0}
    return t


class Letters:
    """A codec: token i is the i-th letter."""

    def decode(self, token_ids):
        return "".join(chr(97 + int(i)) for i in token_ids)


async def proved(versions_T):
    """Every version is."""


class FakeService:
    """`gate` holds requests back until a test opens it."""

    def __init__(self) -> None:
        self.agents = AgentBroker(Sessions(idle_s=60), Letters(), proved)
        self.bounds = EngineBounds(vocab_size=100, max_model_len=50)
        self.gate = asyncio.Event()
        self.gate.set()
        self.paused, self.given_up, self.fails, self.hold_at, self.asked = False, 0, False, None, []
        self.bodies: list[dict] = []
        self.queue = RequestQueue(self, max_queue=1000)

    def admit(self, request):
        self.queue.check_room(request.n or 2)

    async def run_group(self, request):
        self.asked.append(request)
        try:
            for i in range(request.n or 2):
                if i == self.hold_at:
                    self.gate.clear()
                await self.gate.wait()
                if self.fails and i:
                    raise EngineError("engine 0 is broken")
                yield trajectory(i)
        except (GeneratorExit, asyncio.CancelledError):
            self.given_up += 1
            raise

    async def generate(self, token_ids, sampling):
        self.asked.append((token_ids, sampling))
        await self.gate.wait()
        if self.fails:
            raise EngineError("engine 0 is broken")
        return Completion(
            np.array([7], np.int32), np.array([-0.25], np.float32), np.array([3], np.int32), "x", "stop", "x"
        )

    def health(self):
        return {"status": "ok", "version": 3}

    def metrics(self):
        return "tir_running 0\n"

    async def pause(self):
        self.paused = True

    async def resume(self):
        self.paused = False

    def vllm_app(self):
        """What is mounted below our routes."""

        async def vllm_route(request):
            return PlainTextResponse("vllm")

        async def complete(request):
            """Samples what it is told, as vLLM's app would through the engine."""
            body = await request.json()
            self.bodies.append(body)
            await self.gate.wait()
            ids = np.array(body["sampled"], np.int32)
            if session := CURRENT.get():
                session.record(
                    body["prompt"],
                    Completion(ids, np.full(len(ids), -0.5, np.float32), np.full(len(ids), 3, np.int32), "x", "stop"),
                )
            return PlainTextResponse("sampled")

        routes = [
            Route("/v1/models", vllm_route),
            Route("/health", vllm_route),
            Route("/v1/completions", complete, methods=["POST"]),
            *(Route(path, complete, methods=["POST"]) for path in CALLING),
        ]
        return FastAPI(routes=routes)
