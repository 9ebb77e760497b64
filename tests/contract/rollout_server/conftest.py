"""A server on a real socket in this event loop, in front of a service that answers at once."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from openrlhf_tir.http_guard.guard import BodyLimits
from openrlhf_tir.rollout.serving.app import ServerLimits, build_app, serve
from tests.contract.rollout_fakes import FakeService

TOKEN = "s3cret"


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
async def client(service):
    limits = ServerLimits(
        max_groups=2,
        max_requests=2,
        max_sessions=2,
        bodies=BodyLimits(max_body_bytes=2000),
        kept_groups=1,
        retry_after_s=7,
    )
    app = build_app(service, token=TOKEN, vllm_app=service.vllm_app(), limits=limits)
    server, port = await serve(app)
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {TOKEN}"}, timeout=300
    ) as client:
        yield client
    server.cancel()
    await asyncio.gather(server, return_exceptions=True)
